"""Raw gradients: contributions that find no slot and go up singly, to be summed at the node (S5).

A child is sent `Received` when its bytes are in the window to the parent; until then its
repetitions are dropped without an answer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from luwu.protocol.contribution import Contribution
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire
from switch_emu.switch.core.slots import SlotKey


def push_up(
    outbox: Outbox, uplink: Uplink, key: SlotKey, contribution: Contribution, *, raw: bool,
    on_way: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Push a sum, or (raw) what one child contributed, to the parent.

    `on_way` is called when it enters the window.
    """
    step, part, chunk = key
    push = outbox.stamped(
        wire.Push, step=step, part=part, chunk=chunk, contributors=contribution.contributors,
        absent=contribution.absent, weight=contribution.weight, last=contribution.last, raw=raw,
        dtype=contribution.dtype,
    )  # fmt: skip
    cargo = Cargo(push, contribution.payload, contribution.payload_bytes, on_way)
    uplink.load(outbox.now_ns, ("push", *key, contribution.contributors), cargo)


class RawContributions:
    """Ranks of every chunk that is summed at the node and not here: taken, and on their way."""

    def __init__(self) -> None:
        self._taken: dict[SlotKey, int] = {}
        self._on_way: dict[SlotKey, int] = {}

    def __contains__(self, key: SlotKey) -> bool:
        return key in self._taken

    def take(self, key: SlotKey, contributors: int) -> bool:
        """Take ranks in; False if any was taken already."""
        taken = self._taken.get(key, 0)
        if taken & contributors:
            return False
        self._taken[key] = taken | contributors
        return True

    def sent(self, key: SlotKey, contributors: int) -> None:
        """Their bytes are on their way."""
        self._on_way[key] = self._on_way.get(key, 0) | contributors

    def is_sent(self, key: SlotKey, contributors: int) -> bool:
        """Whether any of these ranks' bytes are on their way."""
        return bool(self._on_way.get(key, 0) & contributors)

    def forget(self, step: int | None = None) -> None:
        """Forget all chunks, or those of a step."""
        for ranks_of in (self._taken, self._on_way):
            for key in [key for key in ranks_of if step is None or key[0] == step]:
                del ranks_of[key]


class RawUp:
    """See the module."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._outbox, self._uplink = outbox, uplink
        self._raw = RawContributions()
        self.count = 0
        """Contributions that found no slot and went on raw."""

    def __contains__(self, key: SlotKey) -> bool:
        """Whether a chunk goes up raw."""
        return key in self._raw

    def forget(self, step: int | None = None) -> None:
        """Forget the chunks of a decided step; without one, all."""
        self._raw.forget(step)

    def push(
        self, peer: str, key: SlotKey, contribution: Contribution, receipt: wire.Received
    ) -> None:
        """A contribution that finds no slot; its receipt is sent when it enters the window."""
        ranks = contribution.contributors
        if self._raw.take(key, ranks):
            self.count += 1

            def on_way() -> None:
                self._raw.sent(key, ranks)
                self._outbox.send(peer, receipt)

            push_up(self._outbox, self._uplink, key, contribution, raw=True, on_way=on_way)
        else:
            self._outbox.drop(contribution.payload)
            if self._raw.is_sent(key, ranks):
                self._outbox.send(peer, receipt)

    def push_held(
        self, key: SlotKey, held: Contribution, answer: Callable[[], None] | None
    ) -> None:  # fmt: skip
        """A contribution that was in a slot when the chunk lost it.

        `answer` sends its receipt as it enters the window; None: that was sent before.
        """
        self.count += 1
        self._raw.take(key, held.contributors)
        if answer is None:
            self._raw.sent(key, held.contributors)

        def on_way() -> None:
            if answer is not None:
                self._raw.sent(key, held.contributors)
                answer()

        push_up(self._outbox, self._uplink, key, held, raw=True, on_way=on_way)

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
    step, part, extent = key
    push = outbox.stamped(
        wire.Push, step=step, part=part, index=extent, contributors=contribution.contributors,
        absent=contribution.absent, weight=contribution.weight, last=contribution.last, raw=raw,
        dtype=contribution.dtype,
    )  # fmt: skip
    cargo = Cargo(push, contribution.payload, contribution.payload_bytes, on_way)
    uplink.load(outbox.now_ns, ("push", *key, contribution.contributors), cargo)


class RawUp:
    """See the module."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._outbox, self._uplink = outbox, uplink
        self._taken: dict[SlotKey, int] = {}
        """Ranks of every extent that is summed at the node and not here."""
        self._on_way: dict[SlotKey, int] = {}
        """Those whose bytes are, or were, in the window to the parent."""
        self.count = 0
        """Contributions that found no slot and went on raw."""

    def __contains__(self, key: SlotKey) -> bool:
        """True if an extent goes up raw."""
        return key in self._taken

    def forget(self, step: int | None = None) -> None:
        """Forget the extents of a decided step; without one, all."""
        for ranks_of in (self._taken, self._on_way):
            for key in [key for key in ranks_of if step is None or key[0] == step]:
                del ranks_of[key]

    def push(
        self, peer: str, key: SlotKey, contribution: Contribution, receipt: wire.Received
    ) -> None:
        """A contribution that finds no slot; its receipt is sent when it enters the window."""
        ranks = contribution.contributors
        if not self._taken.get(key, 0) & ranks:
            self.count += 1
            self._taken[key] = self._taken.get(key, 0) | ranks

            def on_way() -> None:
                self._note_on_way(key, ranks)
                self._outbox.send(peer, receipt)

            push_up(self._outbox, self._uplink, key, contribution, raw=True, on_way=on_way)
        else:
            self._outbox.drop(contribution.payload)
            if self._on_way.get(key, 0) & ranks:
                self._outbox.send(peer, receipt)

    def push_held(
        self, key: SlotKey, held: Contribution, answer: Callable[[], None] | None
    ) -> None:  # fmt: skip
        """A contribution that was in a slot when the extent lost it.

        `answer` sends its receipt as it enters the window; None: that was sent before.
        """
        ranks = held.contributors
        self.count += 1
        self._taken[key] = self._taken.get(key, 0) | ranks
        if answer is None:
            self._note_on_way(key, ranks)

        def on_way() -> None:
            if answer is not None:
                self._note_on_way(key, ranks)
                answer()

        push_up(self._outbox, self._uplink, key, held, raw=True, on_way=on_way)

    def _note_on_way(self, key: SlotKey, ranks: int) -> None:
        self._on_way[key] = self._on_way.get(key, 0) | ranks

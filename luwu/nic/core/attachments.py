"""Attachments of a worker: sent with a step, stored beside the version it makes (`luwu.attach`).

    attached   `Attachments.attach`    every piece is sent
    received   `Attachments.received`  the parent has a piece
    decided    `Attachments.decided`   the attachment is durable, and is forgotten
    skipped    `Attachments.repeat`    sent again under the new attempt: the step stands
    aborted    `Attachments.clear`     void: the step is computed again, and attached to again
    replaced   `Attachments.replace`   sent for a decided step; done when the parent has stored it

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.nic.core.actions import Done
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire


class Attachments:
    """The attachments of one worker's undecided steps."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors = 1 << outbox.rank
        self._pieces: dict[int, Sequence[bytes]] = {}
        """By step."""
        self._replacement = 0
        """The handle of the one that is under way."""

    def attach(self, step: int, pieces: Sequence[bytes]) -> None:
        """Send the pieces of a step's attachment."""
        self._pieces[step] = pieces
        self._send(step)

    def replace(self, handle: int, step: int, part: int, data: bytes) -> None:
        """Send what replaces a part of a decided step's attachment; the last one counts."""
        self._replacement = handle
        self._load(step, part, 0, [data])

    def received(self, m: wire.Received) -> None:
        """The parent has a piece of this rank, or of another one."""
        name = ("keep", m.step, m.part, m.index)
        is_ours = m.contributors == self._contributors
        if is_ours and self._uplink.arrived(self._out.now_ns, name) and m.part:
            self._out.actions.append(Done(self._replacement))

    def decided(self, step: int) -> None:
        """A step is decided: its attachment is durable."""
        self._pieces.pop(step, None)

    def repeat(self) -> None:
        """Send all pieces again, under another attempt."""
        for step in self._pieces:
            self._send(step)

    def clear(self) -> None:
        """All undecided steps are void."""
        self._pieces.clear()

    def _send(self, step: int) -> None:
        pieces = self._pieces[step]
        for index in range(len(pieces)):
            self._load(step, 0, index, pieces)

    def _load(self, step: int, part: int, index: int, pieces: Sequence[bytes]) -> None:
        keep = self._out.stamped(
            wire.Keep, step=step, part=part, index=index, contributors=self._contributors,
            pieces=len(pieces),
        )  # fmt: skip
        cargo = Cargo(keep, pieces[index], len(pieces[index]))
        self._uplink.load(self._out.now_ns, ("keep", step, part, index), cargo)

"""Attachments of a worker: sent with a step, stored beside the version it makes (`luwu.attach`).

    attached   `Attachments.attach`    every piece is sent
    received   `Attachments.received`  the parent has a piece
    decided    `Attachments.decided`   the attachment is durable, and is forgotten
    skipped    `Attachments.repeat`    sent again under the new attempt: the step is valid
    aborted    `Attachments.clear`     void: the step is computed again, and attached to again
    replaced   `Attachments.attach`    a later part is sent, and done when the parent has stored it

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
        """Pieces of undecided attachments by step."""
        self._handle = 0
        """The handle of the later part that is being sent."""

    def attach(self, step: int, pieces: Sequence[bytes], part: int = 0, handle: int = 0) -> None:
        """Send the pieces of a step's attachment; `handle`: of a later part."""
        if part:
            self._handle = handle
        else:
            self._pieces[step] = pieces
        self._send(step, pieces, part)

    def received(self, m: wire.Received) -> None:
        """The parent has a piece of this rank, or of another one."""
        name = ("keep", m.step, m.part, m.index)
        is_ours = m.contributors == self._contributors
        if is_ours and self._uplink.arrived(self._out.now_ns, name) and m.part:
            self._out.actions.append(Done(self._handle))

    def decided(self, step: int) -> None:
        """A step is decided: its attachment is durable."""
        self._pieces.pop(step, None)

    def repeat(self) -> None:
        """Send all pieces again, under another attempt."""
        for step, pieces in self._pieces.items():
            self._send(step, pieces)

    def clear(self) -> None:
        """All undecided steps are void."""
        self._pieces.clear()

    def _send(self, step: int, pieces: Sequence[bytes], part: int = 0) -> None:
        for index, piece in enumerate(pieces):
            keep = self._out.stamped(
                wire.Keep, step=step, part=part, index=index, contributors=self._contributors,
                pieces=len(pieces),
            )  # fmt: skip
            cargo = Cargo(keep, piece, len(piece))
            self._uplink.load(self._out.now_ns, ("keep", step, part, index), cargo)

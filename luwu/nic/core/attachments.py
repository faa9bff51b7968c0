"""Attachments of a worker: sent with a step, stored beside the version it makes (`luwu.attach`).

    attached   `Attachments.attach`    every piece is sent
    received   `Attachments.received`  the parent has a piece
    decided    `Attachments.decided`   the attachment is durable, and is forgotten
    skipped    `Attachments.repeat`    sent again under the new attempt: the step stands
    aborted    `Attachments.clear`     void: the step is computed again, and attached to again

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def attach(self, step: int, pieces: Sequence[bytes]) -> None:
        """Send the pieces of a step's attachment."""
        self._pieces[step] = pieces
        self._send(step)

    def received(self, m: wire.Received) -> None:
        """The parent has a piece of this rank, or of another one."""
        if m.contributors == self._contributors:
            self._uplink.arrived(self._out.now_ns, ("keep", m.step, m.index))

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
        for index, piece in enumerate(pieces):
            keep = self._out.stamped(
                wire.Keep, step=step, part=0, index=index, contributors=self._contributors,
                pieces=len(pieces),
            )  # fmt: skip
            cargo = Cargo(keep, piece, len(piece))
            self._uplink.load(self._out.now_ns, ("keep", step, index), cargo)

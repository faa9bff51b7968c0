"""What a worker keeps beside versions: sent with a step, remembered until it is decided.

    kept       `Keepsakes.keep`     every piece is sent
    arrived    `Keepsakes.arrived`  the parent has it
    decided    `Keepsakes.decided`  forgotten
    skipped    `Keepsakes.ask`      said again under the new attempt: the step stands
    aborted    `Keepsakes.clear`    void: the step is computed again, and this made anew

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from luwu.protocol.uplink import Cargo, Uplink
from luwu.wire import messages as wire


class Keepsakes:
    """Of one worker; `stamped` makes a message of its speaker's."""

    def __init__(self, uplink: Uplink, stamped: Callable[..., Any], contributors: int) -> None:
        self._uplink, self._stamped, self._contributors = uplink, stamped, contributors
        self._pieces: dict[int, Sequence[bytes]] = {}
        """By step."""

    def keep(self, now_ns: int, step: int, pieces: Sequence[bytes]) -> None:
        """Send the pieces of a step."""
        self._pieces[step] = pieces
        self._send(now_ns, step)

    def arrived(self, now_ns: int, m: wire.Received) -> None:
        """The parent has a piece, of us or of another rank."""
        if m.contributors == self._contributors:
            self._uplink.arrived(now_ns, ("keep", m.step, m.chunk))

    def decided(self, step: int) -> None:
        """A step is decided: what was kept with it is safe."""
        self._pieces.pop(step, None)

    def ask(self, now_ns: int) -> None:
        """Say everything again, under another attempt."""
        for step in self._pieces:
            self._send(now_ns, step)

    def clear(self) -> None:
        """All undecided steps are void."""
        self._pieces.clear()

    def _send(self, now_ns: int, step: int) -> None:
        pieces = self._pieces[step]
        for index, piece in enumerate(pieces):
            keep = self._stamped(
                wire.Keep, step=step, part=0, chunk=index, contributors=self._contributors,
                pieces=len(pieces),
            )  # fmt: skip
            self._uplink.load(now_ns, ("keep", step, index), Cargo(keep, piece, len(piece)))

"""The ranks that are present, and those that count: the job goes on without ranks that are lost.

A change is an abort: the next attempt counts other ranks. The process that decides attempts decides
it: a single node, or the switch that leads several. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from luwu.protocol.children import ranks_text
from luwu.protocol.outbox import Outbox


class Change(NamedTuple):
    """Other ranks are to count."""

    text: str
    lost: int
    """Bitmap of those that counted, and are not to any more."""


class CountedRanks:
    """Bitmaps of ranks, as the child reports them."""

    def __init__(
        self, outbox: Outbox, ranks: int, workers_min: int | None, *, grows: bool = False
    ) -> None:
        """`ranks`: all of the job. `workers_min`: the job goes on as long as so many are left;
        None: it waits for ranks that are lost. `grows`: it does not wait for ranks that never
        came."""
        self._outbox, self._ranks, self._workers_min = outbox, ranks, workers_min
        self._grows = grows
        self._new = ranks if grows else 0
        """Ranks that never came, if they are not waited for."""
        self.wanted = ranks
        """Ranks that are to count in the next attempt."""
        self._present = ranks
        self._ever_present = 0
        """Ranks that were present at some time: others may still be starting."""
        self._roll = (0, 0)
        """The last report of who is present: the child's incarnation, and its count."""

    def run_goes_on(self) -> None:
        """The state is that of this run: all ranks were present once."""
        self._ever_present, self._new = self._ranks, 0

    def report(self, present: int, roll: tuple[int, int]) -> None:
        """The child reports which ranks are present; an older report does not undo a later one."""
        if roll >= self._roll:
            self._ever_present |= present
            self._present, self._roll = present, roll

    def change(self) -> Change | None:
        """Go on without ranks that are lost, or with those that are back, in a new attempt."""
        least = self._workers_min
        awaited = 0 if self._grows else ~self._ever_present
        present = (self._present | awaited) & self._ranks
        if least is None or present == self.wanted:
            return None
        if present.bit_count() < least:
            present_text = ranks_text([present])
            name = f"{self._outbox.role.name.lower()}.too_few"
            self._outbox.note(name, level="WARNING", ranks=present_text, least=least)
            return None
        lost, back = self.wanted & ~present, present & ~self.wanted
        new, self._new = self._new, self._new & ~present
        kinds = {
            "are lost": lost & ~new, "are not there yet": lost & new,
            "are back": back & ~new, "have joined": back & new,
        }  # fmt: skip
        changes = [f"ranks {ranks_text([found])} {text}" for text, found in kinds.items() if found]
        self.wanted = present
        return Change(" and ".join(changes), lost)

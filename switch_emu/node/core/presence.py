"""The ranks that are present, and those that count: the job goes on without ranks that are lost.

A change is an abort: the next attempt counts other ranks. Only node 0 decides it. Pure.
"""

from __future__ import annotations

from luwu.protocol.children import Children
from luwu.protocol.members import ranks_text
from luwu.protocol.outbox import Outbox
from switch_emu.node.core.results import AbortRequest
from switch_emu.node.core.steps import Steps


class Presence:
    """Bitmaps of ranks, as the child reports them."""

    def __init__(
        self, outbox: Outbox, children: Children, steps: Steps, ranks_min: int | None
    ) -> None:
        """`ranks_min`: see `NodeLimits`; None at nodes other than node 0."""
        self._outbox, self._children, self._steps = outbox, children, steps
        self._ranks_min = ranks_min
        self._present = self._wanted = children.members.ranks
        """Ranks that are present, and those that are to count in the next attempt."""
        self._ever_present = 0
        """Ranks that were present at some time: others may still be starting."""
        self._roll = (0, 0)
        """When that was reported: the child's incarnation, and its count."""

    def run_goes_on(self) -> None:
        """The state is that of this run: all ranks were present once."""
        self._ever_present = self._children.members.ranks

    def report(self, present: int, roll: tuple[int, int]) -> AbortRequest | None:
        """The child reports which ranks are present; an older report does not undo a later one."""
        if roll < self._roll:
            return None
        self._ever_present |= present
        self._present, self._roll = present, roll
        return self.change()

    def change(self) -> AbortRequest | None:
        """Go on without ranks that are lost, or with those that are back, in a new attempt."""
        least, ranks = self._ranks_min, self._children.members.ranks
        present = (self._present | ~self._ever_present) & ranks
        if least is None or not self._children.loaded or present == self._wanted:
            return None
        if present.bit_count() < least:
            present_text = ranks_text([present])
            self._outbox.note("node.too_few", level="WARNING", ranks=present_text, least=least)
            return None
        lost, back = self._wanted & ~present, present & ~self._wanted
        changes = [f"ranks {ranks_text([lost])} are lost"] if lost else []
        changes += [f"ranks {ranks_text([back])} are back"] if back else []
        self._wanted = present
        return AbortRequest(" and ".join(changes), self._steps.lacks_pieces_of(lost))

    def apply(self) -> None:
        """A new attempt begins: the ranks that are wanted count in it."""
        members = self._children.members
        if members.active != self._wanted:
            members.active = self._wanted
            self._outbox.epoch += 1

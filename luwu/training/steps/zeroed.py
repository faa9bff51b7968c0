"""Parameters whose gradient counts as 0 where a step leaves none: `zero_grad(set_to_none=False)`.

In torch `.grad` outlives a step: such a call sets to 0 what is there, so that decay and momentum
move a parameter on that the next steps do not use. Here gradients are gone after their backward, so
units remember which parameters torch would hold one of, and their pushes have zeros for these.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.training.base.progress import KEPT_STEPS
from luwu.training.units.unit import Unit


class ZeroedGradients:
    """What each step began with; one object for all steps of a session."""

    def __init__(self) -> None:
        self._begun: dict[int, list[tuple[frozenset[int], frozenset[int]]]] = {}

    def begin(self, step: int, units: Sequence[Unit]) -> None:
        """A backward of this step begins; only its first one counts."""
        if step not in self._begun:
            self._begun[step] = [(unit.held, unit.zeroed) for unit in units]
            self._begun.pop(step - KEPT_STEPS, None)

    def zero(self, units: Sequence[Unit], *, set_to_none: bool) -> None:
        """The script calls `zero_grad`."""
        for unit in units:
            if set_to_none:
                unit.held = unit.zeroed = frozenset()
            else:
                unit.zeroed = unit.held

    def restart(self, step: int, units: Sequence[Unit]) -> None:
        """`step` is computed again: from what it began with."""
        for unit, before in zip(units, self._begun.get(step, ()), strict=False):
            unit.held, unit.zeroed = before
        for later in [number for number in self._begun if number >= step]:
            del self._begun[later]

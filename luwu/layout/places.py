"""Where weights that are read in place lie in shared memory, and a table of those that are there.

Each extent has a place, or two: one for even and one for odd steps. A unit's extents lie one behind
the other, as in its flat vector; those of a unit that is frozen are in its first places in all
steps. Behind all places is the table: for each place of an extent one word of 64 bits, 0 or the
*stamp* of its weights. Weights that have the stamp of a step and an attempt may be used for that
step, by who is in that attempt and knows the verdict of the step before: who shares the memory
looks, and need not ask (`luwu/nic/board.py`). Where the stamp is *hidden* they may be used by who
received a message about them, as there is more to know of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Final

from luwu.base.dtypes import DTYPES
from luwu.layout.layout import Layout

WORD_BYTES: Final = 8
_UNIT_ALIGN_BYTES: Final = 4096
_STEP_BITS: Final = 40


@dataclass(frozen=True)
class PlacesMap:
    """Offsets in that memory."""

    HIDDEN: ClassVar[int] = 1 << 63
    """The bit of a word whose stamp is hidden."""

    layout: Layout
    count: int
    """Places of each extent."""

    @cached_property
    def unit_bytes(self) -> tuple[int, ...]:
        """Bytes of each unit's weights."""
        return tuple(map(self.layout.unit_wire_bytes, range(len(self.layout.units))))

    @cached_property
    def _units(self) -> tuple[int, ...]:
        """Where each unit begins in the first of its places, and the end of all."""
        aligned = (-(-n // _UNIT_ALIGN_BYTES) * _UNIT_ALIGN_BYTES for n in self.unit_bytes)
        return tuple(accumulate(aligned, initial=0))

    @property
    def table_start(self) -> int:
        """Where the table begins."""
        return self.count * self._units[-1]

    @property
    def words_count(self) -> int:
        """Words of the table."""
        return self.count * len(self.layout.extents)

    @property
    def nbytes(self) -> int:
        """All that it takes."""
        return self.table_start + WORD_BYTES * self.words_count

    @cached_property
    def _frozen(self) -> frozenset[int]:
        """The units that are."""
        trained = {extent.unit for extent in self.layout.extents if extent.trainable}
        return frozenset(range(len(self.layout.units))) - trained

    def _place(self, unit: int, step: int) -> int:
        """In which of its places a unit is."""
        return 0 if unit in self._frozen else step % self.count

    def unit_start(self, unit: int, step: int) -> int:
        """Where a unit's weights for a step begin."""
        return self._place(unit, step) * self._units[-1] + self._units[unit]

    def extent_start(self, extent: int, step: int) -> int:
        """Where those of an extent begin; it has one run."""
        found = self.layout.extents[extent]
        ((at, _),) = found.runs
        return self.unit_start(found.unit, step) + at * DTYPES[found.wire_dtype].nbytes

    def stamp(self, extent: int, step: int, attempt: int) -> int:
        """The word of a place whose weights count for a step in an attempt, or, if they are frozen,
        for all of it; never 0. Equal ones are 2^23 attempts or 2^40 steps apart."""
        counted = step + 1 if self.layout.extents[extent].trainable else 1
        return (attempt << _STEP_BITS | counted & (1 << _STEP_BITS) - 1) & (self.HIDDEN - 1)

    def word(self, extent: int, step: int) -> int:
        """Which word of the table is that of an extent's place for a step."""
        unit = self.layout.extents[extent].unit
        return self._place(unit, step) * len(self.layout.extents) + extent

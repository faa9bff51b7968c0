"""The units of a run: which extents belong to which, as its node recorded it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from luwu.base.limits import CHUNK_COUNT_MAX
from luwu.base.quantities import decimal


class Units:
    """Names of units by the numbers of their extents, which follow each other."""

    def __init__(self, rows: Sequence[tuple[str, int]] = ()) -> None:
        """`rows`: name and number of extents of each unit, in order."""
        self._names = [name for name, _ in rows]
        self._ends = list(accumulate(count for _, count in rows))
        self._extents = {
            name: range(end - count, end)
            for (name, count), end in zip(rows, self._ends, strict=True)
        }

    def name_of(self, extent: object) -> str | None:
        """The unit of an extent; None if it is unknown."""
        if type(extent) is not int or extent < 0:
            return None
        index = bisect_right(self._ends, extent)
        return self._names[index] if index < len(self._names) else None

    def extents_of(self, unit: object) -> range:
        """The extents of a unit; none if it is unknown."""
        return self._extents.get(unit, range(0)) if isinstance(unit, str) else range(0)


def are_units(rows: Any) -> bool:
    """True for the `units` of a record: `[["root", 3], ["blocks.0", 2]]`."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and [type(each) for each in row] == [str, int] and row[1] >= 0
        for row in rows
    )


def numbers_in(text: object) -> Iterator[int]:
    """The extents that a push names, or the ranks of a switch: `0-3,6`."""
    for part in text.split(",") if isinstance(text, str) else ():
        first, _, last = part.partition("-")
        start, end = decimal(first), decimal(last or first)
        if start is not None and end is not None:
            if end - start > CHUNK_COUNT_MAX:
                raise ValueError(f"{part} names more than there can be")
            yield from range(start, end + 1)

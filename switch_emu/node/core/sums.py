"""Contributions to one step, part by part, extent by extent.

A contribution is a sum that a switch made, or raw from one rank when the switch had no slot. A part
of an extent is complete when its contributors are all ranks: then its payloads are added in rank
order; in a tree, as its switches would have (`total_weight`). Pure bookkeeping: payloads are opaque
and nothing is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution, merge, rank_order, total_weight


@dataclass(slots=True)
class PartSum:
    """One backward's gradient of one extent."""

    contributors: int = 0
    contributions: list[Contribution] = field(default_factory=list)
    complete: bool = False

    def payloads(self) -> list[Contribution]:
        """The payloads to add, in rank order."""
        return [c for c in rank_order(self.contributions) if c.payload is not None]


@dataclass(slots=True)
class ExtentSum:
    """All that came in for one extent in one step."""

    groups: Sequence[int] = ()
    """Bitmaps of the ranks that each switch of a tree sums: weights are added in that order."""
    parts: dict[int, PartSum] = field(default_factory=dict)
    folded_count: int = 0
    """`at_step`: how many parts are in `total`, from the first on."""
    folding: bool = False
    total: Contribution | None = None
    """`at_step`: the sum over the folded parts; None if none of them had a gradient."""
    squares: dict[float, tuple[float, ...]] = field(default_factory=dict)
    """Norm type -> a few numbers for the blocks of the undivided gradient, of 4,096 elements."""

    def complete_up_to(self, parts_count: int) -> bool:
        """True if the first `parts_count` parts are all complete."""
        return all(i in self.parts and self.parts[i].complete for i in range(parts_count))

    @property
    def weight(self) -> float:
        """The divisor of the sum: the contributors' weights, in the order of the sum."""
        last = self.parts[max(self.parts)]
        return total_weight(last.contributions, self.groups)


class StepSums:
    """The sums of one step."""

    def __init__(self, ranks: int, groups: Sequence[int] = ()) -> None:
        self.ranks = ranks
        self._groups = groups
        self.extents: dict[int, ExtentSum] = {}

    def add(self, entry: PartSum, contribution: Contribution) -> bool:
        """Add a contribution to a part; False if it is a repetition. Raises OverlapError."""
        if not merge(entry.contributors, contribution.contributors):
            return False
        entry.contributors |= contribution.contributors
        entry.contributions.append(contribution)
        entry.complete = entry.contributors == self.ranks
        return True

    def part(self, extent: int, part: int) -> PartSum:
        """One backward's gradient of an extent."""
        of_extent = self.extents.setdefault(extent, ExtentSum(self._groups))
        return of_extent.parts.setdefault(part, PartSum())

    def missing_ranks(self, extent: int) -> int:
        """Ranks of which nothing came for the extent's first part, for reports."""
        entry = self.extents.get(extent)
        part = None if entry is None else entry.parts.get(0)
        return self.ranks if part is None else self.ranks & ~part.contributors

    def payloads(self) -> list[Payload]:
        """All payloads, to be dropped."""
        found: list[Payload] = []
        for entry in self.extents.values():
            for part in entry.parts.values():
                found.extend(c.payload for c in part.contributions if c.payload is not None)
            if entry.total is not None and entry.total.payload is not None:
                found.append(entry.total.payload)
        return found

"""Measured curves: a rate that depends on a size, between the points that were measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class Notes:
    """Remarks on how a prediction was made, for its readers."""

    extrapolated: dict[str, str] = field(default_factory=dict)
    """Curve -> the sizes beyond its points, for people."""

    def beyond(self, name: str, text: str) -> None:
        """A look-up lay outside of what was measured."""
        self.extrapolated.setdefault(name, text)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of sizes and rates, by size; between them, straight lines over the size's logarithm.

    Below the first point the time is that of the first point (what binds there is latency, which
    does not shrink), above the last one the rate is.
    """

    name: str
    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        ordered = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if len(self.sizes) != len(self.rates) or not self.sizes or not ordered:
            raise ValueError(f"{self.name}: needs sizes that rise, and a rate for each")

    def rate(self, size: float, notes: Notes | None = None) -> float:
        """The rate at a size. A size outside of the points is noted."""
        sizes, rates = self.sizes, self.rates
        outside = size < sizes[0] or size > sizes[-1]
        if outside and notes is not None:
            notes.beyond(self.name, f"{size:.3g} is outside of {sizes[0]:.3g} to {sizes[-1]:.3g}")
        if size <= sizes[0]:
            return rates[0] * size / sizes[0]
        if size >= sizes[-1]:
            return rates[-1]
        above = bisect_left(sizes, size)
        low, high = sizes[above - 1], sizes[above]
        share = math.log(size / low) / math.log(high / low)
        return rates[above - 1] + share * (rates[above] - rates[above - 1])

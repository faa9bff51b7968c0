"""Stretches of time that do not touch: what several spans cover, and what of it others cover too.

Shapes: int64 [S spans] or [I intervals]; nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Times that do not touch, in order."""

    starts_I: Times
    ends_I: Times

    @property
    def total_ns(self) -> int:
        """Their length."""
        return int((self.ends_I - self.starts_I).sum())

    def without(self, other: Intervals) -> Intervals:
        """These intervals without the parts that `other` covers."""
        return self._cut(other, is_inside=False)

    def within(self, other: Intervals) -> Intervals:
        """The parts of these intervals that `other` covers."""
        return self._cut(other, is_inside=True)

    def _cut(self, other: Intervals, *, is_inside: bool) -> Intervals:
        edges = np.concatenate([other.starts_I, other.ends_I, self.starts_I, self.ends_I])
        edges.sort()
        starts_I, ends_I = edges[:-1], edges[1:]
        chosen = self._has(starts_I) & (other._has(starts_I) == is_inside) & (ends_I > starts_I)
        return union(starts_I[chosen], ends_I[chosen])

    def _has(self, times: Times) -> NDArray[np.bool_]:
        index = np.searchsorted(self.starts_I, times, side="right")
        ends = np.concatenate([[np.iinfo(np.int64).min], self.ends_I])
        return np.asarray(times < ends[index], np.bool_)


def union(starts_S: Times, ends_S: Times, *, gap_ns: int = 0) -> Intervals:
    """The time in which at least one of the spans is under way; gaps up to `gap_ns` are closed."""
    if len(starts_S) == 0:
        return Intervals(starts_S, ends_S)
    order = np.argsort(starts_S, kind="stable")
    starts, ends = starts_S[order], np.maximum.accumulate(ends_S[order])
    breaks = np.flatnonzero(starts[1:] - ends[:-1] > gap_ns)
    return Intervals(
        starts[np.concatenate([[0], breaks + 1])], ends[np.concatenate([breaks, [len(ends) - 1]])]
    )

"""Detection of children that are late with a step, by the usual lateness. Pure.

Of each step it is noted when each child had committed it. A child's *lateness* is the time from the
median of those to its own. What is usual is the median of the last ones, and how much they scatter
is their median absolute deviation (MAD), which a few outliers do not move:

    deadline = max(least, median + 6 MAD)

A fixed deadline would have to be set by hand for each model and machine; users of other systems
report just that.
"""

from __future__ import annotations

from collections import deque
from statistics import median

MADS = 6
_KEPT_COUNT = 256
"""Latenesses that are remembered, of all children together."""


class Lateness:
    """See the module. `least_ns`: nobody is late before."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._last: deque[int] = deque(maxlen=_KEPT_COUNT)
        self._came_ns: dict[int, dict[int, int]] = {}
        self._completed = -1
        """The last step that all have committed."""

    def came(self, now_ns: int, step: int, child: int) -> None:
        """A child has committed a step, perhaps not for the first time."""
        if step > self._completed:
            self._came_ns.setdefault(step, {}).setdefault(child, now_ns)

    def complete(self, step: int) -> None:
        """All have: learn from it."""
        self._completed = step
        came_ns = self._came_ns.pop(step, {})
        if len(came_ns) > 1:
            middle_ns = int(median(came_ns.values()))
            self._last.extend(max(0, at_ns - middle_ns) for at_ns in came_ns.values())

    def forget(self) -> None:
        """The attempt is over: its steps are done again."""
        self._came_ns.clear()
        self._completed = -1

    @property
    def usual_ns(self) -> int:
        """How late anybody usually is."""
        return int(median(self._last)) if self._last else 0

    @property
    def limit_ns(self) -> int:
        """How late nobody usually is."""
        if not self._last:
            return self._least_ns
        usual = self.usual_ns
        scatter_ns = int(median(abs(each - usual) for each in self._last))
        return max(self._least_ns, usual + MADS * scatter_ns)

    def deadline_ns(self, step: int) -> int | None:
        """When those who have not committed a step are late; None while nobody has."""
        came_ns = self._came_ns.get(step)
        return int(median(came_ns.values())) + self.limit_ns if came_ns else None

"""Which ranks are present below a switch, where a job goes on without those that are lost. Pure.

A child is *in* from its Hello on, until its connection ends or it is found silent. It is missed
`drop_after_ns` later, which a new connection, or a new start of it, may prevent; one that is
silent, at once. A child that is a switch reports which of its ranks are present (`Present`, and in
Hello).

    in        `joined`                Hello came
    away      `lost`                  the connection ended; or others came and it did not
    missed    `present` leaves it out: it is away for `drop_after_ns`
    in again  `joined`                at once the first time, and after a growing pause the next:
                                      each return makes all ranks compute a step again

Nobody is missed where the patience is None: the job waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_RETURNS_AT_ONCE = 1
_PAUSE_DOUBLINGS_MAX = 6


@dataclass(slots=True)
class _Child:
    reported: int
    """Ranks that are present below it."""
    roll: tuple[int, int] = (0, 0)
    """(its incarnation, the number of its report)."""
    away_ns: int | None = None
    """Since when it is away."""
    back_ns: int = 0
    """From when on it counts as in."""
    losses_count: int = 0


class Presence:
    """See the module. `children` are bitmaps of ranks."""

    def __init__(self, children: Sequence[int], drop_after_ns: int | None) -> None:
        self._drop_after_ns = drop_after_ns
        self._of = {ranks: _Child(ranks) for ranks in children}
        self._never_in = set(children)

    def joined(self, now_ns: int, ranks: int) -> None:
        """A child has sent Hello."""
        child = self._of[ranks]
        if len(self._never_in) == len(self._of):
            for other in self._of.values():
                other.away_ns = now_ns
        self._never_in.discard(ranks)
        if child.away_ns is None:
            return
        if self._drop_after_ns is not None and self._is_missed(child, now_ns):
            child.losses_count += 1
            doublings = child.losses_count - 1 - _RETURNS_AT_ONCE
            if doublings >= 0:
                pause_ns = self._drop_after_ns << min(doublings, _PAUSE_DOUBLINGS_MAX)
                child.back_ns = now_ns + pause_ns
        child.away_ns = None

    def reported(self, ranks: int, present: int, roll: tuple[int, int]) -> None:
        """A child reports which of its ranks are present; an older report undoes no later one."""
        child = self._of[ranks]
        if roll >= child.roll:
            child.reported, child.roll = present & ranks, roll

    def lost(self, now_ns: int, ranks: int) -> None:
        """The connection to a child has ended."""
        child = self._of[ranks]
        if child.away_ns is None:
            child.away_ns = now_ns

    def silent(self, now_ns: int, ranks: int) -> None:
        """A child is connected and does nothing, for too long: it is missed at once."""
        if self._drop_after_ns is not None:
            self._of[ranks].away_ns = now_ns - self._drop_after_ns

    def present(self, now_ns: int) -> int:
        """Bitmap of the ranks that are not missed."""
        present = 0
        for child in self._of.values():
            if not self._is_missed(child, now_ns):
                present |= child.reported
        return present

    def has_given_up(self, now_ns: int) -> bool:
        """True if every child that never came is missed, and another is in."""
        if self._drop_after_ns is None or len(self._never_in) == len(self._of):
            return False
        return all(self._is_missed(self._of[ranks], now_ns) for ranks in self._never_in)

    def next_ns(self, now_ns: int) -> int | None:
        """When a child is missed, or in again, by the passing of time alone."""
        if self._drop_after_ns is None:
            return None
        changes = [
            child.back_ns if child.away_ns is None else child.away_ns + self._drop_after_ns
            for child in self._of.values()
        ]
        return min((at_ns for at_ns in changes if at_ns > now_ns), default=None)

    def _is_missed(self, child: _Child, now_ns: int) -> bool:
        if self._drop_after_ns is None:
            return False
        if child.away_ns is None:
            return now_ns < child.back_ns
        return now_ns >= child.away_ns + self._drop_after_ns

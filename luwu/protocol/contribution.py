"""Contributions to an extent, from which switch and node make one sum in rank order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from luwu.protocol.actions import Payload
from luwu.wire.messages import Push


class OverlapError(Exception):
    """Two contributions speak for one rank and are not the same: the attempt must be aborted."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of one child to an extent."""

    contributors: int
    """Bitmap of the ranks it speaks for."""
    weight: float
    last: bool
    dtype: str
    payload: Payload | None
    """The gradient; None: there is none."""
    payload_bytes: int = 0
    absent: int = 0
    """Bitmap of the extent's segments without a gradient; see `wire.Push`."""


def common_absent(contributions: Iterable[Contribution]) -> int:
    """The segments for which none of these contributions has a gradient.

    One without a payload has none for any segment, so it does not count; 0 if all are such.
    """
    absent = -1
    for contribution in contributions:
        if contribution.payload is not None:
            absent &= contribution.absent
    return max(absent, 0)


def contribution_of(m: Push, payload: Payload | None, payload_bytes: int) -> Contribution:
    """The contribution that a push brings."""
    return Contribution(m.contributors, m.weight, m.last, m.dtype, payload, payload_bytes, m.absent)


def rank_order(contributions: list[Contribution]) -> list[Contribution]:
    """Sorted by their lowest rank: the order of every float sum."""
    if len(contributions) < 2:  # most are of one switch
        return contributions
    return sorted(contributions, key=lambda c: c.contributors & -c.contributors)


def total_weight(contributions: list[Contribution]) -> float:
    """The contributors' weights, added in rank order, one by one.

    Not by `sum`, which from Python 3.12 on compensates rounding: other bits on other versions.
    """
    total = 0.0
    for contribution in rank_order(contributions):
        total += contribution.weight
    return total


def merge(seen: int, contributors: int) -> bool:
    """True if a contribution adds ranks to `seen`; False for a repetition. Raises OverlapError."""
    both = seen & contributors
    if both == 0:
        return True
    if both == contributors:
        return False
    raise OverlapError(f"ranks {both:#b} are in two different contributions")

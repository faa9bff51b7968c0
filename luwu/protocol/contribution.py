"""Contributions to an extent: what a push must look like, whose they are, in which order they are
added. Pure.

A switch and a node learn the form of each extent's push from the job's description (`PushForm`). A
push of another form is the fault of its sender: it is rejected by name, before its bytes meet those
of other ranks.

The order of a float32 sum is that of the ranks. An extent without a slot in a switch goes on raw
(S5), so what a leaf would have added meets above it, or at the node, beside what other leaves have
added. I3 says that the bits depend on the tree and not on who found a slot: so the node that adds
them groups them as the switches would have (`Tree.groups`, `nested`).

    groups {0,1}, {2,3};  contributions {0,1}, {2}, {3}     ->  {0,1} + ({2} + {3})
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from luwu.aggregate.interface import ENCODED, Aggregator, Encoded
from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.layout import Layout
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


def merge(seen: int, contributors: int) -> bool:
    """True if a contribution adds ranks to `seen`; False for a repetition. Raises OverlapError."""
    both = seen & contributors
    if both == 0:
        return True
    if both == contributors:
        return False
    raise OverlapError(f"ranks {both:#b} are in two different contributions")


class PushForm:
    """Sizes, dtypes and segments of the extents of one job."""

    def __init__(self, layout: Layout, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        extents = layout.extents
        self._elems = array("q", (each.elems if each.trainable else 0 for each in extents))
        """0: nothing of the extent is pushed."""
        self._segments = array("i", (layout.extent_segments_count(e.index) for e in extents))

    @property
    def extents_count(self) -> int:
        """Extents of the job, those that are never pushed included."""
        return len(self._elems)

    def fault(self, m: Push, payload_bytes: int, *, has_payload: bool) -> str:
        """The fault of a push: what was found, and what was expected; empty if there is none."""
        if m.index >= len(self._elems) or not self._elems[m.index]:
            return f"extent {m.index} is not one that is pushed; there are {len(self._elems)}"
        if not has_payload:
            return "segments are absent from a push without a payload" if m.absent else ""
        fault, count = self._fault_of_bytes(m, payload_bytes), self._segments[m.index]
        if not fault and m.absent and m.absent >= (1 << count) - 1:
            return (
                f"extent {m.index} has {count} segments, and a push of it lacks {m.absent:#b}; one "
                "that lacks all of them has no payload"
            )
        return fault

    def _fault_of_bytes(self, m: Push, payload_bytes: int) -> str:
        elems, aggregator = self._elems[m.index], self._aggregator
        if aggregator.is_plain:
            expected = elems * DTYPES[m.dtype].nbytes if m.dtype in WIRE_DTYPES else 0
            if m.dtype not in WIRE_DTYPES or payload_bytes != expected:
                return (
                    f"extent {m.index} has {elems} elements, and a push of it {payload_bytes} "
                    f"bytes of {m.dtype}, expected {expected}"
                )
        elif m.dtype != ENCODED or not aggregator.fits(elems, payload_bytes):
            return (
                f"extent {m.index}: {payload_bytes} bytes of {m.dtype} are not {elems} elements as "
                f"{aggregator.name} encodes them"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Group:
    """Contributions that a switch adds before anything else is added to them."""

    terms: tuple[Contribution | Group, ...]

    @property
    def contributors(self) -> int:
        """Bitmap of the ranks it speaks for."""
        found = 0
        for term in self.terms:
            found |= term.contributors
        return found


def nested(
    contributions: Sequence[Contribution], groups: Sequence[int]
) -> tuple[Contribution | Group, ...]:
    """Terms to add from left to right; a `Group` among them is added first, by the same rule.

    `groups`: bitmaps, the smaller ones first; without any the order is that of the ranks.
    """
    terms: list[Contribution | Group] = list(rank_order(list(contributions)))
    for bits in groups:
        inside = [term for term in terms if not term.contributors & ~bits]
        if 1 < len(inside) < len(terms):
            outside = [term for term in terms if term.contributors & ~bits]
            terms = [*outside, Group(tuple(inside))]
            terms.sort(key=lambda term: term.contributors & -term.contributors)
    return tuple(terms)


def combined(
    terms: Sequence[Contribution | Group],
    aggregator: Aggregator,
    read: Callable[[Contribution], Encoded],
) -> Encoded:
    """Encoded contributions as one, combined as the switches would. Raises ValueError."""
    parts = [
        combined(term.terms, aggregator, read) if isinstance(term, Group) else read(term)
        for term in terms
    ]
    if len(parts) == 1:
        return parts[0]
    together = memoryview(bytearray(aggregator.combined_bytes(parts)))
    return together[: aggregator.combine(parts, together)]


def total_weight(contributions: Sequence[Contribution], groups: Sequence[int] = ()) -> float:
    """The contributors' weights, added as the switches would, one by one.

    Not by `sum`, which from Python 3.12 on compensates rounding: other bits on other versions.
    """
    if len(contributions) == 1:  # most are of one switch
        return contributions[0].weight
    return _weight(nested(contributions, groups))


def depth(groups: Sequence[int]) -> int:
    """How many sums may be open at once beside the outermost one."""
    most = 0
    for bits in groups:
        most = max(most, sum(bits != other and not bits & ~other for other in groups))
    return most


def _weight(terms: Sequence[Contribution | Group]) -> float:
    total = 0.0
    for term in terms:
        total += _weight(term.terms) if isinstance(term, Group) else term.weight
    return total

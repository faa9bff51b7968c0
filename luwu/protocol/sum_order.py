"""The order of a float sum in a tree of switches, for contributions that a switch did not sum.

An extent without a slot goes on raw (S5), so what a leaf would have added meets above it, or at the
node, beside what other leaves have added. I3 says that the bits depend on the tree and not on who
found a slot: so the node that adds them groups them as the switches would have (`Tree.groups`).

    groups {0,1}, {2,3};  contributions {0,1}, {2}, {3}     ->  {0,1} + ({2} + {3})

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from luwu.aggregate.interface import Aggregator, Encoded
from luwu.protocol.contribution import Contribution, rank_order


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
            terms = sorted([*outside, Group(tuple(inside))], key=_lowest)
    return tuple(terms)


def combined(
    terms: Sequence[Contribution | Group],
    aggregator: Aggregator,
    read: Callable[[Contribution], Encoded],
) -> Encoded:
    """Encoded contributions as one, combined as the switches would. Raises ValueError."""
    return aggregator.combined(
        [
            combined(term.terms, aggregator, read) if isinstance(term, Group) else read(term)
            for term in terms
        ]
    )


def tree_weight(contributions: Sequence[Contribution], groups: Sequence[int]) -> float:
    """The contributors' weights, added as the switches would; `sum` would compensate rounding."""
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


def _lowest(term: Contribution | Group) -> int:
    return term.contributors & -term.contributors

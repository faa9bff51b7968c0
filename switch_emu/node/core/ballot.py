"""Statements of the optimizer nodes about the version that is to be decided. Pure.

    measured    squares of its sums, by stripe, or that one is not finite; all in: a joint norm
    prepared    the version is durable there, and digests of its stripes; all in: it may be decided

Owners of one stripe must state the same: they received the same sums. Node 0 keeps the ballot; one
node is a ballot of one. What was stated under an older attempt is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from luwu.layout import owners_of, stripes_of
from luwu.wire.squares import Squares, encode_squares, norm_of

DIGEST_BYTES = 16
StatedT = TypeVar("StatedT")


class Ballot:
    """See the module."""

    def __init__(self, node_count: int, replicas: int = 1) -> None:
        self._node_count, self._replicas = node_count, replicas
        self._squares: dict[int, Sequence[Squares | None]] = {}
        self._digests: dict[int, bytes] = {}

    def clear(self) -> None:
        """A version was decided, or an attempt given up."""
        self._squares.clear()
        self._digests.clear()

    def measured(self, node: int, squares: Sequence[Squares | None]) -> None:
        """A node's sums of the step are complete; their squares, in the order of its stripes. None:
        a sum of the stripe is not finite."""
        self._squares[node] = squares

    def norm(self, norm_type: float) -> float | None:
        """Norm of the mean gradient over all stripes; None while a node has not measured it."""
        if len(self._squares) < self._node_count:
            return None
        return norm_of((own for own, *_ in self._squares.values()), norm_type)

    def prepared(self, node: int, digests: bytes = b"") -> None:
        """A node is prepared; the digests of its stripes, in their order."""
        self._digests[node] = digests

    @property
    def is_prepared(self) -> bool:
        """True if all nodes are."""
        return len(self._digests) == self._node_count

    def differing_gradients(self, norm_type: float) -> str | None:
        """Owners of a stripe whose squares of it differ, as text; None: all agree."""
        return self._differing("gradients", self._squares, partial(_encoded, norm_type))

    def differing_pages(self) -> str | None:
        """Owners of a stripe whose digests of it differ, as text; None: all agree."""
        return self._differing("pages", self._digests, _digest)

    def _differing(
        self, what: str, stated: dict[int, StatedT], part: Callable[[StatedT, int], bytes]
    ) -> str | None:
        count, replicas = self._node_count, self._replicas
        for stripe in range(count if replicas > 1 else 0):
            owners = owners_of(stripe, count, replicas)
            parts = {
                part(stated[node], stripes_of(node, count, replicas).index(stripe))
                for node in owners
            }
            if len(parts) > 1:
                nodes = " and ".join(map(str, sorted(owners)))
                return f"{what} of stripe {stripe} differ between nodes {nodes}"
        return None


def _encoded(norm_type: float, squares: Sequence[Squares | None], index: int) -> bytes:
    found = squares[index]
    return b"" if found is None else encode_squares(found, norm_type)


def _digest(digests: bytes, index: int) -> bytes:
    return digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

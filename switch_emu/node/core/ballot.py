"""Statements of the optimizer nodes about the version that is to be decided. Pure.

    measured    squares of its sums, or that one is not finite; all in: there is a joint norm
    prepared    the version is durable there; all in: it may be decided

Node 0 keeps it; one node is a ballot of one. What was stated under an older attempt is forgotten.
"""

from __future__ import annotations

from luwu.wire.squares import Squares, norm_of


class Ballot:
    """See the module."""

    def __init__(self, node_count: int) -> None:
        self._node_count = node_count
        self._squares: dict[int, Squares | None] = {}
        self._prepared: set[int] = set()

    def clear(self) -> None:
        """A version was decided, or an attempt given up."""
        self._squares.clear()
        self._prepared.clear()

    def measured(self, node: int, squares: Squares | None) -> None:
        """A node's sums of the step are complete."""
        self._squares[node] = squares

    def norm(self, norm_type: float) -> float | None:
        """Norm of the mean gradient over all nodes; None while one has not measured it."""
        if len(self._squares) < self._node_count:
            return None
        return norm_of(self._squares.values(), norm_type)

    def prepared(self, node: int) -> None:
        """A node is prepared."""
        self._prepared.add(node)

    @property
    def is_prepared(self) -> bool:
        """True if all nodes are."""
        return len(self._prepared) == self._node_count

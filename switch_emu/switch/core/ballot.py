"""Statements of several optimizer nodes about the version that is to be decided. Pure.

    measured    squares of its sums, by stripe, or that one is not finite; all in: a joint norm
    prepared    the version is durable there, and digests of its stripes; all in: it may be decided

Owners of one stripe must state the same: they received the same sums. What was stated under an
older attempt is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from luwu.layout import owners_of, stripes_of
from luwu.protocol.epoch import nodes_of
from luwu.wire.norms import Clip, Squares, encode_squares, norms_of

DIGEST_BYTES = 16


class Ballot:
    """See the module. `members`: bitmap of the nodes that are to state something."""

    def __init__(self, optimizer_nodes: int, replicas: int = 1) -> None:
        self._optimizer_nodes, self._replicas = optimizer_nodes, replicas
        self.members = (1 << optimizer_nodes) - 1
        self._squares: dict[int, Sequence[Squares | None]] = {}
        self._digests: dict[int, bytes] = {}

    def clear(self) -> None:
        """A version was decided, or an attempt given up."""
        self._squares.clear()
        self._digests.clear()

    def measured(self, node: int, squares: Sequence[Squares | None]) -> None:
        """A node's sums of the step are complete; their squares, in the order of its stripes. None:
        a sum of the stripe is not finite."""
        assert self.members >> node & 1, "E4, E8: only a member states what counts"
        self._squares[node] = squares

    def norms(self, norm_type: float, clips: Sequence[Clip]) -> tuple[float, ...] | None:
        """Norm of the mean gradient over all stripes, and what each clip finds; None while a node
        has not measured it. Of a stripe, the first of its owners that counts states it."""
        if len(self._squares) < self.members.bit_count():
            return None
        found = []
        for stripe in range(self._optimizer_nodes):
            node = self._owners(stripe)[0]
            found.append(self._squares[node][self._place(node, stripe)])
        return norms_of(found, norm_type, clips)

    def prepared(self, node: int, digests: bytes = b"") -> None:
        """A node is prepared; the digests of its stripes, in their order."""
        assert self.members >> node & 1, "E4, E8"
        self._digests[node] = digests

    def digests_of(self, node: int) -> bytes | None:
        """What a node that is prepared has stated; None: it is not."""
        return self._digests.get(node)

    @property
    def is_prepared(self) -> bool:
        """True if all nodes that count are."""
        return len(self._digests) == self.members.bit_count()

    def differing_gradients(self) -> Difference | None:
        """Owners of a stripe whose squares of it differ; None: all agree."""
        stated = {
            node: [b"" if each is None else encode_squares(each) for each in squares]
            for node, squares in self._squares.items()
        }
        return self._differing("gradients", stated)

    def differing_pages(self) -> Difference | None:
        """Owners of a stripe whose digests of it differ; None: all agree."""
        return self.difference_of(self._digests)

    def difference_of(self, digests_of: Mapping[int, bytes]) -> Difference | None:
        """The same, of digests that these nodes have stated elsewhere."""
        stated = {
            node: [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
            for node, digests in digests_of.items()
        }
        return self._differing("pages", stated)

    def _differing(self, what: str, stated: dict[int, list[bytes]]) -> Difference | None:
        for stripe in range(self._optimizer_nodes if self._replicas > 1 else 0):
            owners = owners_of(stripe, self._optimizer_nodes, self._replicas)
            found = {
                node: stated[node][self._place(node, stripe)] for node in owners if node in stated
            }
            if len(set(found.values())) > 1:
                return Difference(what, stripe, found)
        return None

    def _owners(self, stripe: int) -> list[int]:
        owners = owners_of(stripe, self._optimizer_nodes, self._replicas)
        return [node for node in owners if self.members >> node & 1]

    def _place(self, node: int, stripe: int) -> int:
        return stripes_of(node, self._optimizer_nodes, self._replicas).index(stripe)


class Difference:
    """What the owners of one stripe state, which should be the same."""

    def __init__(self, what: str, stripe: int, stated: dict[int, bytes]) -> None:
        self.what, self.stripe, self.stated = what, stripe, stated

    @property
    def odd(self) -> int:
        """Bitmap of the nodes that differ from most of the owners; 0: no two thirds agree."""
        (most, count), *_ = Counter(self.stated.values()).most_common()
        if 2 * count <= len(self.stated):
            return 0
        return sum(1 << node for node, each in self.stated.items() if each != most)

    def changed(self, before: Difference) -> int:
        """Bitmap of the nodes that stated something else of the same stripe before: what the same
        sums should have given again."""
        if (before.what, before.stripe) != (self.what, self.stripe):
            return 0
        return sum(1 << n for n, each in self.stated.items() if before.stated.get(n) != each)

    def __str__(self) -> str:
        nodes = sum(1 << node for node in self.stated)
        which = " and ".join(map(str, nodes_of(nodes)))
        return f"{self.what} of stripe {self.stripe} differ between nodes {which}"

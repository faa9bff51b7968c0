"""The share of one optimizer node: the chunks whose pages it holds, and the numbers of those pages.

Chunk c is in stripe c % K of K nodes, or in that of its sheet (`Layout.stripe_chunks`). With R
replicas, stripe s is held by nodes s, s + 1, ..., s + R - 1 (modulo K), its *owners*; the first of
them counts it where each chunk counts once.

    K = 3, R = 2      stripe 0    stripe 1    stripe 2
    node 0            pages 0-                pages n-      its own stripe first, then that of
    node 1            pages n-    pages 0-                  the node before it, and so on
    node 2                        pages n-    pages 0-

So neighbours of a stripe are neighbours in each store that holds it. Everything is integer
arithmetic on the layout, the number of the node and R.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from luwu.base.errors import ConfigError
from luwu.layout.layout import Extent, Layout


def owners_of(stripe: int, optimizer_nodes: int, replicas: int) -> tuple[int, ...]:
    """The nodes that hold a stripe; the first counts it. Raises ConfigError."""
    check_replicas(optimizer_nodes, replicas)
    return tuple((stripe + i) % optimizer_nodes for i in range(replicas))


def stripes_of(node: int, optimizer_nodes: int, replicas: int) -> tuple[int, ...]:
    """The stripes that a node holds, its own first."""
    return tuple((node - i) % optimizer_nodes for i in range(replicas))


def check_replicas(optimizer_nodes: int, replicas: int) -> None:
    """Raises ConfigError if there are fewer nodes than replicas."""
    if not 1 <= replicas <= optimizer_nodes:
        raise ConfigError(
            f"replicas: {replicas} of each page asked for, but there are {optimizer_nodes} "
            f"optimizer nodes; give --optimizer-nodes {max(replicas, 1)} or more, or fewer "
            "--replicas"
        )


class Share:
    """See the module."""

    def __init__(self, layout: Layout, number: int = 0, replicas: int = 1) -> None:
        """Raises ConfigError for replicas that cannot be."""
        check_replicas(layout.optimizer_nodes, replicas)
        self.layout, self.number, self.replicas = layout, number, replicas
        self.stripes = stripes_of(number, layout.optimizer_nodes, replicas)
        """Stripes that the node holds, in the order of their pages."""
        self._first_page: dict[int, int] = {}
        first = 0
        for stripe in self.stripes:
            self._first_page[stripe] = first
            first += len(layout.stripe_chunks[stripe])
        self.pages_count = first
        """Pages of the node's store."""

    @classmethod
    def with_pages(cls, layout: Layout, number: int, pages_count: int) -> Share | None:
        """The share of a node whose store has so many pages; None: no share has."""
        every = (cls(layout, number, 1 + others) for others in range(layout.optimizer_nodes))
        return next((each for each in every if each.pages_count == pages_count), None)

    def extents_of(self, stripe: int) -> tuple[Extent, ...]:
        """The extents of a stripe, in the order of their pages."""
        layout = self.layout
        return tuple(each for each in layout.extents if layout.extent_stripe(each.index) == stripe)

    def extents(self) -> tuple[Extent, ...]:
        """The extents of the node, in the order of their pages."""
        return tuple(each for stripe in self.stripes for each in self.extents_of(stripe))

    def owns(self, chunk: int) -> bool:
        """True if a chunk exists and its page is in the node's store."""
        layout = self.layout
        return chunk < len(layout.chunks) and layout.stripe(chunk) in self._first_page

    def owns_extent(self, extent: int) -> bool:
        """True if an extent exists and its pages are in the node's store."""
        layout = self.layout
        return extent < len(layout.extents) and layout.extent_stripe(extent) in self._first_page

    def page(self, chunk: int) -> int:
        """The number of a chunk's page in the node's store."""
        stripe = self.layout.stripe(chunk)
        return self._first_page[stripe] + bisect_left(self.layout.stripe_chunks[stripe], chunk)

    def pages_of(self, stripe: int) -> range:
        """The numbers of a stripe's pages in the node's store."""
        first = self._first_page[stripe]
        return range(first, first + len(self.layout.stripe_chunks[stripe]))

    def chunks(self) -> Sequence[int]:
        """The chunks of the node's pages, in the order of the pages."""
        return [chunk for stripe in self.stripes for chunk in self.layout.stripe_chunks[stripe]]

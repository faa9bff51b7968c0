"""The chunks of a job that one node owns, from the job's description. Pure."""

from __future__ import annotations

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.layout import Layout, Share
from luwu.protocol.children import RefusedError
from luwu.protocol.contribution import PushForm
from luwu.wire.description import Description, differences, parse_description
from luwu.wire.stored import loaded_bytes, stored_bytes
from switch_emu.node.core.actions import NodeNumber


class Shard:
    """The node's share of the job; known once the store is open."""

    layout: Layout
    """Chunks and extents of the whole job."""
    share: Share
    """Those that this node holds."""
    is_streaming: bool
    """Pages are updated while gradients arrive, not after the verdict."""
    norm_type: float
    """Type of the gradient norm by which the job clips."""
    is_in_place = False
    """An update overwrites the version that it is made of: nothing ends a step after its first."""

    def __init__(self, node: NodeNumber, world_size: int, extent_chunks: int = 1) -> None:
        self.node, self.world_size, self._extent_chunks = node, world_size, extent_chunks
        self.description: Description | None = None
        self.description_bytes = b""
        self.aggregator: Aggregator = Float32(world_size)
        self.form: PushForm | None = None
        """The required form of pushes."""
        self.trainable: tuple[int, ...] = ()
        """Indices of the extents that are updated, of those this node owns and holds."""
        self.by_stripe: tuple[tuple[int, ...], ...] = ()
        """The same, by stripe: in the order of `share.stripes`."""
        self.held_chunks = 0
        """How many chunks the extents have that count: all, unless the node is being filled."""
        self.chunks_count = 0
        """Chunks that this node owns."""
        self._extents: frozenset[int] = frozenset()
        """Extents that it owns: each push and each pull asks."""

    def open(self, description_bytes: bytes, *, is_in_place: bool = False) -> None:
        """The description that the store was made with, and how it is written."""
        self.is_in_place = is_in_place
        self.description_bytes = description_bytes
        self.description = description = parse_description(description_bytes, self._extent_chunks)
        self.layout, self.norm_type = description.layout, description.norm_type
        self.is_streaming = description.update == "streaming"
        self.aggregator = make_aggregator(description.aggregate, self.world_size)
        self.form = PushForm(self.layout, self.aggregator)
        self.share = Share(self.layout, self.node.number, self.node.replicas)
        self.chunks_count = self.share.pages_count
        self._extents = frozenset(
            each.index for each in self.layout.extents if self.share.owns_extent(each.index)
        )
        self.hold(0)

    def check_same_job(self, description: bytes) -> None:
        """Raises RefusedError unless the store was made with this description."""
        if description != self.description_bytes:
            lines = "; ".join(differences(description, self.description_bytes))
            raise RefusedError(
                f"the state is that of another job: {lines}"[:880]
                + "; give the right --state, or a new directory"
            )

    def hold(self, count: int) -> None:
        """So many extents count from now on, in the order of their pages; 0: all."""
        extents = self.share.extents()[: count or None]
        held = {each.index for each in extents}
        self.held_chunks = sum(len(each.chunks) for each in extents)
        self.by_stripe = tuple(
            tuple(e.index for e in self.share.extents_of(s) if e.trainable and e.index in held)
            for s in self.share.stripes
        )
        self.trainable = tuple(sorted(extent for each in self.by_stripe for extent in each))

    def stored_bytes(self, chunk: int) -> int:
        """Bytes of a chunk's page, as it travels from node to node."""
        assert self.description is not None
        return stored_bytes(self.description, chunk)

    def loaded_bytes(self, chunk: int) -> int:
        """Bytes of a chunk's weights, state fields and counts of updates, as a script has them."""
        assert self.description is not None
        return loaded_bytes(self.description, chunk)

    def unit_of(self, extent: int) -> str:
        """Name of the unit that this extent is a part of."""
        return self.layout.units[self.layout.extents[extent].unit].name

    def owns(self, chunk: int) -> bool:
        """True if a chunk exists and is this node's."""
        return self.share.owns(chunk)

    def owns_extent(self, extent: int) -> bool:
        """True if an extent exists and is this node's."""
        return extent in self._extents

"""The chunks of a job that one node owns, from the job's description. Pure."""

from __future__ import annotations

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.layout import Layout
from luwu.protocol.push_form import PushForm
from luwu.wire.description import Description, parse_description
from switch_emu.node.core.actions import NodeNumber


class Shard:
    """The node's share of the job; known once the store is open."""

    layout: Layout
    """Chunks and extents of the whole job."""
    is_streaming: bool
    """Pages are updated while gradients arrive, not after the verdict."""
    norm_type: float
    """Type of the gradient norm by which the job clips."""

    def __init__(self, node: NodeNumber, world_size: int, extent_chunks: int = 1) -> None:
        self.node, self.world_size, self._extent_chunks = node, world_size, extent_chunks
        self.description: Description | None = None
        self.description_bytes = b""
        self.aggregator: Aggregator = Float32(world_size)
        self.form: PushForm | None = None
        """The required form of pushes."""
        self.trainable: tuple[int, ...] = ()
        """Indices of the extents that are updated, of those this node owns."""
        self.chunks_count = 0
        """Chunks that this node owns."""

    def open(self, description_bytes: bytes) -> None:
        """The description that the store was made with."""
        self.description_bytes = description_bytes
        self.description = description = parse_description(description_bytes, self._extent_chunks)
        self.layout, self.norm_type = description.layout, description.norm_type
        self.is_streaming = description.update == "streaming"
        self.aggregator = make_aggregator(description.aggregate, self.world_size)
        self.form = PushForm(self.layout, self.aggregator)
        self.chunks_count = sum(self.owns(chunk.index) for chunk in self.layout.chunks)
        self.trainable = tuple(
            each.index
            for each in self.layout.extents
            if each.trainable and self.owns_extent(each.index)
        )

    def owns(self, chunk: int) -> bool:
        """True if a chunk exists and is this node's."""
        layout = self.layout
        return chunk < len(layout.chunks) and layout.owner(chunk) == self.node.number

    def owns_extent(self, extent: int) -> bool:
        """True if an extent exists and is this node's."""
        layout = self.layout
        return extent < len(layout.extents) and layout.extent_owner(extent) == self.node.number

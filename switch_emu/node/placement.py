"""Where the state of an optimizer node lies: in RAM, in shared memory, on disk.

All follows from the node's specification, its memory plan and the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from luwu.base.directories import memory_kind
from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.layout import Extent
from luwu.wire.description import Description
from switch_emu.node.page_updates import note_bytes
from switch_emu.node.pages import store_config
from switch_emu.node.plan import NodePlan, budget_for_pages, whole_bytes
from switch_emu.node.spec import NodeSpec
from switch_emu.process.places import places_bytes
from switch_emu.store.config import StoreConfig
from switch_emu.store.directory import store_disk_bytes
from switch_emu.store.sums import SumShape

_TWO_SIDES = "two sides of the state take"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """See the module."""

    spec: NodeSpec
    plan: NodePlan
    description: Description

    @cached_property
    def config(self) -> StoreConfig:
        """The pages of the node. Raises ConfigError if there are more nodes than chunks."""
        return store_config(self.description, self.spec.number, self.spec.replicas)

    @cached_property
    def whole_bytes(self) -> int:
        """Memory for the update of the largest matrix that is updated as a whole."""
        return whole_bytes(self.description.layout)

    # ---------------------------------------------------------------------- in RAM

    @property
    def is_in_place(self) -> bool:
        """True if a state in RAM has one side: nothing ends a step whose pages are being updated,
        as they wait for its verdict, and no other node has a say."""
        description = self.description
        return description.update == "at_step" and description.layout.optimizer_nodes == 1

    @property
    def bytes_in_ram(self) -> int:
        """The pages of a state in RAM."""
        return (1 if self.is_in_place else 2) * self.config.state_bytes

    @cached_property
    def log(self) -> SumShape | None:
        """The log of sums of a state on disk, where RAM has room for all pages; None: it has none.

        Not on an emulated disk, and not in memory, where it would take what pages are in.
        """
        spec = self.spec
        if spec.state is None or spec.log_steps == 1 or spec.disk_bytes_per_s is not None:
            return None
        if memory_kind(spec.state) is not None:
            return None
        shape = SumShape(self.config, spec.log_steps, note_bytes(self.description.layout))
        needed = self.bytes_in_ram + self.whole_bytes + shape.memory_bytes
        return shape if needed <= self.plan.resident_bytes else None

    @property
    def is_in_ram(self) -> bool:
        """True if all pages are in RAM and written there: without a directory, or beside a log."""
        return self.spec.state is None or self.log is not None

    @property
    def unused_bytes(self) -> int:
        """Memory for pages that a state in RAM has no use for."""
        in_place = self.bytes_in_place
        records = self.bytes_in_ram - (self._bytes_apart if in_place else 0)
        return max(0, self.plan.resident_bytes - in_place - records - self.whole_bytes)

    @property
    def spare_bytes(self) -> int:
        """The part of the unused memory that sums may take beside what the plan has for them: with
        one side, all sums of a step wait for its end."""
        return self.unused_bytes if self.is_in_ram and self.is_in_place else 0

    def check_fits_in_ram(self) -> None:
        """Raises ConfigError, with a budget that suffices, if a state in RAM has no room."""

        def needed(chunk_bytes: int) -> int:
            layout = replace(self.description.layout, chunk_bytes=chunk_bytes)
            cut = replace(self, description=replace(self.description, layout=layout))
            return cut.bytes_in_ram + self.whole_bytes

        needed_bytes = self.bytes_in_ram + self.whole_bytes
        if needed_bytes > self.plan.resident_bytes:
            raise ConfigError(
                f"memory_budget: {'the state takes' if self.is_in_place else _TWO_SIDES} "
                f"{format_bytes(needed_bytes)} of RAM, "
                f"{format_bytes(self.plan.resident_bytes)} are left of the budget; give "
                f"{self._budget_for(needed) // 1024}KiB, or a directory with --state",
                code="E205",
            )

    # ---------------------------------------------------------------------- in shared memory

    @cached_property
    def bytes_in_place(self) -> int:
        """Shared memory for weights that workers read in place; 0: copies are sent."""
        if self._has_copies:
            return 0
        in_ram_bytes = 0
        if self.is_in_ram:
            in_ram_bytes = self.bytes_in_ram + self.whole_bytes - self._bytes_apart
        wanted_bytes = places_bytes(self.description.layout, self.places_count)
        return self.plan.in_place_bytes(wanted_bytes, state_in_ram_bytes=in_ram_bytes)

    @property
    def places_count(self) -> int:
        """Places of each extent's weights."""
        return 1 if self.description.update == "at_step" else 2

    @property
    def _has_copies(self) -> bool:
        """True if no weights are read in place: of several nodes, a unit's are not adjacent."""
        return not self.spec.arena_bytes or self.spec.optimizer_nodes > 1

    @cached_property
    def extents_apart(self) -> list[Extent]:
        """The extents whose masters lie in the places of their weights, if there are places."""
        layout = self.description.layout
        if not self.is_in_ram or not self.is_in_place:
            return []
        return [
            extent
            for extents in layout.unit_extents
            if {layout.extents[index].wire_dtype for index in extents} == {"float32"}
            for extent in map(layout.extents.__getitem__, extents)
            if extent.form.master == "float32" or not extent.trainable
        ]

    @property
    def _bytes_apart(self) -> int:
        return sum(extent.wire_bytes for extent in self.extents_apart)

    # ---------------------------------------------------------------------- on disk

    @property
    def bytes_for_pages(self) -> int:
        """Memory for resident pages. Raises ConfigError if updates of wholes have no room."""
        left_bytes = self.plan.resident_bytes - self.bytes_in_place
        needed = self.whole_bytes
        if needed > left_bytes:
            wanted = needed if self._has_copies else 2 * needed  # places take half at most
            raise ConfigError(
                f"memory_budget: the update of the largest matrix as a whole takes "
                f"{format_bytes(needed)}, {format_bytes(left_bytes)} are left of the budget; give "
                f"{self._budget_for(lambda _: wanted) // 1024}KiB",
                code="E205",
            )
        return left_bytes - needed

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files for pages, and of the log."""
        return store_disk_bytes(self.config) + (0 if self.log is None else self.log.file_bytes)

    def _budget_for(self, needed: Callable[[int], int]) -> int:
        """A budget that leaves so much for pages, by bytes of a chunk."""
        spec = self.spec
        return budget_for_pages(
            needed, budget_bytes=spec.memory_budget_bytes, chunk_bytes=spec.chunk_bytes,
            world_size=spec.world_size, has_switch=spec.has_switch, slot_count=spec.own_slot_count,
            extent_chunks=spec.extent_chunks, in_arenas=spec.arena_bytes > 0,
        )  # fmt: skip

"""The job that an estimate is of: pure numbers, from a model that need not exist."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.layout import Layout
from luwu.wire.description import Description
from switch_emu.node.pages import store_config
from switch_emu.node.plan import NodePlan, budget_for_pages
from switch_emu.process.places import places_bytes
from switch_emu.store import StoreConfig
from switch_emu.store.around import pages_that_fit
from switch_emu.switch.core.weights_down import chosen_extents
from switch_emu.switch.plan import SwitchPlan, plan_switch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """The numbers that decide how much a step moves."""

    layout: Layout
    workers: int
    transport: str
    """`tcp`, `ipc` or `shm`."""
    has_switch: bool = True
    slot_count: int = 0
    """Fixed slots of the node's own switch in its memory budget, at least."""
    stays: frozenset[int] = frozenset()
    """Units whose weights stay from forward to backward, such as the root's."""
    update: str = "streaming"
    """Order of work: `streaming` or `at_step`."""
    durability: str = "step"
    is_in_ram: bool = False
    """The state has no directory."""
    switch: SwitchPlan | None = None
    """The memory plan of the switch, be it the node's own; None: the default."""
    activation_bytes: int | None = None
    """What a worker's forward keeps for its backward; None: not known."""
    prefetch_units: int = 2
    optimizer: str = "adamw"
    state_fields: tuple[str, ...] = ("m", "v")

    @property
    def parameters_count(self) -> int:
        """Elements of all parameters, without padding."""
        return sum(parameter.elems for parameter in self.layout.parameters)

    @property
    def trainable_elems(self) -> int:
        """Elements that are pushed and updated, with padding."""
        return sum(chunk.elems for chunk in self.layout.chunks if chunk.trainable)

    @property
    def pushed_bytes(self) -> int:
        """Bytes that one worker pushes in a step."""
        return sum(chunk.wire_bytes for chunk in self.layout.chunks if chunk.trainable)

    @property
    def wire_bytes(self) -> int:
        """Weights of the whole model as they travel."""
        return sum(chunk.wire_bytes for chunk in self.layout.chunks)

    @property
    def switch_plan(self) -> SwitchPlan:
        """The memory plan of the switch."""
        if self.switch is not None:
            return self.switch
        return plan_switch(
            budget_bytes=None, child_count=self.workers, extent_bytes=self.layout.extent_bytes,
            in_arenas=self.transport == "shm",
        )  # fmt: skip

    @property
    def cached_chunks(self) -> frozenset[int]:
        """The chunks whose weights the switch has room to cache."""
        extents = chosen_extents(self.layout, self.switch_plan.cache_bytes)
        return frozenset(chunk for each in extents for chunk in self.layout.extents[each].chunks)

    def pulls_twice(self, unit: int) -> bool:
        """True if a unit is pulled for forward and again for backward."""
        return unit not in self.stays

    @property
    def store(self) -> StoreConfig:
        """The pages of the job."""
        return store_config(self.description)

    @property
    def description(self) -> Description:
        """The job as its processes describe it."""
        return Description(
            layout=self.layout, optimizer=self.optimizer, update=self.update,
            state_fields=self.state_fields,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The part of the state that the node's budget keeps in RAM."""

    places_bytes: int
    """Weights in shared memory, used in place by every worker; 0: each pull is sent."""
    resident: frozenset[int]
    """Pages that are never read from disk."""
    resident_bytes: int
    cached: frozenset[int] = frozenset()
    """Chunks whose weights the switch caches: the node sends them as it updates their pages."""
    cached_in_place: bool = False
    """The cache has room for two steps' weights, which workers use where they lie."""


def kept_in_ram(job: JobShape, plan: NodePlan, store: StoreConfig) -> Kept:
    """How the node divides what its plan leaves for pages: it takes the first that fit; and what
    the switch caches."""
    in_place = plan.in_place_bytes(
        places_bytes(job.layout) if job.transport == "shm" else 0,
        state_in_ram_bytes=2 * store.state_bytes if job.is_in_ram else 0,
    )
    cached = job.cached_chunks if job.has_switch and not in_place else frozenset()
    has_room = places_bytes(job.layout) <= job.switch_plan.cache_bytes
    cached_in_place = bool(cached) and job.transport == "shm" and has_room
    if job.is_in_ram:
        pages = frozenset(range(store.page_count))
        return Kept(places_bytes=in_place, resident=pages, resident_bytes=2 * store.state_bytes,
                    cached=cached, cached_in_place=cached_in_place)  # fmt: skip
    kept = pages_that_fit(store, plan.resident_bytes - in_place)
    return Kept(
        places_bytes=in_place, resident=frozenset(kept), resident_bytes=sum(kept.values()),
        cached=cached, cached_in_place=cached_in_place,
    )  # fmt: skip


def check_fits(job: JobShape, plan: NodePlan, *, disk_free_bytes: int | None = None) -> None:
    """Raises ConfigError, with the number that would do, if the state fits neither place."""
    from switch_emu.store.directory import store_disk_bytes

    if job.is_in_ram:
        needed = 2 * job.store.state_bytes
        if needed > plan.resident_bytes:
            raise ConfigError(
                f"memory_budget: two sides of the state take {format_bytes(needed)} of RAM, "
                f"{format_bytes(plan.resident_bytes)} are left of the budget; give "
                f"{_budget_for_ram(job, plan) // 1024}KiB, or a directory with --state",
                code="E205",
            )
        return
    needed = store_disk_bytes(job.store)
    if disk_free_bytes is not None and needed > disk_free_bytes:
        raise ConfigError(
            f"state: two sides and their manifests take {format_bytes(needed)} on disk, "
            f"{format_bytes(disk_free_bytes)} are free; name a directory with as much by --state"
        )


def _budget_for_ram(job: JobShape, plan: NodePlan) -> int:
    """A budget that leaves room for two sides of all pages."""

    def needed(chunk_bytes: int) -> int:
        cut = replace(job, layout=replace(job.layout, chunk_bytes=chunk_bytes))
        return 2 * cut.store.state_bytes

    return budget_for_pages(
        needed, budget_bytes=plan.budget_bytes, chunk_bytes=job.layout.chunk_bytes,
        world_size=job.workers, has_switch=job.has_switch, slot_count=job.slot_count,
        extent_chunks=plan.extent_chunks, in_arenas=job.transport == "shm",
    )  # fmt: skip

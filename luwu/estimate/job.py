"""The job that an estimate is of: what its script joins with, and how its machines are set up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from luwu.base.config import RunConfig
from luwu.join.job_file import ScriptJob
from luwu.launch.network import can_share, chosen_transport, tree_of
from luwu.launch.sizes import Sizes, node_plan
from luwu.launch.switch_memory import on_a_host, switch_plan, widest_plan
from luwu.layout import Layout
from luwu.wire.description import Description
from switch_emu.node.placement import Placement
from switch_emu.node.plan import NodePlan
from switch_emu.node.spec import NodeSpec
from switch_emu.process.places import places_bytes
from switch_emu.store import Durability, StoreConfig
from switch_emu.store.around import pages_that_fit
from switch_emu.store.sums import SumShape
from switch_emu.switch.core.weights_down import chosen_extents
from switch_emu.switch.plan import SwitchPlan


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job with the plans of its node and its switch."""

    description: Description
    stays: Collection[int]
    """Units whose weights stay from forward to backward, such as the root's."""
    may_be_clipped: bool
    """Its optimizer has a `max_grad_norm`."""
    node: NodeSpec
    plan: NodePlan
    """How the node divides its budget."""
    switch: SwitchPlan
    """The memory plan of the switch, be it the node's own."""
    transport: str
    """`tcp`, `ipc` or `shm`."""
    hosts: int = 1
    """Hosts that share the workers evenly."""
    on_host: SwitchPlan | None = None
    """The memory plan of the switch of each, where there are several."""

    @property
    def layout(self) -> Layout:
        """Where each parameter lies."""
        return self.description.layout

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.node.world_size

    @property
    def has_directory(self) -> bool:
        """True if the state is kept on disk."""
        return self.node.state is not None

    @property
    def log(self) -> SumShape | None:
        """The log of sums beside a state in RAM; None: it has none."""
        return self.placement.log

    @property
    def is_shared(self) -> bool:
        """True if gradients and weights lie in shared memory."""
        return self.node.arena_bytes > 0

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
    def store(self) -> StoreConfig:
        """The pages of the job."""
        return self.placement.config

    @cached_property
    def placement(self) -> Placement:
        """Where the node keeps the state."""
        return Placement(spec=self.node, plan=self.plan, description=self.description)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The part of the state that the budgets of node and switch keep in RAM."""

    places_bytes: int
    """Weights in shared memory, used in place by every worker; 0: each pull is sent."""
    resident: Collection[int]
    """Pages that are never read from disk."""
    unused_bytes: int
    """Room for pages in the node's budget that there are no pages for."""
    sums_bytes: int
    """Room for sums, which may be some of that."""
    cached: Collection[int]
    """Chunks whose weights the switch caches: the node sends them as it updates their pages."""
    cached_in_place: bool
    """The cache has room for two steps' weights, which workers use where they lie."""


def job_of(config: RunConfig, sizes: Sizes, script: ScriptJob, state: Path | None) -> Job:
    """The job of a script; `state`: where it is kept. Raises ConfigError."""
    transport, layout = chosen_transport(config), script.description.layout
    return Job(
        description=script.description,
        stays=script.stays, may_be_clipped=script.may_be_clipped,
        node=NodeSpec(
            job=1, listen="", summary=Path(), state=state, world_size=config.workers,
            durability=cast(Durability, config.durability), log_steps=config.log_steps,
            has_switch=not config.no_switch,
            memory_budget_bytes=sizes.memory_budget_bytes, chunk_bytes=sizes.chunk_bytes,
            extent_chunks=sizes.extent_chunks, fidelity=config.fidelity,
            slots=config.slots, arena_bytes=int(transport == "shm"),
        ),
        plan=node_plan(config, sizes),
        switch=widest_plan(
            config, tree_of(config), layout.extent_bytes, in_arenas=transport == "shm"
        ),
        transport=transport,
        hosts=config.hosts,
        on_host=None if config.hosts == 1 else switch_plan(
            on_a_host(config), child_count=config.workers // config.hosts,
            extent_bytes=layout.extent_bytes, in_arenas=can_share(),
        ),
    )  # fmt: skip


def kept_in_ram(job: Job) -> Kept:
    """How the node divides what its plan leaves for pages, and what the switch caches. Raises
    ConfigError, with the budget that would do, if a state in RAM has no room."""
    placement, layout = job.placement, job.layout
    in_place, sums_bytes = placement.bytes_in_place, job.plan.sums_bytes
    if placement.is_in_ram:
        placement.check_fits_in_ram()
        resident: Collection[int] = range(job.store.page_count)
        unused_bytes = placement.unused_bytes
        sums_bytes += placement.spare_bytes
    else:
        room_bytes = placement.bytes_for_pages
        fitting = pages_that_fit(job.store, room_bytes)
        resident, unused_bytes = fitting, room_bytes - sum(fitting.values())
    cached: frozenset[int] = frozenset()
    if job.node.has_switch and not in_place:
        cached = cached_chunks(layout, job.switch)
    has_room = places_bytes(layout) <= job.switch.cache_bytes
    return Kept(
        places_bytes=in_place, resident=resident, unused_bytes=unused_bytes, sums_bytes=sums_bytes,
        cached=cached, cached_in_place=bool(cached) and job.is_shared and has_room,
    )  # fmt: skip


def cached_chunks(layout: Layout, plan: SwitchPlan) -> frozenset[int]:
    """The chunks whose weights a switch caches."""
    chosen = chosen_extents(layout, plan.cache_bytes)
    return frozenset(chunk for each in chosen for chunk in layout.extents[each].chunks)

"""A job by its configuration and its description: its plan and its estimate; looks at the disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from luwu.base.config import RunConfig
from luwu.base.limits import MIB
from luwu.estimate.disk import DiskRates, Samples, disk_rates
from luwu.estimate.plan import Estimate, estimate
from luwu.estimate.shape import JobShape
from luwu.launch.serving import Sizes, chosen_transport, node_plan, own_slots, tree_of
from luwu.launch.switch_memory import widest_plan
from luwu.wire.description import Description
from switch_emu.node.plan import NodePlan

SIDES: Final = 2
"""A state is measured on a file as large as its two sides at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A job with its plan, and what that comes to."""

    job: JobShape
    plan: NodePlan
    disk: DiskRates | None
    estimate: Estimate


def plan_job(
    job: JobShape, config: RunConfig, sizes: Sizes, *, state: Path | None, samples: Samples
) -> Planned:  # fmt: skip
    """Plan a job; `state`: where it will be. Raises ConfigError if it cannot be."""
    plan = node_plan(config, sizes)
    disk = None if state is None else _measured(job, plan, state, samples)
    return Planned(job=job, plan=plan, disk=disk, estimate=estimate(job, plan, disk))


def _measured(
    job: JobShape, plan: NodePlan, state: Path, samples: Samples
) -> DiskRates | None:  # fmt: skip
    """Rates of the directory that the state will be in, by requests as the node makes them."""
    store = job.store
    worth = max(8 * MIB, SIDES * store.state_bytes)
    return disk_rates(
        state.absolute().parent,
        page_bytes=max(kind.record_bytes for kind in store.kinds),
        threads_count=plan.updates_count,
        pulls_count=plan.reads_count,
        pages_together=plan.pages_together,
        samples=replace(samples, disk_bytes=min(samples.disk_bytes, worth)),
    )


def job_of(
    config: RunConfig, description: Description, *, stays: frozenset[int], is_in_ram: bool,
    activation_bytes: int | None = None,
) -> JobShape:  # fmt: skip
    """The job in numbers. Raises ConfigError."""
    transport, layout = chosen_transport(config), description.layout
    return JobShape(
        layout=layout,
        workers=config.workers,
        transport=transport,
        has_switch=not config.no_switch,
        slot_count=own_slots(config),
        stays=stays,
        update=description.update,
        optimizer=description.optimizer,
        state_fields=description.state_fields,
        durability=config.durability,
        is_in_ram=is_in_ram,
        switch=widest_plan(
            config, tree_of(config), layout.extent_bytes, in_arenas=transport == "shm"
        ),
        activation_bytes=activation_bytes,
    )

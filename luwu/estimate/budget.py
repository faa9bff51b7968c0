"""Memory of each role, and space on disk: what a job takes while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.base.limits import GRADIENT_BYTES, MIB
from luwu.estimate.shape import JobShape, Kept
from switch_emu.node.plan import NodePlan
from switch_emu.store import StoreConfig
from switch_emu.store.directory import store_disk_bytes

NODE_BASE_BYTES = 170 * MIB
"""Python and torch in a node, before it allocates anything for a job; where its kernel was checked
before, torch is not there and it is less."""
SWITCH_BASE_BYTES = 60 * MIB
"""Python in a switch; it has no torch."""
WORKER_BASE_BYTES = 290 * MIB
"""Python, torch and ZeroMQ in a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of each process of a role, at most."""

    role: str
    processes_count: int
    nbytes: int
    label: str
    text: str
    base_bytes: int = 0
    """Python, and torch, in it."""


def memory_uses(job: JobShape, plan: NodePlan, kept: Kept) -> tuple[MemoryUse, ...]:
    """By role, then what is shared: it is counted there and nowhere else."""
    unit_bytes = max(job.layout.unit_wire_bytes(i) for i in range(len(job.layout.units)))
    in_place = kept.places_bytes > 0
    pulled = min((job.prefetch_units + 2) * unit_bytes, job.wire_bytes)
    units = 0 if in_place else pulled
    shown = "weights used in place" if in_place else f"up to {job.prefetch_units + 2} units"
    arenas = job.transport == "shm"
    gradients = 2 * unit_bytes  # the allocator keeps holes; cells, where no arena has them
    gradients += 0 if arenas else min(GRADIENT_BYTES, job.pushed_bytes)
    uses = [
        MemoryUse(
            role="worker",
            processes_count=job.workers,
            nbytes=WORKER_BASE_BYTES + units + gradients + (job.activation_bytes or 0),
            label="assumed",
            text=f"Python and torch, {shown}, gradients, activations"
            f"{' (not known)' * (job.activation_bytes is None)}",
            base_bytes=WORKER_BASE_BYTES,
        ),
        MemoryUse(
            role="node",
            processes_count=1,
            nbytes=NODE_BASE_BYTES + plan.budget_bytes - (kept.places_bytes if arenas else 0),
            label="assumed",
            text="Python and torch, and the whole memory budget",
            base_bytes=NODE_BASE_BYTES,
        ),
    ]
    if job.has_switch:
        weights_bytes = (2 if kept.cached_in_place else 1) * job.wire_bytes
        whole_step = (job.workers + 2) * job.pushed_bytes + weights_bytes
        own = min(job.switch_plan.budget_bytes, whole_step) + (0 if arenas else pulled)
        uses.insert(1, MemoryUse(
            role="switch", processes_count=1, nbytes=SWITCH_BASE_BYTES + own, label="assumed",
            text="Python, its memory budget" + ", weights being sent" * (not arenas),
            base_bytes=SWITCH_BASE_BYTES,
        ))  # fmt: skip
    if arenas:
        uses.append(MemoryUse(
            role="arenas", processes_count=job.workers,
            nbytes=min(job.switch_plan.arena_bytes, 2 * job.pushed_bytes), label="predicted",
            text="shared memory for gradients, taken as it is used",
        ))  # fmt: skip
    if in_place:
        uses.append(MemoryUse(
            role="weights in place", processes_count=1, nbytes=kept.places_bytes,
            label="predicted", text="shared memory, part of the node's budget",
        ))  # fmt: skip
    return tuple(uses)


def disk_space(job: JobShape, store: StoreConfig, spilled_bytes: int) -> dict[str, int]:
    """Bytes taken by use."""
    if job.is_in_ram:
        return {"spilled sums": spilled_bytes} if spilled_bytes else {}
    sides = 2 * store.state_bytes
    space = {"two sides": sides, "manifests": store_disk_bytes(store) - sides}
    if spilled_bytes:  # the file is made whole when the first sum is spilled
        space["spilled sums"] = 4 * job.trainable_elems
    return space

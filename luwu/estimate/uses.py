"""What a job takes: memory, space on disk, and the bytes of a step on disk and on links.

On disk, by parameter of 4 bytes, AdamW:

    use              read                     written
    updates          12, if not resident      12, resident or not: the store keeps two sides;
                                              with a log of k slots, 12 / k
    log of sums                               4 (k - 1) / k
    pulls            4 a pull, if the page is neither resident nor its weights in shared memory
                     or in the cache of the switch, and the update did not hand them out on its way
    spilled sums     4                        4, of what exceeds the plan's RAM for sums
    manifest                                  the page table twice, and four blocks

A state in RAM has no disk, or a log of sums. Spilled are sums of an `at_step` step, and of one that
streams and may be clipped: they all wait for its end.
Counted is the least: of a forward, pulls whose weights updates hand out (`plan.py`) are no reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luwu.base.limits import GRADIENT_BYTES, MIB
from luwu.estimate.job import Job, Kept, cached_chunks
from luwu.join.connection import PREFETCH_UNITS
from luwu.layout import SUM_BYTES, Chunk
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.directory import store_disk_bytes
from switch_emu.store.geometry import Geometry
from switch_emu.switch.plan import SwitchPlan, budget_to_cache

NODE_BASE_BYTES: Final = 170 * MIB
"""Python and torch in a node, before it allocates anything for a job; where its kernel was checked
before, torch is not there and it is less."""
SWITCH_BASE_BYTES: Final = 60 * MIB
"""Python in a switch; it has no torch."""
WORKER_BASE_BYTES: Final = 290 * MIB
"""Python, torch and ZeroMQ in a worker."""

PULLS: Final = "pulls"
SPILLED: Final = "spilled sums"
LOG: Final = "log of sums"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One use of the disk in a step."""

    name: str
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Payload of one process of a role in a step."""

    role: str
    into_bytes: int
    out_of_bytes: int


def memory_uses(job: Job, kept: Kept) -> tuple[MemoryUse, ...]:
    """By role, then what is shared: it is counted there and nowhere else."""
    unit_bytes = max(job.layout.unit_wire_bytes(i) for i in range(len(job.layout.units)))
    pulled = min((PREFETCH_UNITS + 2) * unit_bytes, job.wire_bytes)
    units = 0 if kept.places_bytes else pulled
    shown = "weights used in place" if kept.places_bytes else f"up to {PREFETCH_UNITS + 2} units"
    own = job.on_host or job.switch  # of the switch that workers connect to
    gradients = 2 * unit_bytes  # the allocator keeps holes; cells, where no arena has them
    gradients += 0 if own.arena_bytes else min(GRADIENT_BYTES, job.pushed_bytes)
    sums_bytes = min(kept.sums_bytes, SUM_BYTES * job.trainable_elems) - job.plan.sums_bytes
    node_bytes = job.plan.budget_bytes - kept.places_bytes - kept.unused_bytes + max(0, sums_bytes)
    weights_bytes = (2 if kept.cached_in_place else 1) * job.wire_bytes
    whole_step = (job.workers + 2) * job.pushed_bytes + weights_bytes
    switch_bytes = min(job.switch.budget_bytes, whole_step) + (0 if job.is_shared else pulled)
    at_host_bytes = min(own.budget_bytes, whole_step + job.wire_bytes)
    uses = [
        MemoryUse(
            role="worker", processes_count=job.workers,
            nbytes=WORKER_BASE_BYTES + units + gradients, label="assumed",
            text=f"Python and torch, {shown}, gradients; what a forward keeps comes on top",
            base_bytes=WORKER_BASE_BYTES,
        ),
        MemoryUse(
            role="switch", processes_count=int(job.node.has_switch),
            nbytes=SWITCH_BASE_BYTES + switch_bytes, label="assumed",
            text="Python, its memory budget" + ", weights being sent" * (not job.is_shared),
            base_bytes=SWITCH_BASE_BYTES,
        ),
        MemoryUse(
            role="switch of a host", processes_count=job.hosts if job.on_host else 0,
            nbytes=SWITCH_BASE_BYTES + at_host_bytes, label="assumed",
            text="Python, its memory budget", base_bytes=SWITCH_BASE_BYTES,
        ),
        MemoryUse(
            role="node", processes_count=1, nbytes=NODE_BASE_BYTES + node_bytes, label="assumed",
            text="Python and torch, its memory budget, room for pages as far as there are pages",
            base_bytes=NODE_BASE_BYTES,
        ),
        MemoryUse(
            role="arenas", processes_count=job.workers if own.arena_bytes else 0,
            nbytes=min(own.arena_bytes, 2 * job.pushed_bytes), label="predicted",
            text="shared memory for gradients, taken as it is used",
        ),
        MemoryUse(
            role="weights in place", processes_count=int(kept.places_bytes > 0),
            nbytes=kept.places_bytes, label="predicted",
            text="shared memory, part of the node's budget",
        ),
    ]  # fmt: skip
    return tuple(use for use in uses if use.processes_count)


def disk_space(job: Job, spilled_bytes: int) -> dict[str, int]:
    """Bytes taken by use."""
    space = {}
    if job.has_directory:
        space["two sides"] = 2 * job.store.state_bytes
        space["manifests"] = store_disk_bytes(job.store) - space["two sides"]
    if job.log is not None:
        space[LOG] = job.log.file_bytes
    if spilled_bytes:  # the file is made whole when the first sum is spilled
        whole = SUM_BYTES * job.trainable_elems
        space["spilled sums"] = whole if job.has_directory else spilled_bytes
    return space


def disk_uses(job: Job, kept: Kept) -> tuple[DiskUse, ...]:
    """By use; see the module."""
    spilled, is_at_step = 0, job.description.update == "at_step"
    keeps_sums = is_at_step or job.may_be_clipped
    if keeps_sums:
        spilled = max(0, SUM_BYTES * job.trainable_elems - kept.sums_bytes)
    sums = DiskUse(name=SPILLED, read_bytes=spilled, written_bytes=spilled)
    if not job.has_directory:
        return (sums,)
    store, slots = job.store, 1 if job.log is None else job.log.slots_count
    geometry = Geometry(store)
    read = written = logged = pulled = 0
    for chunk in job.layout.chunks:
        body = geometry.body_bytes[store.page_kinds[chunk.index]]
        body = -(-body // BLOCK_BYTES) * BLOCK_BYTES
        is_resident = chunk.index in kept.resident
        if chunk.trainable:
            written += body // slots
            logged += chunk.sum_bytes * (slots - 1) // slots
            read += 0 if is_resident else body
        if is_resident or kept.places_bytes or chunk.index in kept.cached:
            continue
        is_handed_out = is_at_step or (chunk.unit < PREFETCH_UNITS and not keeps_sums)
        pulls_count = (not is_handed_out) + (chunk.unit not in job.stays)
        pulled += pulls_count * chunk.sum_bytes
    table = -(-geometry.table.table_bytes // BLOCK_BYTES) + 1
    return (
        DiskUse(name="updates", read_bytes=read, written_bytes=written),
        DiskUse(name=LOG, written_bytes=logged),
        DiskUse(name=PULLS, read_bytes=pulled),
        sums,
        DiskUse(name="manifest", written_bytes=(2 * table + 4) * BLOCK_BYTES),
    )


def link_uses(job: Job, kept: Kept) -> tuple[LinkUse, ...]:
    """Payload into and out of each process; weights used in place count as one pull a step.

    What the switch caches leaves the node once a step; frozen weights are counted as if they did.
    """
    again = [chunk for chunk in job.layout.chunks if chunk.unit not in job.stays]
    pulled = job.wire_bytes
    if not kept.places_bytes:
        pulled += sum(chunk.wire_bytes for chunk in again)
    cached = sum(chunk.wire_bytes for chunk in again if chunk.index in kept.cached)
    pushed, sums = job.pushed_bytes, SUM_BYTES * job.trainable_elems
    if job.workers == 1:
        sums = pushed  # a sum of one goes on as it came
    found = [LinkUse(role="worker", into_bytes=pulled, out_of_bytes=pushed)]
    children = job.workers
    if job.on_host is not None:
        again = passes_twice(job, job.on_host)
        cached = sum(chunk.wire_bytes for chunk in again if chunk.index in kept.cached)
        pulled = job.wire_bytes + sum(chunk.wire_bytes for chunk in again)
        pushed = sums if job.workers > job.hosts else pushed
        children = job.hosts
        found.append(LinkUse(role="link of a host", into_bytes=pulled, out_of_bytes=pushed))
    everyone = (children * pushed, children * pulled)
    if not job.node.has_switch:
        return (*found, LinkUse(role="node", into_bytes=everyone[0], out_of_bytes=everyone[1]))
    return (
        *found,
        LinkUse(
            role="switch", into_bytes=everyone[0] + pulled - cached,
            out_of_bytes=sums + everyone[1],
        ),
        LinkUse(role="node", into_bytes=sums, out_of_bytes=pulled - cached),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Weights on the link of a host whose switch may be too small to cache them all."""

    weights_twice_bytes: int
    """Bytes that pass it twice a step: for forward, and for backward."""
    enough_memory_bytes: int
    """The budget of its switch with which none do."""


def passes_twice(job: Job, on_host: SwitchPlan) -> list[Chunk]:
    """The chunks that workers pull twice, and that the switch of a host does not cache."""
    cached = cached_chunks(job.layout, on_host)
    return [
        chunk
        for chunk in job.layout.chunks
        if chunk.unit not in job.stays and chunk.index not in cached
    ]


def host_use(job: Job, on_host: SwitchPlan) -> HostUse:
    """The weights that pass the link of a host twice. The last extents are cached first."""
    extents = job.layout.extents
    first = next((each.index for each in extents if each.unit not in job.stays), len(extents))
    return HostUse(
        weights_twice_bytes=sum(chunk.wire_bytes for chunk in passes_twice(job, on_host)),
        enough_memory_bytes=budget_to_cache(
            sum(extent.wire_bytes for extent in extents[first:]),
            child_count=job.workers // job.hosts, extent_bytes=job.layout.extent_bytes,
            in_arenas=on_host.arena_bytes > 0,
        ),
    )  # fmt: skip

"""Bytes that a step moves: on disk by use, and on links by role.

On disk, by parameter of 4 bytes, AdamW:

    use              read                     written
    updates          12, if not resident      12, resident or not: the store keeps two sides
    pulls            4 a pull, if the page is neither resident nor its weights in shared memory
                     or in the cache of the switch, and the update did not hand them out on its way
    spilled sums     4                        4, of what exceeds the plan's RAM for sums
    manifest                                  the page table twice, and four blocks

A state in RAM has no disk. Spilled are: all sums of an `at_step` step, which wait for its end; of a
streaming step those that wait for their update when the backward is over. In shared memory these
wait where the workers wrote them: then workers wait for room, and nothing is spilled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luwu.estimate.shape import JobShape, Kept
from switch_emu.node.plan import NodePlan
from switch_emu.store import StoreConfig
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.geometry import Geometry

COPIES_IN_PLACE = 12
"""Bytes a parameter and worker: gradient written, read by the sum, weights read by the compute."""
PULLS = ("pulls for forward", "pulls for backward")
"""Names of the uses that read weights alone."""
BYTES_OF_AN_UPDATE = 28
"""Bytes a parameter: weights, m and v read and written, and the weights that go out."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTraffic:
    """Disk traffic of a step's pages, if nothing is published and nothing spilled."""

    update: DiskUse
    forward: DiskUse
    window: DiskUse
    """The part of forward that is asked for as soon as the step before is committed."""
    backward: DiskUse
    manifest: DiskUse


def page_traffic(job: JobShape, kept: Kept, store: StoreConfig) -> PageTraffic:
    """See the module."""
    if job.is_in_ram:
        none = DiskUse(name="none")
        return PageTraffic(update=none, forward=none, window=none, backward=none, manifest=none)
    geometry = Geometry(store)
    read = written = forward = window = backward = 0
    for chunk in job.layout.chunks:
        body = geometry.body_bytes[store.page_kinds[chunk.index]]
        body = -(-body // BLOCK_BYTES) * BLOCK_BYTES
        is_resident = chunk.index in kept.resident
        if chunk.trainable:
            written += body
            read += 0 if is_resident else body
        if is_resident or kept.places_bytes or chunk.index in kept.cached:
            continue
        forward += chunk.sum_bytes
        window += chunk.sum_bytes if chunk.unit < job.prefetch_units else 0
        backward += chunk.sum_bytes if job.pulls_twice(chunk.unit) else 0
    table = -(-geometry.table.table_bytes // BLOCK_BYTES) + 1
    return PageTraffic(
        update=DiskUse(name="updates", read_bytes=read, written_bytes=written),
        forward=DiskUse(name=PULLS[0], read_bytes=forward),
        window=DiskUse(name="pulls ahead", read_bytes=window),
        backward=DiskUse(name=PULLS[1], read_bytes=backward),
        manifest=DiskUse(name="manifest", written_bytes=(2 * table + 4) * BLOCK_BYTES),
    )


def spilled(job: JobShape, plan: NodePlan, *, waiting_ratio: float) -> DiskUse:
    """Sums that find no room; `waiting_ratio` of a streaming step's wait when it is committed."""
    held = 4 * job.trainable_elems
    if job.update == "streaming":
        held = 0 if job.transport == "shm" else int(held * waiting_ratio)
    count = max(0, held - plan.sums_bytes)
    return DiskUse(name="spilled sums", read_bytes=count, written_bytes=count)


def link_uses(job: JobShape, kept: Kept) -> tuple[LinkUse, ...]:
    """Payload into and out of each process; weights used in place count as one pull a step.

    What the switch caches leaves the node once a step; frozen weights are counted as if they did.
    """
    again = [chunk for chunk in job.layout.chunks if job.pulls_twice(chunk.unit)]
    pulled = job.wire_bytes
    if not kept.places_bytes:
        pulled += sum(chunk.wire_bytes for chunk in again)
    cached = sum(chunk.wire_bytes for chunk in again if chunk.index in kept.cached)
    pushed, sums = job.pushed_bytes, 4 * job.trainable_elems
    if job.workers == 1:
        sums = pushed  # a sum of one goes on as it came
    worker = LinkUse(role="worker", into_bytes=pulled, out_of_bytes=pushed)
    everyone = (job.workers * pushed, job.workers * pulled)
    if not job.has_switch:
        return (worker, LinkUse(role="node", into_bytes=everyone[0], out_of_bytes=everyone[1]))
    return (
        worker,
        LinkUse(
            role="switch", into_bytes=everyone[0] + pulled - cached,
            out_of_bytes=sums + everyone[1],
        ),
        LinkUse(role="node", into_bytes=sums, out_of_bytes=pulled - cached),
    )  # fmt: skip


def memory_pass_bytes(job: JobShape) -> int:
    """Bytes that an exchange in shared memory reads and writes in memory."""
    per_parameter = COPIES_IN_PLACE * job.workers + BYTES_OF_AN_UPDATE
    return job.trainable_elems * per_parameter


def copied_bytes(job: JobShape, kept: Kept) -> tuple[int, int]:
    """Bytes that are read and written in memory to copy weights, for forward and for backward.

    In shared memory, where weights are not used in place: each worker copies what it pulled, and
    the switch what it caches.
    """
    if job.transport != "shm" or kept.places_bytes:
        return 0, 0
    chunks = job.layout.chunks
    forward = sum(chunk.wire_bytes for chunk in chunks)
    cached = sum(chunk.wire_bytes for chunk in chunks if chunk.index in kept.cached)
    backward = sum(chunk.wire_bytes for chunk in chunks if job.pulls_twice(chunk.unit))
    return 2 * job.workers * forward + 2 * cached, 2 * job.workers * backward


def use_document(use: DiskUse, parameters_count: int) -> dict[str, Any]:
    """A use as JSON, in bytes and in bytes a parameter."""
    return {
        "name": use.name,
        "read_bytes": use.read_bytes,
        "written_bytes": use.written_bytes,
        "read_bytes_per_parameter": use.read_bytes / parameters_count,
        "written_bytes_per_parameter": use.written_bytes / parameters_count,
    }

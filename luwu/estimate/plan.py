"""The estimate: everything a job takes, the floors in seconds, and which resource binds. Pure.

Each resource has a floor, the seconds of a step if nothing else took any:

    disk       2 min(R, W) / mixed + (R - W) / read, or (W - R) / write, of what updates and spilled
               sums read and write; pulls are reads alone, smaller and fewer at once: pulled / pull
    compute    of the model itself, where it was measured; else 6 x parameters x tokens operations
               at the rate of a matrix product (assumed; Kaplan et al. 2020, arXiv:2001.08361,
               section 2.1) on the cores that the workers have
    exchange   shm: parameters x (12 x workers + 28) bytes at the copy rate, and what workers copy
               of weights that are not used in place; else the bytes through the busiest process at
               the rate of a socket
    update     parameters at the kernel's rate
    flush      three flushes, for `--durability step`

A step has two phases, and in each the disk works beside the cores:

    streaming   forward:  pulls                         beside a third of compute
                backward: pulls, updates, spilled sums  beside the rest, exchange and update
    at_step     forward:  updates, spilled sums, pulls  beside a third of compute, exchange, update
                backward: pulls                         beside the rest
    step_seconds = max(disk, cores) of forward + max(disk, cores) of backward
                   + the part of the flushes that is longer than the phase which writes no page

Within the cores, compute and the larger of exchange and update are added where the workers' threads
fill all cores, else the largest counts. A streaming forward cannot begin before the last update,
so updates hide behind the backward alone; its first units are handed out by their updates. Where
updates are the slower ones, an `at_step` forward is handed all of its weights as they are made.

Weights wait in the node's `outgoing` memory until all workers have copied them. Where that holds
fewer than four extents, the forward's reads wait for the copies, so both are added (a job of a
billion parameters had one read in flight, and the disk was idle for two fifths of its forward). In
the backward, updates have the disk meanwhile.

These seconds are right as a floor on a machine that is here: no step is shorter than what each part
was measured to take. Left out are who waits for whom, Python in the workers between messages and
compute, and what processes lose to one another on the same cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from luwu.base.identifiers import by_identifier
from luwu.estimate.budget import CoreUse, MemoryUse, core_uses, disk_space, memory_uses
from luwu.estimate.shape import JobShape, Kept, check_fits, kept_in_ram
from luwu.estimate.traffic import (
    PULLS,
    DiskUse,
    LinkUse,
    PageTraffic,
    copied_bytes,
    link_uses,
    memory_pass_bytes,
    page_traffic,
    spilled,
    use_document,
)
from luwu.measure.disk_floors import DiskFloors
from luwu.measure.floors import Floors
from switch_emu.node.plan import NodePlan

FLUSHES_A_STEP: Final = 3
FEW_EXTENTS: Final = 4
"""In the memory for weights on their way out."""
FORWARD_SHARE: Final = 1 / 3
"""The share of compute that the forward takes."""
OPERATIONS: Final = 6
"""A parameter and token: two in forward, four in backward."""
ENDURANCE_WRITES: Final = 600
"""Cited, typical: a consumer drive is rated for 600 TB written for each TB it holds."""
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFloor:
    """Seconds of a step that a resource needs at least; None: not measured."""

    name: str
    seconds: float | None
    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that a job takes, per step unless the name says otherwise."""

    parameters_count: int
    disk: tuple[DiskUse, ...]
    links: tuple[LinkUse, ...]
    extent_chunks: int
    """Chunks that travel in one message, at most."""
    memory: tuple[MemoryUse, ...]
    disk_space_bytes: dict[str, int]
    cores: tuple[CoreUse, ...]
    cores_count: int
    resident_pages_ratio: float
    weights_in_place: bool
    cached_ratio: float
    """Share of the weights that the switch caches."""
    floors: tuple[ResourceFloor, ...]
    step_seconds: float | None
    binding: str | None
    """The resource with the largest floor."""
    written_bytes_per_day: float | None
    endurance_bytes: int | None
    """Rated endurance of a drive of the file system's size; an assumption."""
    endurance_days: float | None

    @property
    def disk_read_bytes(self) -> int:
        """Bytes read by all uses."""
        return sum(use.read_bytes for use in self.disk)

    @property
    def memory_bytes(self) -> int:
        """Memory of all processes."""
        return sum(use.processes_count * use.nbytes for use in self.memory)

    @property
    def disk_written_bytes(self) -> int:
        """Bytes written by all uses."""
        return sum(use.written_bytes for use in self.disk)

    def document(self) -> dict[str, Any]:
        """For results: every number, labelled."""
        uses = [use_document(use, self.parameters_count) for use in self.disk]
        return {
            "label": "predicted",
            "step_seconds": self.step_seconds,
            "binding": self.binding,
            "parameters": self.parameters_count,
            "disk_bytes": {"read": self.disk_read_bytes, "written": self.disk_written_bytes},
            "disk_uses": uses,
            "disk_space_bytes": by_identifier(self.disk_space_bytes),
            "network": [asdict(use) for use in self.links],
            "extent_chunks": self.extent_chunks,
            "memory": [asdict(use) for use in self.memory],
            "memory_bytes": self.memory_bytes,
            "cores": [asdict(use) for use in self.cores],
            "cores_count": self.cores_count,
            "resident_pages_ratio": self.resident_pages_ratio,
            "weights_in_place": self.weights_in_place,
            "cached_ratio": self.cached_ratio,
            "floors": [asdict(floor) for floor in self.floors],
            "written_bytes_per_day": self.written_bytes_per_day,
            "endurance": {
                "label": "assumed", "rated_bytes": self.endurance_bytes,
                "days": self.endurance_days,
            },
        }  # fmt: skip


def estimate(job: JobShape, plan: NodePlan, floors: Floors) -> Estimate:
    """Resources of `job` with `plan`, on a machine with these floors; see the module.

    Raises: ConfigError, with the number that would do, if the state fits neither RAM nor disk.
    """
    check_fits(job, plan, disk_free_bytes=floors.disk.free_bytes if floors.disk else None)
    store = job.store
    kept = kept_in_ram(job, plan, store)
    pages = page_traffic(job, kept, store)
    seconds = _Seconds(job, plan, kept, floors)
    uses = _disk_uses(job, plan, pages, seconds, floors.disk)
    resources = _resources(job, floors, seconds, uses, links=link_uses(job, kept))
    by_name = {each.name: each.seconds for each in resources}
    known = {name: value for name, value in by_name.items() if value}
    step_s = _step_seconds(job, floors, seconds, uses, by_name) if known else None
    written = sum(use.written_bytes for use in uses)
    per_day = written / step_s * DAY_S if step_s else None
    rated = ENDURANCE_WRITES * floors.disk.total_bytes if floors.disk else None
    spilled_bytes = next(use.written_bytes for use in uses if use.name == "spilled sums")
    return Estimate(
        parameters_count=job.parameters_count,
        disk=uses,
        links=link_uses(job, kept),
        extent_chunks=job.layout.extent_chunks,
        memory=memory_uses(job, plan, kept),
        disk_space_bytes=disk_space(job, store, spilled_bytes),
        cores=core_uses(job, plan),
        cores_count=floors.cores_count,
        resident_pages_ratio=len(kept.resident) / store.page_count,
        weights_in_place=kept.places_bytes > 0 or kept.cached_in_place,
        cached_ratio=sum(job.layout.chunks[i].wire_bytes for i in kept.cached) / job.wire_bytes,
        floors=resources,
        step_seconds=step_s,
        binding=max(known, key=lambda name: known[name]) if known else None,
        written_bytes_per_day=per_day,
        endurance_bytes=rated,
        endurance_days=rated / per_day if rated and per_day else None,
    )


def disk_seconds(disk: DiskFloors, use: DiskUse) -> float:
    """Seconds of a use; pulls are reads of a size of their own."""
    if use.name in PULLS:
        return use.read_bytes / disk.pull_bytes_per_s
    return disk.seconds(use.read_bytes, use.written_bytes)


class _Seconds:
    """Floors of what is not on disk; nothing where it was not measured."""

    def __init__(self, job: JobShape, plan: NodePlan, kept: Kept, floors: Floors) -> None:
        cores = floors.cores_count
        busy_cores = min(cores, job.workers * job.worker_threads)
        self.fills_cores = busy_cores >= cores
        self.compute = floors.compute_s
        self.is_compute_measured = self.compute is not None
        if self.compute is None and floors.matmul_flops_per_s:
            operations = OPERATIONS * job.parameters_count * job.tokens_per_step
            self.compute = operations / (floors.matmul_flops_per_s * busy_cores / cores)
        if job.compute_seconds_min:
            self.compute = max(self.compute or 0.0, job.compute_seconds_min)
        self.update: float | None = None
        if floors.update_parameters_per_s:
            self.update = job.trainable_elems / floors.update_parameters_per_s
        self.copies = (0.0, 0.0)
        """Seconds of copies of weights by workers, for forward and for backward."""
        self.pass_s = 0.0
        """Seconds of gradients and weights through memory, beside these copies."""
        if job.transport == "shm" and floors.copy_bytes_per_s:
            forward, backward = copied_bytes(job, kept)
            rate = floors.copy_bytes_per_s
            self.copies = forward / rate, backward / rate
            self.pass_s = memory_pass_bytes(job) / rate
        self.reads_wait_for_copies = plan.outgoing_bytes < FEW_EXTENTS * job.layout.extent_bytes

    def forward(self) -> float:
        """Compute of the forward."""
        return FORWARD_SHARE * (self.compute or 0.0)

    def backward(self) -> float:
        """Compute of the backward."""
        return (1 - FORWARD_SHARE) * (self.compute or 0.0)


def _disk_uses(
    job: JobShape, plan: NodePlan, pages: PageTraffic, seconds: _Seconds, disk: DiskFloors | None
) -> tuple[DiskUse, ...]:
    """By use, with the pulls that updates hand out taken off."""
    update_s = disk_seconds(disk, pages.update) if disk else 0.0
    forward = pages.forward.read_bytes
    if job.update == "at_step" and update_s > seconds.forward():
        forward = 0
    elif update_s > seconds.backward():
        forward -= pages.window.read_bytes
    waiting = max(0.0, 1 - seconds.backward() / update_s) if update_s else 0.0
    return (
        pages.update,
        DiskUse(name=pages.forward.name, read_bytes=forward),
        pages.backward,
        spilled(job, plan, waiting_ratio=waiting),
        pages.manifest,
    )


def _resources(
    job: JobShape, floors: Floors, seconds: _Seconds, uses: tuple[DiskUse, ...],
    *, links: Sequence[LinkUse],
) -> tuple[ResourceFloor, ...]:  # fmt: skip
    disk_s = flush_s = None
    moved = sum(use.read_bytes + use.written_bytes for use in uses)
    if not moved:
        disk_s = flush_s = 0.0
    elif floors.disk:
        disk_s = sum(disk_seconds(floors.disk, use) for use in uses)
        is_flushed = job.durability == "step" and not job.is_in_ram
        flush_s = FLUSHES_A_STEP * floors.disk.flush_s if is_flushed else 0.0
    exchange_s = None
    if job.transport == "shm" and floors.copy_bytes_per_s:
        exchange_s = seconds.pass_s + sum(seconds.copies)
    elif floors.socket_bytes_per_s:
        busiest = max(use.into_bytes + use.out_of_bytes for use in links)
        exchange_s = busiest / floors.socket_bytes_per_s
    how = "a pass of memory" if job.transport == "shm" else "sockets"
    return (
        ResourceFloor(name="disk", seconds=disk_s, label="measured",
                      text="reads and writes in the state's directory"),
        ResourceFloor(name="compute", seconds=seconds.compute,
                      label="measured" if seconds.is_compute_measured else "assumed",
                      text="forward and backward of a block and the rest"
                      if seconds.is_compute_measured else
                      "6 operations a parameter and token, at the rate of a matrix product"),
        ResourceFloor(name="exchange", seconds=exchange_s, label="measured", text=how),
        ResourceFloor(name="update", seconds=seconds.update, label="measured",
                      text=f"{floors.update_kernel or 'the'} kernel"),
        ResourceFloor(name="flush", seconds=flush_s, label="measured",
                      text=f"{FLUSHES_A_STEP} flushes"),
    )  # fmt: skip


def _step_seconds(
    job: JobShape, floors: Floors, seconds: _Seconds, uses: Sequence[DiskUse],
    by_name: dict[str, float | None],
) -> float:  # fmt: skip
    """The two phases; see the module."""
    disk = [disk_seconds(floors.disk, use) if floors.disk else 0.0 for use in uses]
    update_s, forward_s, backward_s, spilled_s, manifest_s = disk
    pages_s = update_s + spilled_s + manifest_s
    pass_s = seconds.pass_s or by_name["exchange"] or 0.0
    moving_s = max(pass_s, by_name["update"] or 0.0)
    copy_forward_s, copy_backward_s = seconds.copies
    is_streaming = job.update == "streaming"

    def phase(disk_s: float, compute_s: float, copy_s: float, *, writes: bool) -> float:
        cores = (compute_s, copy_s + (moving_s if writes else 0.0))
        cores_s = sum(cores) if seconds.fills_cores else max(cores)
        if writes:
            disk_s += pages_s
        elif disk_s and seconds.reads_wait_for_copies:
            disk_s += copy_s
        return max(disk_s, cores_s)

    forward = phase(forward_s, seconds.forward(), copy_forward_s, writes=not is_streaming)
    backward = phase(backward_s, seconds.backward(), copy_backward_s, writes=is_streaming)
    quiet = forward if is_streaming else backward
    return forward + backward + max(0.0, (by_name["flush"] or 0.0) - quiet)

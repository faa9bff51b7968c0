"""The seconds of a step as the cores play it, with the floors of this machine. Pure.

`luwu/predict/driven/machine_play.py` plays who waits for whom; here its threads and its disk are
given what was measured before a run (`luwu/measure/floors.py`):

    compute     of a worker: its share of the cores' time, two thirds of it backward
    copies      a byte read and written, by one core, at the rate of all cores
    sums        a byte read, and its share of the sum written
    update      the kernel, and for each page the requests and checksums of the disk
    links       half of a socket's time at each end; none in shared memory
    disk        mixed reads and writes, pulls, flushes
    crowding    the share that was fitted: what processes lose to one another

Played are steps that stream through a switch, of as many extents as are played within seconds. For
all others the floors alone answer (`plan.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from luwu.estimate.shape import ROOT, JobShape, Kept
from luwu.layout import SUM_BYTES, Share
from luwu.measure.floors import Floors
from luwu.predict.driven.cores import OWN, Cores
from luwu.predict.driven.machine_play import predict_machine_step
from luwu.predict.hardware.software import fitted
from luwu.predict.machine.machine import MachineFloors, MachineJob, MachineStep
from luwu.report.lanes import Lanes, make_lanes
from switch_emu.node.pages import store_config
from switch_emu.node.plan import NodePlan
from switch_emu.store.tier import pages_that_fit

FORWARD_SHARE: Final = 1 / 3
"""The share of compute that the forward takes."""
EXTENTS_MAX: Final = 2000
"""The most extents, summed over the workers, that are played: 550 take half a second."""
STEPS: Final = 4


def played_step(
    job: JobShape, plan: NodePlan, kept: Kept, floors: Floors, compute_s: float | None,
    cores: Cores = OWN,
) -> MachineStep | None:  # fmt: skip
    """A step of `job`, whose workers compute for `compute_s` on the cores; None: not played."""
    is_short = len(job.layout.extents) * job.workers <= EXTENTS_MAX
    if job.update != "streaming" or not job.has_switch or not is_short or compute_s is None:
        return None
    machine = _floors(job, floors, compute_s)
    if machine is None:
        return None
    return predict_machine_step(machine_job(job, plan, kept), machine, cores=cores, steps=STEPS)


def played_lanes(step: MachineStep) -> Lanes | None:
    """The last step that was played as lanes, stretched by what crowding adds; None: not shown."""
    spans = {name: list(each) for name, each in step.spans.items()}
    forward = spans.get("forward", [])
    spans["compute"] = spans.pop("compute", []) + spans.pop("forward", [])
    if not step.shown_s:
        return None
    stretch = step.step_s / step.shown_s
    stretched = {
        name: [(start * stretch, end * stretch) for start, end in each]
        for name, each in spans.items()
    }
    pale = [(start * stretch, end * stretch) for start, end in forward]
    return make_lanes(STEPS - 1, step.step_s, stretched, pale=pale)


def machine_job(
    job: JobShape, plan: NodePlan, kept: Kept, *, nodes: int = 1, replicas: int = 1
) -> MachineJob:
    """The bytes and processes of a step, in the form that is played. `plan`: of each node; `kept`:
    of a single one."""
    at_nodes = dict.fromkeys(kept.resident, 1)
    if nodes > 1:
        at_nodes = _resident_at(job, plan, nodes, replicas)
    chunks: list[list[int]] = [[] for _ in job.layout.units]
    resident: list[list[int]] = [[] for _ in job.layout.units]
    for chunk in job.layout.chunks:
        chunks[chunk.unit].append(chunk.wire_bytes)
        resident[chunk.unit].append(at_nodes.get(chunk.index, 0))
    return MachineJob(
        chunks=tuple(tuple(each) for each in chunks if each),
        extent_chunks=job.layout.extent_chunks, workers=job.workers,
        in_place=kept.places_bytes > 0 and nodes == 1, out_of_core=not job.is_in_ram,
        resident=tuple(tuple(each) for each in resident if each),
        cache_bytes=job.switch_plan.cache_bytes if kept.cached or nodes > 1 else 0,
        caches_in_place=kept.cached_in_place and nodes == 1,
        nodes=nodes, replicas=replicas,
        updates_count=plan.updates_count, reads_count=plan.reads_count,
        ahead=max(1, job.prefetch_units), compute_threads=job.worker_threads,
    )  # fmt: skip


def _resident_at(job: JobShape, plan: NodePlan, nodes: int, replicas: int) -> dict[int, int]:
    """Bitmap of the nodes that keep the page of a chunk in RAM, by chunk."""
    description = replace(job, layout=replace(job.layout, node_count=nodes)).description
    found: dict[int, int] = {}
    for node in range(nodes):
        chunks = Share(description.layout, node, replicas).chunks()
        for page in pages_that_fit(store_config(description, node, replicas), plan.resident_bytes):
            found[chunks[page]] = found.get(chunks[page], 0) | 1 << node
    return found


def _floors(job: JobShape, floors: Floors, compute_s: float) -> MachineFloors | None:
    """Seconds of one core, or of the disk, where floors are of all cores; None: not measured."""
    copied, updated = floors.copy_bytes_per_s, floors.update_parameters_per_s
    if floors.messages is None or not copied or not updated:
        return None
    cores, disk = floors.cores_count, floors.disk
    busy = min(cores, job.workers * job.worker_threads)
    own_s = compute_s * busy / job.workers / job.worker_threads
    core_s_per_byte = cores / copied
    page_bytes = job.layout.chunk_bytes
    update_s = min(cores, 2) / updated / SUM_BYTES
    reading_s = 2 * core_s_per_byte
    rates: dict[str, float] = {}
    if disk is not None and not job.is_in_ram:
        update_s += disk.page_cpu_s / page_bytes
        reading_s += disk.pull_cpu_s / page_bytes
        rates = {
            "write_s_per_byte": 1 / disk.write_bytes_per_s,
            "mixed_s_per_byte": 2 / disk.mixed_bytes_per_s,
            "pull_s_per_byte": 1 / disk.pull_bytes_per_s,
            "flush_s": disk.flush_s if job.durability == "step" else 0.0,
        }
    link_s = 0.0
    if floors.socket_bytes_per_s and job.transport != "shm":
        link_s = 0.5 / floors.socket_bytes_per_s
    root = [chunk.elems for chunk in job.layout.chunks
            if job.layout.units[chunk.unit].name == ROOT]  # fmt: skip
    return MachineFloors(
        cores=cores, forward_s=FORWARD_SHARE * own_s, backward_s=(1 - FORWARD_SHARE) * own_s,
        root_ratio=sum(root) / sum(chunk.elems for chunk in job.layout.chunks),
        end_s=floors.messages.end_s, handed_s=floors.messages.handed_s, send_s_per_byte=link_s,
        receive_s_per_byte=link_s,
        gradient_s_per_byte=2 * core_s_per_byte, weights_s_per_byte=2 * core_s_per_byte,
        sum_s_per_byte=(1 + 1 / job.workers) * core_s_per_byte,
        update_s_per_byte=update_s, reading_s_per_byte=reading_s, **rates,
        crowding=fitted("crowding"),
    )  # fmt: skip

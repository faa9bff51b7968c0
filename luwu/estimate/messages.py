"""Messages of a step, counted as the cores send them, and what they cost the processors.

An *end* is a message that a process sends or receives, with all that its state machine does for it.
How many an extent has that is pulled or pushed, a unit that is asked for, and the step itself, the
cores say: they are played (`luwu/predict/driven/counting.py`). Without a switch the node asks its
own one, whose ends are the node's; two of them are by a queue in memory. What is repeated, goes on
raw or is given back is not counted.

An extent is handed to a thread of the node and its end is heard of: twice by an update (`updated`,
`written`), once by a read of weights. Where its pages lie on disk, the requests of each take a
processor too.

A process takes its messages one after the other, so none is done sooner than the busiest; and all
of them share the cores:

    seconds = max(ends of the busiest x end,
                  (ends of all x end + handed x hand-over + requests) / cores)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luwu.estimate.shape import JobShape, Kept
from luwu.measure.floors import Floors
from luwu.predict.driven.cores import OWN, Cores
from luwu.predict.driven.counting import Ends, ends_of_step

HANDED_BY_UPDATE: Final = 2
HANDED_BY_READ: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUse:
    """Messages of a step at one process of a role."""

    role: str
    processes_count: int
    forward_ends: int
    """Message ends of pulls for the forward."""
    backward_ends: int
    """Message ends of pulls for the backward, of pushes, and of the step itself."""

    @property
    def ends(self) -> int:
        """All."""
        return self.forward_ends + self.backward_ends


def message_uses(
    job: JobShape, cores: Cores = OWN, *, cached: frozenset[int] = frozenset()
) -> tuple[MessageUse, ...]:
    """By role; see the module. `cached`: chunks that the switch sends again without the node."""
    extents = job.layout.extents
    units = range(len(job.layout.units))
    units_again = sum(job.pulls_twice(unit) for unit in units)
    again = sum(job.pulls_twice(extent.unit) for extent in extents)
    pushed = sum(extent.trainable for extent in extents)
    ends = ends_of_step(job.workers, job.update, cores, job.layout.extent_chunks)
    again_cached = [e for e in extents if e.chunks[0] in cached and job.pulls_twice(e.unit)]
    spared = ends["node"].pull * len(again_cached)
    spared += ends["node"].request * len({extent.unit for extent in again_cached})

    def use(role: str, count: int, each: Ends, spared: float = 0.0) -> MessageUse:
        forward = each.request * len(units) + each.pull * len(extents)
        backward = each.request * units_again + each.pull * again + each.push * pushed + each.step
        backward -= spared
        return MessageUse(
            role=role, processes_count=count, forward_ends=round(forward),
            backward_ends=round(backward),
        )  # fmt: skip

    worker = use("worker", job.workers, ends["worker"])
    if not job.has_switch:
        return (worker, use("node", 1, ends["switch"]))
    return (
        worker, use("switch", 1, ends["switch"], spared), use("node", 1, ends["node"], spared)
    )  # fmt: skip


def pages_seconds(job: JobShape, kept: Kept, floors: Floors) -> float:
    """Seconds of a processor that pages take beside the update: hand-overs and requests."""
    assert floors.messages is not None
    chunks, extents = job.layout.chunks, job.layout.extents
    updates = sum(extent.trainable for extent in extents)
    reads = pages_read = 0
    if not kept.places_bytes:
        read = [extent for extent in extents if extent.chunks[0] not in kept.cached]
        reads = sum(1 + job.pulls_twice(extent.unit) for extent in read)
        in_ram = kept.resident | kept.cached
        away = [chunk for chunk in chunks if chunk.index not in in_ram]
        pages_read = sum(1 + job.pulls_twice(chunk.unit) for chunk in away)
    seconds = (HANDED_BY_UPDATE * updates + HANDED_BY_READ * reads) * floors.messages.handed_s
    if floors.disk and not job.is_in_ram:
        pages_updated = sum(chunk.trainable for chunk in chunks)
        seconds += pages_updated * floors.disk.page_cpu_s + pages_read * floors.disk.pull_cpu_s
    return seconds


def message_seconds(job: JobShape, kept: Kept, floors: Floors) -> tuple[float, float] | None:
    """Seconds of the forward's messages and of all others; None if they were not measured."""
    if floors.messages is None:
        return None
    uses, end_s = message_uses(job, cached=kept.cached), floors.messages.end_s
    ends = sum(use.processes_count * use.ends for use in uses)
    busiest_s = max(use.ends for use in uses) * end_s
    all_s = ends * end_s + pages_seconds(job, kept, floors)
    seconds = max(busiest_s, all_s / floors.cores_count)
    share = uses[0].forward_ends / uses[0].ends
    return seconds * share, seconds * (1 - share)

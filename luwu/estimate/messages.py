"""Messages of a step, counted as the cores send them, and what they cost the processors.

An *end* is a message that a process sends or receives, with all that its state machine does for it.
Of each chunk, with W workers:

                                    each worker     switch      node
    pushed     Push, Received       2               2 W + 2     2
    pulled     Pull, Weights        2               2 W + 2     2

    source     luwu/nic/core    switch_emu/switch/core   switch_emu/node/core

Without a switch the node asks its own one: 2 W + 2 there, two of them by a queue in memory. A step
has Begin, Received, Commit, Verdict and Decided besides. What is repeated, goes on raw or is given
back is not counted.

A page is handed to a thread of the node and its end is heard of: twice by an update (`updated`,
`written`), once by a read of weights. Where it lies on disk, its requests take a processor too.

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

ENDS: Final = 2
"""Of a chunk that is pushed or pulled, at each of two processes."""
STATEMENTS: Final = 5
"""Begin, Received, Commit, Verdict, Decided."""
HANDED_BY_UPDATE: Final = 2
HANDED_BY_READ: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUse:
    """Messages of a step at one process of a role."""

    role: str
    processes_count: int
    forward_ends: int
    """Of pulls for the forward."""
    backward_ends: int
    """Of pulls for the backward, of pushes, and of the step itself."""

    @property
    def ends(self) -> int:
        """All."""
        return self.forward_ends + self.backward_ends


def message_uses(job: JobShape) -> tuple[MessageUse, ...]:
    """By role; see the module."""
    chunks = job.layout.chunks
    forward = len(chunks)
    backward = sum(job.pulls_twice(chunk.unit) for chunk in chunks)
    backward += sum(chunk.trainable for chunk in chunks)

    def use(role: str, count: int, ends: int) -> MessageUse:
        return MessageUse(
            role=role, processes_count=count, forward_ends=ends * forward,
            backward_ends=ends * backward + STATEMENTS * ends // ENDS,
        )  # fmt: skip

    gathering = ENDS * (job.workers + 1)
    worker = use("worker", job.workers, ENDS)
    if not job.has_switch:
        return (worker, use("node", 1, gathering))
    return (worker, use("switch", 1, gathering), use("node", 1, ENDS))


def pages_seconds(job: JobShape, kept: Kept, floors: Floors) -> float:
    """Seconds of a processor that pages take beside the update: hand-overs and requests."""
    assert floors.messages is not None
    updates = sum(chunk.trainable for chunk in job.layout.chunks)
    read = [
        chunk.index in kept.resident
        for chunk in job.layout.chunks
        for _ in range(1 + job.pulls_twice(chunk.unit))
        if not kept.places_bytes
    ]
    handed = HANDED_BY_UPDATE * updates + HANDED_BY_READ * len(read)
    seconds = handed * floors.messages.handed_s
    if floors.disk and not job.is_in_ram:
        seconds += updates * floors.disk.page_cpu_s + read.count(False) * floors.disk.pull_cpu_s
    return seconds


def message_seconds(job: JobShape, kept: Kept, floors: Floors) -> tuple[float, float] | None:
    """Seconds of the forward's messages and of all others; None if they were not measured."""
    if floors.messages is None:
        return None
    uses, end_s = message_uses(job), floors.messages.end_s
    ends = sum(use.processes_count * use.ends for use in uses)
    busiest_s = max(use.ends for use in uses) * end_s
    all_s = ends * end_s + pages_seconds(job, kept, floors)
    seconds = max(busiest_s, all_s / floors.cores_count)
    share = uses[0].forward_ends / uses[0].ends
    return seconds * share, seconds * (1 - share)

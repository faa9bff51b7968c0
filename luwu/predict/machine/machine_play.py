"""Steps of LuWu played on the cores of one machine: who works when, and who waits for whom.

    worker w   a thread that computes, one for messages, one for its link
    switch     a thread for messages and sums, one for its link
    node       a thread for messages, one for its link, some for updates, some for reads; a disk

Each does what X5 to X9 say (machine.py), chunk by chunk; all share the cores (machine_cores.py). A
unit's weights are asked for some units before they are used, those of the next step when the last
gradient is pushed. A step's weights are used after its verdict; the worker's step ends when all of
its pushes were received.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from statistics import mean
from typing import Any, TypeAlias

import simpy

from luwu.predict.machine.machine import (
    RECORD,
    MachineFloors,
    MachineJob,
    MachineStep,
    compute_by_unit,
)
from luwu.predict.machine.machine_cores import Cores, Device, Thread

Process: TypeAlias = Generator[simpy.events.Event, Any, None]
Use: TypeAlias = tuple[int, int, int]
"""(step, forward 0 or backward 1, unit)"""
STEPS = 5
COUNTED = 3
"""The last ones, when all threads are in their stride."""
STATEMENTS = 4
"""Begin, Received, Commit, Decided; the verdict is played."""


def predict_machine_step(job: MachineJob, floors: MachineFloors) -> MachineStep:
    """The time of a step (X10)."""
    world = _World(job, floors)
    world.play()
    ends_s = [max(each) for each in zip(*world.ends_s, strict=True)]
    steps_s = [later - earlier for earlier, later in pairwise(ends_s)]
    played_s = mean(steps_s[-COUNTED:])
    crowding_s = floors.crowding * played_s
    return MachineStep(
        step_s=played_s + crowding_s,
        crowding_s=crowding_s,
        work_s={kind: seconds / STEPS for kind, seconds in world.work_s.items()},
        disk_s=world.disk.busy_s / STEPS,
        cores=floors.cores,
    )


class _World:
    """Threads, and what each waits for."""

    def __init__(self, job: MachineJob, floors: MachineFloors) -> None:
        self.job, self.floors = job, floors
        self.work_s: dict[str, float] = {}
        self.env = simpy.Environment()
        self.cores = Cores(self.env, floors.cores)
        self.disk = Device(self.env)
        self.switch, self.switch_link = self._thread(), self._thread()
        self.node, self.node_link = self._thread(), self._thread()
        self.updaters = self._crew(job.updates_count)
        self.readers = self._crew(job.reads_count)
        self.workers = [_Worker(self, self._thread) for _ in range(job.workers)]
        self.forward_s = compute_by_unit(job, floors, floors.forward_s)
        self.backward_s = compute_by_unit(job, floors, floors.backward_s)
        self._pushes: dict[tuple[int, int, int], int] = {}
        self._updated: dict[tuple[int, int, int], simpy.Event] = {}
        self._left: dict[int, int] = {}
        """Updates of a step that are not done."""
        self._at_switch: dict[tuple[Use, int], simpy.Event] = {}

    @property
    def ends_s(self) -> list[list[float]]:
        """When each worker was done with each step."""
        return [worker.ends_s for worker in self.workers]

    def play(self) -> None:
        """All steps, to the last write."""
        chunks = [(u, c) for u, sizes in enumerate(self.job.chunks) for c in range(len(sizes))]
        for step in range(STEPS + 1):
            self._left[step] = len(chunks)
            for unit, chunk in chunks:
                self._updated[step, unit, chunk] = self.env.event()
        for unit, chunk in chunks:
            self._updated[0, unit, chunk].succeed()
        for worker in self.workers:
            self.env.process(worker.run())
        self.env.run()

    def _thread(self) -> Thread:
        return Thread(self.env, self.cores, self.work_s)

    def _crew(self, count: int) -> simpy.Store:
        crew = simpy.Store(self.env)
        crew.items = [self._thread() for _ in range(count)]
        return crew

    # ---------------------------------------------------------------------- gradients

    def pushed(self, step: int, unit: int, chunk: int) -> Process:
        """A worker's gradient has left it (X5)."""
        floors, workers = self.floors, self.job.workers
        nbytes = self.job.chunks[unit][chunk]
        yield self.switch_link.do("wire", nbytes * floors.receive_s_per_byte)
        yield self.switch.do("messages", floors.end_s)
        key = step, unit, chunk
        self._pushes[key] = self._pushes.get(key, 0) + 1
        if self._pushes[key] < workers:
            return
        yield self.switch.do("sums", workers * nbytes * floors.sum_s_per_byte)
        yield self.switch.do("messages", floors.end_s)
        yield self.switch_link.do("wire", nbytes * floors.send_s_per_byte)
        yield self.node_link.do("wire", nbytes * floors.receive_at_node_s_per_byte)
        yield self.node.do("messages", floors.end_s)
        self.env.process(self._receipt(step))
        self.env.process(self._update(step, unit, chunk))

    def _receipt(self, step: int) -> Process:
        yield self.node.do("messages", self.floors.end_s)
        yield self.switch.do("messages", (1 + self.job.workers) * self.floors.end_s)
        for worker in self.workers:
            self.env.process(worker.heard_receipt(step))

    def _update(self, step: int, unit: int, chunk: int) -> Process:
        """A page is read, updated, handed out and written (X6)."""
        floors, nbytes = self.floors, self.job.chunks[unit][chunk]
        thread = yield self.updaters.get()
        record, is_read = RECORD * nbytes, not self.job.stays(unit, chunk)
        write_s = floors.mixed_s_per_byte / 2 if is_read else floors.write_s_per_byte
        if is_read:
            yield self.disk.do(record * floors.mixed_s_per_byte / 2)
        yield thread.do("updates", nbytes * floors.update_s_per_byte)
        yield self.node.do("hand-overs", floors.handed_s)
        self._updated[step + 1, unit, chunk].succeed()
        self._left[step] -= 1
        if not self._left[step]:
            self.env.process(self._verdict(step))
        if self.job.out_of_core:
            yield self.disk.do(record * write_s)
        self.updaters.put(thread)
        yield self.node.do("hand-overs", floors.handed_s)

    def _verdict(self, step: int) -> Process:
        yield self.node.do("messages", self.floors.end_s)
        yield self.switch.do("messages", (1 + self.job.workers) * self.floors.end_s)
        for worker in self.workers:
            self.env.process(worker.heard_verdict(step))

    def state(self) -> None:
        """What a step says beside its chunks: nobody waits for it."""
        ends_s = STATEMENTS * self.floors.end_s
        self.switch.do("messages", (1 + self.job.workers) / self.job.workers * ends_s)
        self.node.do("messages", ends_s / self.job.workers)

    # ---------------------------------------------------------------------- weights

    def weights(self, use: Use, chunk: int) -> simpy.Event:
        """Weights of a chunk at the switch, asked for once (X7)."""
        key = use, chunk
        if key not in self._at_switch:
            self._at_switch[key] = self.env.process(self._fetch(use, chunk))
        return self._at_switch[key]

    def _fetch(self, use: Use, chunk: int) -> Process:
        floors, (step, _, unit) = self.floors, use
        nbytes, key = self.job.chunks[unit][chunk], (step, unit, chunk)
        yield self.switch.do("messages", floors.end_s)
        yield self.node.do("messages", floors.end_s)
        if not self._updated[key].triggered:
            yield self._updated[key]  # handed out on its way
        elif not self.job.in_place:
            thread = yield self.readers.get()
            if not self.job.stays(unit, chunk):
                yield self.disk.do(nbytes * floors.pull_s_per_byte)
            yield thread.do("reads", nbytes * floors.reading_s_per_byte)
            self.readers.put(thread)
            yield self.node.do("hand-overs", floors.handed_s)
        yield self.node.do("messages", floors.end_s)
        yield self.node_link.do("wire", nbytes * floors.send_s_per_byte)
        yield self.switch_link.do("wire", nbytes * floors.receive_s_per_byte)
        yield self.switch.do("messages", floors.end_s)


class _Worker:
    """A worker: its loop, and what it asks for."""

    def __init__(self, world: _World, thread: Any) -> None:
        self._world = world
        self._compute, self._messages, self._link = thread(), thread(), thread()
        self._helpers = [thread() for _ in range(world.job.compute_threads - 1)]
        self.ends_s: list[float] = []
        self._pulled: dict[Use, simpy.Event] = {}
        self._receipts: dict[int, int] = {}
        self._received: dict[int, simpy.Event] = {}
        self._verdicts: dict[int, simpy.Event] = {-1: world.env.event().succeed()}

    def run(self) -> Process:
        """Forward, backward, step; the main thread."""
        world, job = self._world, self._world.job
        for step in range(STEPS):
            self._verdicts[step] = world.env.event()
            self._received[step] = world.env.event()
            self._receipts[step] = sum(map(len, job.chunks))
            uses = self._uses(step)
            self._ask(uses[: job.units if job.in_place else job.ahead + 1])
            yield self._verdicts[step - 1]
            for index, use in enumerate(uses):
                self._ask(uses[index : index + job.ahead + 1])
                yield self._pulled[use]
                yield from self._used(*use)
            yield from self._push(step, 0)
            self._messages.do("messages", STATEMENTS * world.floors.end_s)
            world.state()
            yield self._received[step]
            self.ends_s.append(world.env.now)

    def _uses(self, step: int) -> list[Use]:
        """Units as they are used; in place, those of the backward are there already."""
        units = range(self._world.job.units)
        backward = [(step, 1, unit) for unit in reversed(units[1:])]
        for use in backward if self._world.job.in_place else ():
            self._pulled[use] = self._world.env.event().succeed()
        return [(step, 0, unit) for unit in units] + backward

    def _used(self, step: int, way: int, unit: int) -> Process:
        """Compute of a unit: the root's after the blocks' forward."""
        world = self._world
        if way == 0 and unit > 0:
            yield self._computed(world.forward_s[unit])
        if way == 0 and unit == world.job.units - 1:
            yield self._computed(world.forward_s[0] + world.backward_s[0])
        if way == 1:
            yield self._computed(world.backward_s[unit])
            yield from self._push(step, unit)

    def _computed(self, seconds: float) -> simpy.Event:
        """All threads of the compute have done their share."""
        threads = [self._compute, *self._helpers]
        share = seconds / len(threads)
        return self._world.env.all_of([each.do("compute", share) for each in threads])

    def _push(self, step: int, unit: int) -> Process:
        world = self._world
        for chunk, nbytes in enumerate(world.job.chunks[unit]):
            yield self._compute.do("copies", nbytes * world.floors.gradient_s_per_byte)
            world.env.process(self._send(step, unit, chunk))

    def _send(self, step: int, unit: int, chunk: int) -> Process:
        world, nbytes = self._world, self._world.job.chunks[unit][chunk]
        yield self._messages.do("messages", world.floors.end_s)
        yield self._link.do("wire", nbytes * world.floors.send_s_per_byte)
        yield world.env.process(world.pushed(step, unit, chunk))

    def _ask(self, uses: list[Use]) -> None:
        for use in uses:
            if use not in self._pulled:
                self._pulled[use] = self._world.env.process(self._pull(use))

    def _pull(self, use: Use) -> Process:
        chunks = range(len(self._world.job.chunks[use[2]]))
        yield self._world.env.all_of(
            [self._world.env.process(self._pull_chunk(use, chunk)) for chunk in chunks]
        )

    def _pull_chunk(self, use: Use, chunk: int) -> Process:
        world, floors = self._world, self._world.floors
        nbytes = world.job.chunks[use[2]][chunk]
        yield self._messages.do("messages", floors.end_s)
        yield world.switch.do("messages", floors.end_s)
        yield world.weights(use, chunk)
        yield world.switch.do("messages", floors.end_s)
        yield world.switch_link.do("wire", nbytes * floors.send_s_per_byte)
        yield self._link.do("wire", nbytes * floors.receive_s_per_byte)
        yield self._messages.do("messages", floors.end_s)
        if not world.job.in_place:
            yield self._messages.do("copies", nbytes * floors.weights_s_per_byte)

    def heard_receipt(self, step: int) -> Process:
        """One of our pushes was received."""
        yield self._messages.do("messages", self._world.floors.end_s)
        self._receipts[step] -= 1
        if not self._receipts[step]:
            self._received[step].succeed()

    def heard_verdict(self, step: int) -> Process:
        """All of a step's updates are made."""
        yield self._messages.do("messages", self._world.floors.end_s)
        self._verdicts[step].succeed()

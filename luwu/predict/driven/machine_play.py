"""Steps of LuWu played on the cores of one machine: its own state machines say who sends what.

    worker w   a thread that computes, one for messages, one for its link       `NicCore`
    switch     a thread for messages and sums, one for its link                 `SwitchCore`
    node       a thread for messages, one for its link, some for updates, some  `NodeCore`
               for reads; a disk, which several nodes share

Here stand what each thread takes (X5 to X9, machine.py) and the script of a worker; all threads
share the processors (machine_cores.py). A worker asks for a unit's weights some units before they
are used, for those of the next step when the last gradient is pushed. Its step ends when all of its
pushes were received; when weights may be used, what waits for what, and every message is decided by
the cores, so a decision that is changed there changes what is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any, TypeAlias

import simpy

from luwu.base.limits import CHUNK_BYTES_STEP
from luwu.layout import SUM_BYTES, Layout, Parameter, Unit
from luwu.nic.core import actions as nic
from luwu.predict.driven.cores import HYPER, JOB, NEVER, OWN, Cores, worker_name
from luwu.predict.driven.driven_node import DrivenNode
from luwu.predict.driven.driven_switch import DrivenSwitch
from luwu.predict.driven.links import Arrived, Token
from luwu.predict.events.engines import Process, Record
from luwu.predict.machine.machine import (
    RECORD,
    MachineFloors,
    MachineJob,
    MachineStep,
    compute_by_unit,
)
from luwu.predict.machine.machine_cores import Cores as Processors
from luwu.predict.machine.machine_cores import Device, Thread
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import actions as do
from switch_emu.switch.core.actions import Cache, Sum, SwitchLimits
from switch_emu.switch.core.parents import parent_names

Span: TypeAlias = tuple[float, float]
Use: TypeAlias = tuple[int, int, int]
"""(step, forward 0 or backward 1, unit)"""
STEPS = 5
COUNTED = 3
"""The last ones, when all threads are in their stride."""
ROOM_BYTES = 1 << 40
"""Memory of switch and node: nothing waits for room."""
FLUSHES_TO_PREPARE = 2
"""One flushes the pages, one their table."""
QUEUED = 2
"""Updates that the core may have under way beyond the threads, so that none ever waits."""


def predict_machine_step(
    job: MachineJob, floors: MachineFloors, *, cores: Cores = OWN, steps: int = STEPS
) -> MachineStep:
    """The time of a step (X10)."""
    world = _World(job, floors, cores, steps)
    world.env.run()
    ends_s = [max(each) for each in zip(*world.ends_s, strict=True)]
    assert len(ends_s) == steps, f"the cores stopped: the node waits for {world.waits_for()}"
    steps_s = [later - earlier for earlier, later in pairwise(ends_s)]
    work_s = {kind: seconds / steps for kind, seconds in world.work_s.items()}
    # The first step has more work than those that are counted, and work is that of all.
    played_s = max(mean(steps_s[-COUNTED:]), sum(work_s.values()) / floors.cores)
    crowding_s = floors.crowding * played_s
    return MachineStep(
        step_s=played_s + crowding_s,
        crowding_s=crowding_s,
        work_s=work_s,
        disk_s=world.disk.busy_s / steps,
        cores=floors.cores,
        spans=world.spans_of_last_step(),
        shown_s=world.workers[0].ends_s[-1] - world.workers[0].ends_s[-2],
    )


class _Ends:
    """A process's ends of its connections: a thread for messages, and one for bytes on a wire."""

    def __init__(self, messages: Thread, link: Thread) -> None:
        self.messages, self.link = messages, link


class _World:
    """Threads and cores, and what passes between them."""

    def __init__(self, job: MachineJob, floors: MachineFloors, cores: Cores, steps: int) -> None:
        self.job, self.floors, self.steps, self.cores = job, floors, steps, cores
        self.work_s: dict[str, float] = {}
        self.env = simpy.Environment()
        self._processors = Processors(self.env, floors.cores)
        self.disk = Device(self.env)
        self.description = Description(
            layout=_layout(job), optimizer="adamw", update="streaming", state_fields=("m", "v")
        )
        self.page_bytes = [nbytes for unit in job.chunks for nbytes in unit]
        """Bytes of each chunk of the layout."""
        self.costs = [
            sum(self.page_bytes[index] for index in extent.chunks)
            for extent in self.description.layout.extents
        ]
        """Bytes of each extent."""
        self._switch_ends = self.ends()
        names = parent_names(job.nodes)
        self._node_ends = {name: self.ends() for name in names}
        self.workers = [_Worker(self, rank) for rank in range(job.workers)]
        self._by_name = {worker_name(worker.rank): worker for worker in self.workers}
        self._switch = DrivenSwitch(
            self.env, workers=job.workers, send=self._send_from_switch, work=self._switch_work,
            cores=cores, nodes=job.nodes, replicas=job.replicas,
            caches_in_place=job.caches_in_place,
            limits=SwitchLimits(
                slot_bytes_max=ROOM_BYTES, copies_bytes_max=ROOM_BYTES,
                push_window_bytes=ROOM_BYTES, extent_chunks=job.extent_chunks,
                cache_bytes_max=job.cache_bytes,
            ),
        )  # fmt: skip
        self._crew: list[Thread] = []
        self._nodes = {name: self._node(number, name) for number, name in enumerate(names)}

    def _node(self, number: int, name: str) -> DrivenNode:
        """One of the optimizer nodes, which all use one disk."""
        job, crew = self.job, self._threads(self.job.updates_count)
        self._crew += crew
        return DrivenNode(
            self.env, Record(), description=self.description, world_size=job.workers,
            limits=do.NodeLimits(
                sum_bytes_max=ROOM_BYTES, push_window_bytes=ROOM_BYTES,
                updates_max=job.updates_count + QUEUED, reads_max=job.reads_count,
                extent_chunks=job.extent_chunks,
            ),
            threads=(crew, self._threads(job.reads_count)),
            work=_MachineWork(self, self._node_ends[name].messages, number),
            send=partial(self._send_from_node, name), cores=self.cores,
            number=do.NodeNumber(number=number, count=job.nodes, replicas=job.replicas),
        )  # fmt: skip

    @property
    def ends_s(self) -> list[list[float]]:
        """When each worker was done with each step."""
        return [worker.ends_s for worker in self.workers]

    def spans_of_last_step(self) -> dict[str, list[Span]]:
        """Of the first worker, the switch and the node, by lane of a picture; times from the start
        of the worker's last step."""
        first = self.workers[0]
        start_s = first.ends_s[-2]
        kinds = {"sums": "sum", "updates": "update", "read": "read", "write": "write"}
        found: dict[str, list[Span]] = {name: list(each) for name, each in first.spans.items()}
        threads: list[Thread] = [self._switch_ends.messages, *self._crew]
        for kind, begun_s, ended_s in [*self.disk.done, *(d for t in threads for d in t.done)]:
            if kind in kinds:
                found.setdefault(kinds[kind], []).append((begun_s, ended_s))
        return {
            name: [(begun_s - start_s, ended_s - start_s) for begun_s, ended_s in each]
            for name, each in found.items()
        }

    def waits_for(self) -> str:
        """The events that the cores of nodes wait for."""
        return "; ".join(node.core.waits_for() for node in self._nodes.values())

    def thread(self) -> Thread:
        """One more, on the same processors."""
        return Thread(self.env, self._processors, self.work_s)

    def _threads(self, count: int) -> list[Thread]:
        return [self.thread() for _ in range(count)]

    def ends(self) -> _Ends:
        """The ends of one more process's connections."""
        return _Ends(self.thread(), self.thread())

    # ---------------------------------------------------------------------- messages

    def send_from_worker(self, worker: _Worker, message: Message, payload: Any) -> None:
        """Up to the switch."""
        arrived = partial(self._switch.received, worker_name(worker.rank))
        self._carry(worker.ends, self._switch_ends, arrived, message, payload)

    def _send_from_switch(self, peer: str, message: Message, payload: Any) -> None:
        if peer in self._nodes:
            ends, arrived = self._node_ends[peer], self._nodes[peer].received
        else:
            worker = self._by_name[peer]
            ends, arrived = worker.ends, worker.received
        self._carry(self._switch_ends, ends, arrived, message, payload)

    def _send_from_node(self, name: str, message: Message, payload: Any) -> None:
        arrived = partial(self._switch.received, name)
        self._carry(self._node_ends[name], self._switch_ends, arrived, message, payload)

    def _carry(
        self, sender: _Ends, receiver: _Ends, arrived: Arrived, message: Message, payload: Any
    ) -> None:
        """An end of a message at each of two processes, and its bytes on the wire (X8)."""
        token = payload.copy() if isinstance(payload, Token) else payload
        nbytes = token.nbytes if isinstance(token, Token) else 0
        cost_bytes = token.cost_bytes if isinstance(token, Token) else 0.0
        stages = [
            (sender.messages, "messages", self.floors.end_s),
            (sender.link, "wire", cost_bytes * self.floors.send_s_per_byte),
            (receiver.link, "wire", cost_bytes * self.floors.receive_s_per_byte),
            (receiver.messages, "messages", self.floors.end_s),
        ]
        _in_turn(stages, lambda: arrived(message, token, nbytes))

    def _switch_work(self, action: Sum | Cache) -> Process:
        if isinstance(action, Sum):
            terms, kind, s_per_byte = action.payloads, "sums", self.floors.sum_s_per_byte
        else:
            terms, kind, s_per_byte = (action.payload,), "copies", self.floors.weights_s_per_byte
        nbytes = sum(payload.cost_bytes for payload in terms)  # type: ignore[attr-defined]
        yield self._switch_ends.messages.do(kind, nbytes * s_per_byte)


def _in_turn(stages: list[tuple[Thread, str, float]], then: Callable[[], None]) -> None:
    """Threads that work one after the other; who has nothing to do is passed by."""
    while stages and stages[0][1] == "wire" and not stages[0][2]:
        stages = stages[1:]
    if not stages:
        then()
        return
    (thread, kind, seconds), rest = stages[0], stages[1:]
    done = thread.do(kind, seconds)
    assert done.callbacks is not None
    done.callbacks.append(lambda _: _in_turn(rest, then))


def _layout(job: MachineJob) -> Layout:
    """Units with as many chunks and extents as the job's; what they cost the job says."""
    chunk_bytes = max(map(max, job.chunks))
    chunk_bytes = -(-chunk_bytes // CHUNK_BYTES_STEP) * CHUNK_BYTES_STEP
    whole = chunk_bytes // SUM_BYTES

    def elems(unit: Sequence[int]) -> int:
        return (len(unit) - 1) * whole + min(whole, max(1, unit[-1] // SUM_BYTES))

    names = [f"unit {index}" for index in range(job.units)]
    parameters = tuple(
        Parameter(name=name, shape=(elems(unit),))
        for name, unit in zip(names, job.chunks, strict=True)
    )
    units = tuple(Unit(name=name, parameters=(index,)) for index, name in enumerate(names))
    return Layout(
        parameters=parameters, units=units, chunk_bytes=chunk_bytes, node_count=job.nodes,
        extent_chunks=job.extent_chunks,
    )  # fmt: skip


class _MachineWork:
    """Costs of the node's threads and its disk (X6, X7)."""

    def __init__(self, world: _World, messages: Thread, number: int) -> None:
        """`number`: of the node."""
        self.in_place = world.job.in_place
        self._world, self._messages = world, messages
        self._job, self._floors, self._disk = world.job, world.floors, world.disk
        self._stays = [
            world.job.stays(unit, chunk, number)
            for unit, sizes in enumerate(world.job.chunks)
            for chunk in range(len(sizes))
        ]

    def update(self, action: do.Update, thread: Thread) -> Process:
        *pages, last = self._pages(action.extent)
        for page in pages:
            yield from self._update_page(page, thread)
            yield from self._write_page(page)
        yield from self._update_page(last, thread)
        yield self._handed()

    def write(self, action: do.Update, thread: Thread) -> Process:
        yield from self._write_page(self._pages(action.extent)[-1])
        yield self._handed()

    def _update_page(self, page: int, thread: Thread) -> Process:
        nbytes = self._world.page_bytes[page]
        if not self._stays[page]:
            yield self._disk.do("read", RECORD * nbytes * self._floors.mixed_s_per_byte / 2)
        yield thread.do("updates", nbytes * self._floors.update_s_per_byte)

    def _write_page(self, page: int) -> Process:
        floors = self._floors
        if self._job.out_of_core:
            stays = self._stays[page]
            write_s = floors.write_s_per_byte if stays else floors.mixed_s_per_byte / 2
            yield self._disk.do("write", RECORD * self._world.page_bytes[page] * write_s)

    def fold(self, action: do.Fold, thread: Thread) -> Process:
        raise AssertionError("streaming folds nothing")

    def read_weights(self, action: do.ReadWeights, thread: Thread) -> Process:
        for page in self._pages(action.extent):
            nbytes = self._world.page_bytes[page]
            if not self._stays[page]:
                yield self._disk.do("read", nbytes * self._floors.pull_s_per_byte)
            yield thread.do("reads", nbytes * self._floors.reading_s_per_byte)
        yield self._handed()

    def flush(self, action: do.Prepare | do.Decide, thread: Thread) -> Process:
        if self._floors.flush_s:
            count = FLUSHES_TO_PREPARE if isinstance(action, do.Prepare) else 1
            yield self._disk.do("write", count * self._floors.flush_s)
        yield self._handed()

    def spill(self, payload: Token) -> Process:
        raise AssertionError("there is room for all sums")

    def cost_bytes(self, extent: int, nbytes: int) -> float:
        return self._world.costs[extent]

    def _pages(self, extent: int) -> range:
        return self._world.description.layout.extents[extent].chunks

    def _handed(self) -> simpy.Event:
        return self._messages.do("hand-overs", self._floors.handed_s)


class _Worker:
    """A worker: its core, its threads, and the loop that trains."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self.rank = world, rank
        self.ends = world.ends()
        self._compute = world.thread()
        self._helpers = [world.thread() for _ in range(world.job.compute_threads - 1)]
        self._core = world.cores.nic(
            job=JOB, rank=rank, world_size=world.job.workers, incarnation=1, retry=NEVER
        )
        self._joined = world.env.event()
        self._done: dict[int, simpy.Event] = {}
        """The event of each handle."""
        self._pulled: dict[Use, simpy.Event] = {}
        self.ends_s: list[float] = []
        self.spans: dict[str, list[Span]] = {}
        """What it did, by lane of a picture; `forward` is a part of `compute`."""
        self._forward_s = compute_by_unit(world.job, world.floors, world.floors.forward_s)
        self._backward_s = compute_by_unit(world.job, world.floors, world.floors.backward_s)
        world.env.process(self._run())

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        """A message came."""
        self._do(self._core.received(self._now_ns, message, payload, payload_bytes))

    @property
    def _now_ns(self) -> int:
        return round(self._world.env.now * 1e9)

    def _do(self, actions: Sequence[Any]) -> None:
        for at, action in enumerate(actions):
            match action:
                case Send(_, message, payload):
                    self._world.send_from_worker(self, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case nic.Fill() if not action.in_place:
                    nbytes = action.payload.cost_bytes  # type: ignore[attr-defined]
                    seconds = nbytes * self._world.floors.weights_s_per_byte
                    copied = self.ends.messages.do("copies", seconds)
                    assert copied.callbacks is not None
                    copied.callbacks.append(partial(self._go_on, actions[at + 1 :]))
                    return
                case nic.Done(handle):
                    self._done[handle].succeed()
                case nic.Joined():
                    self._joined.succeed()
                case nic.Fill() | nic.Judged() | nic.StepDecided() | Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    def _go_on(self, actions: Sequence[Any], _: simpy.Event) -> None:
        self._do(actions)

    # ---------------------------------------------------------------------- the loop

    def _run(self) -> Process:
        world, job, core = self._world, self._world.job, self._core
        description = world.description
        self._do(
            core.join(
                self._now_ns,
                description.to_bytes(),
                description.hash,
                extent_chunks=description.layout.extent_chunks,
            )
        )
        yield self._joined
        for step in range(world.steps):
            uses, is_begun = self._uses(step), False
            pushes: list[simpy.Event] = []
            self._ask(uses[: job.units if job.in_place else job.ahead + 1])
            for index, use in enumerate(uses):
                self._ask(uses[index : index + job.ahead + 1])
                yield from self._timed("wait", self._pulled[use])
                _, way, unit = use
                if way == 0 and unit > 0:
                    yield from self._timed("forward", self._computed(self._forward_s[unit]))
                if way == 0 and unit == job.units - 1:
                    yield from self._timed("forward", self._computed(self._forward_s[0]))
                    yield from self._timed("compute", self._computed(self._backward_s[0]))
                if way == 1:
                    yield from self._timed("compute", self._computed(self._backward_s[unit]))
                    if not is_begun:
                        self._do(core.begin(self._now_ns, step, HYPER))
                        is_begun = True
                    yield from self._push(step, unit, pushes)
            if not is_begun:
                self._do(core.begin(self._now_ns, step, HYPER))
            yield from self._push(step, 0, pushes)
            self._do(core.commit(self._now_ns, step, 1, HYPER))
            yield world.env.all_of(pushes)
            self.ends_s.append(world.env.now)

    def _timed(self, lane: str, event: simpy.Event) -> Process:
        """Wait for an event, and record from when to when."""
        start_s = self._world.env.now
        yield event
        self._record(lane, start_s)

    def _record(self, lane: str, start_s: float) -> None:
        """A span that ends now, unless it has no length."""
        end_s = self._world.env.now
        if end_s > start_s:
            self.spans.setdefault(lane, []).append((start_s, end_s))

    def _uses(self, step: int) -> list[Use]:
        """Units as they are used; in place, those of the backward are there already."""
        units = range(self._world.job.units)
        backward = [(step, 1, unit) for unit in reversed(units[1:])]
        for use in backward if self._world.job.in_place else ():
            self._pulled[use] = self._world.env.event().succeed()
        return [(step, 0, unit) for unit in units] + backward

    def _computed(self, seconds: float) -> simpy.Event:
        """All threads of the compute have done their share."""
        threads = [self._compute, *self._helpers]
        share = seconds / len(threads)
        return self._world.env.all_of([each.do("compute", share) for each in threads])

    def _push(self, step: int, unit: int, pushes: list[simpy.Event]) -> Process:
        """Copy a unit's gradients to where they are sent from, and push them."""
        world, layout = self._world, self._world.description.layout
        gradients = []
        for extent in layout.unit_extents[unit]:
            cost_bytes, nbytes = world.costs[extent], layout.extents[extent].sum_bytes
            yield self._compute.do("copies", cost_bytes * world.floors.gradient_s_per_byte)
            payload = Token(nbytes, cost_bytes)
            gradients.append(
                nic.Gradient(index=extent, payload=payload, payload_bytes=nbytes, dtype="float32")
            )
        number, done = self._open("push")
        pushes.append(done)
        self._do(self._core.push(self._now_ns, number, step, 0, gradients, last=True))

    def _ask(self, uses: list[Use]) -> None:
        for use in uses:
            if use in self._pulled:
                continue
            step, way, unit = use
            number, self._pulled[use] = self._open("pull")
            extents = list(self._world.description.layout.unit_extents[unit])
            self._do(self._core.pull(self._now_ns, number, step, way, extents))

    def _open(self, lane: str) -> tuple[int, simpy.Event]:
        number = len(self._done)
        done = self._done[number] = self._world.env.event()
        start_s = self._world.env.now
        assert done.callbacks is not None
        done.callbacks.append(lambda _: self._record(lane, start_s))
        return number, done

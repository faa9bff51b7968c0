"""Whole clusters of the real cores: workers that run a scripted job, a switch, a node with a disk.

The shells here do by hand, with numpy and a dictionary, what the process shells do with torch,
sockets and files; the cores are the same objects. A worker's gradient depends on the weights it
pulled, its rank, the step and the chunk, so any wrong byte changes every later one.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luwu.base.errors import StepAborted
from luwu.base.outstanding import RetryPolicy
from luwu.layout import Layout, Parameter, Unit
from luwu.nic import actions as nic
from luwu.nic.core import NicCore
from luwu.wire.actions import PARENT, Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node import actions as node_actions
from switch_emu.node.actions import NodeLimits
from switch_emu.node.core import NodeCore
from switch_emu.switch.aggregate import sum_in_order
from switch_emu.switch.core import Sum, SwitchCore, SwitchLimits
from tests.simulate.world import Faults, Payload, World

JOB = 77
RETRY = RetryPolicy(first_ns=40_000_000, most_ns=320_000_000)
SMALL_SWITCH = SwitchLimits(push_window_bytes=100_000)
SMALL_NODE = NodeLimits(updates_max=2, reads_max=2, push_window_bytes=100_000)


def make_layout(*, units: int = 3, chunk_bytes: int = 16384, frozen: bool = True) -> Layout:
    """A small model whose units have several chunks, ragged ends and a frozen parameter."""
    parameters: list[Parameter] = []
    members: list[Unit] = []
    for unit in range(units):
        first = len(parameters)
        shapes: list[tuple[tuple[int, ...], bool]] = [((70, 100), True), ((33,), True)]
        if frozen and unit == 1:
            shapes.append(((50,), False))
        for index, (shape, trainable) in enumerate(shapes):
            name = f"unit{unit}.p{index}"
            parameters.append(Parameter(name=name, shape=shape, trainable=trainable))
        members.append(Unit(name=f"unit{unit}", parameters=tuple(range(first, len(parameters)))))
    return Layout(parameters=tuple(parameters), units=tuple(members), chunk_bytes=chunk_bytes)


def gradient(weights: Any, rank: int, step: int, chunk: int, part: int) -> Any:
    """What a rank computes: float32, and rounding differs with every order of addition."""
    wave = np.sin(np.arange(weights.size, dtype=np.float32) * (1 + rank) + step * 7 + chunk + part)
    result: Any = weights * np.float32(0.37) + wave.astype(np.float32) * np.float32(1e-3 + rank)
    return result.astype(np.float32)


def initial(layout: Layout, chunk: int) -> Any:
    """Weights before step 0."""
    elems = layout.chunks[chunk].elems
    return np.cos(np.arange(elems, dtype=np.float32) + chunk).astype(np.float32)


def apply_update(weights: Any, momentum: Any, grad: Any, scale: float) -> tuple[Any, Any]:
    """SGD with momentum, in numpy."""
    momentum = np.float32(0.9) * momentum + grad * np.float32(scale)
    return (weights - np.float32(0.1) * momentum).astype(np.float32), momentum.astype(np.float32)


@dataclass(frozen=True)
class Job:
    """What a simulated cluster does, and with what."""

    layout: Layout
    world_size: int = 3
    steps: int = 4
    update: str = "streaming"
    backwards: int = 1
    """Backward passes a step; more than one needs `at_step`."""
    poison_step: int | None = None
    """The step in which rank 0 pushes a gradient that is not finite."""
    absent_unit: int | None = None
    """A unit for which rank 0 (odd steps: no rank) has a gradient."""
    switch_limits: SwitchLimits = SMALL_SWITCH
    node_limits: NodeLimits = SMALL_NODE
    retry: RetryPolicy = RETRY
    begins_early: bool = True
    """Begin is said before the first pull, when the initial weights may not be durable yet; a real
    worker says it as its backward begins."""
    prepare_ns: int = 0
    """How much longer than other work the flush of a step takes."""

    @property
    def description(self) -> Description:
        return Description(layout=self.layout, optimizer="test", update=self.update)

    def is_absent(self, rank: int, step: int, chunk: int) -> bool:
        return self.layout.chunks[chunk].unit == self.absent_unit and (rank > 0 or step % 2 == 1)


def reference(job: Job) -> list[dict[int, Any]]:
    """The same training in one loop: weights of every chunk after 0, 1, ... steps."""
    layout = job.layout
    weights = {chunk.index: initial(layout, chunk.index) for chunk in layout.chunks}
    momentum = {index: np.zeros_like(values) for index, values in weights.items()}
    versions = [dict(weights)]
    for step in range(job.steps):
        if step != job.poison_step:
            for chunk in layout.chunks:
                index = chunk.index
                total = None
                for part in range(job.backwards):
                    grads = [
                        gradient(weights[index], rank, step, index, part)
                        for rank in range(job.world_size)
                        if chunk.trainable and not job.is_absent(rank, step, index)
                    ]
                    if grads:
                        of_part = functools.reduce(np.add, grads)
                        total = of_part if total is None else total + of_part
                if total is not None:
                    mean = total / np.float32(job.world_size)
                    weights[index], momentum[index] = apply_update(
                        weights[index], momentum[index], mean, 1.0
                    )
        versions.append(dict(weights))
    return versions


class Worker:
    """A NicCore and the job it runs, as a generator that waits for handles."""

    def __init__(self, world: World, job: Job, rank: int, parent: str) -> None:
        self.name = f"worker-{rank}"
        self._world, self._job, self._rank, self._parent = world, job, rank, parent
        self.core = NicCore(
            job=JOB, rank=rank, world_size=job.world_size, incarnation=100 + rank, retry=job.retry
        )
        self._handle = 0
        self._done: set[int] = set()
        self._filled: dict[int, dict[int, Any]] = {}
        self.versions: dict[int, dict[int, Any]] = {}
        """Weights this worker computed with, by step; the last computation counts."""
        self.settled: dict[int, nic.Settled] = {}
        self._facts: nic.Joined | nic.Aborted | None = None
        self._left = False
        self.aborts_count = 0
        self.refused: str | None = None
        self._script: Generator[Any, None, None] | None = self._main()
        self._wanted: Any = None
        world.listen(self.name, self._received)
        world.soon(self._start)

    @property
    def finished(self) -> bool:
        return self._script is None

    def _start(self) -> None:
        description = self._job.description
        self._do(self.core.join(self._world.now_ns, description.to_bytes(), description.hash))
        self._advance()

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        self._do(self.core.received(self._world.now_ns, message, payload))
        self._advance()

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _do(self, actions: list[nic.Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._world.send(self.name, self._parent, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case nic.Fill(handle, chunk, payload):
                    self._filled.setdefault(handle, {})[chunk] = payload.read().copy()  # type: ignore[attr-defined]
                case nic.Done(handle):
                    self._done.add(handle)
                case nic.Joined():
                    self._facts = action
                case nic.Settled(step):
                    self.settled[step] = action
                case nic.Aborted():
                    self._facts = action
                    self.aborts_count += 1
                    if self._script is not None and self._wanted not in ("joined", "left"):
                        self._throw(StepAborted(action.step, action.text))
                case nic.Left():
                    self._left = True
                case nic.Refused(text):
                    self.refused = text

    def _throw(self, error: StepAborted) -> None:
        assert self._script is not None
        self._wanted = self._script.throw(error)

    def _advance(self) -> None:
        while self._script is not None and self._is_there(self._wanted):
            try:
                self._wanted = next(self._script)
            except StopIteration:
                self._script = None

    def _is_there(self, wanted: Any) -> bool:
        if wanted is None:
            return True
        if wanted == "joined":
            return self._facts is not None
        if wanted == "left":
            return self._left
        if isinstance(wanted, tuple):  # ("settled", step)
            return wanted[1] in self.settled
        if isinstance(wanted, list):
            return all(handle in self._done for handle in wanted)
        return wanted in self._done

    def _new(self) -> int:
        self._handle += 1
        return self._handle

    def _main(self) -> Generator[Any, None, None]:
        yield "joined"
        while True:
            assert self._facts is not None
            step, loaded = self._facts.step, self._facts.loaded
            try:
                if not loaded and self._rank == 0:
                    yield self._load()
                while step < self._job.steps:
                    yield from self._step(step)
                    step += 1
                yield ("settled", self._job.steps - 1)
                break
            except StepAborted:
                continue
        self._do(self.core.leave(self._world.now_ns))
        yield "left"

    def _load(self) -> int:
        handle = self._new()
        gradients = [
            nic.Gradient(
                chunk=chunk.index,
                payload=Payload(initial(self._job.layout, chunk.index)),
                payload_bytes=chunk.sum_bytes,
                dtype="float32",
            )
            for chunk in self._job.layout.chunks
        ]
        self._do(self.core.load(self._world.now_ns, handle, gradients))
        return handle

    def _pull(self, step: int, part: int, unit: int) -> int:
        handle = self._new()
        chunks = self._job.layout.unit_chunks[unit]
        self._do(self.core.pull(self._world.now_ns, handle, step, part, list(chunks)))
        return handle

    def _step(self, step: int) -> Generator[Any, None, None]:
        units = range(len(self._job.layout.units))
        seen: dict[int, Any] = {}
        use = 0
        is_streaming = self._job.update == "streaming"
        if is_streaming and self._job.begins_early:
            self._do(self.core.begin(self._world.now_ns, step, "h", b"hyper"))
        for part in range(self._job.backwards):
            ahead = self._pull(step, use, 0)
            for unit in units:
                handle = ahead
                if unit + 1 < len(units):
                    ahead = self._pull(step, use, unit + 1)
                yield handle
                seen.update(self._filled.pop(handle))
            use += 1
            if is_streaming and not self._job.begins_early:
                self._do(self.core.begin(self._world.now_ns, step, "h", b"hyper"))
            pushes: list[int] = []
            for unit in reversed(units):
                handle = self._pull(step, use, unit)
                yield handle
                weights = self._filled.pop(handle)
                for chunk, values in weights.items():
                    np.testing.assert_array_equal(values, seen[chunk])
                pushes.append(self._push(step, part, unit, weights))
            use += 1
            yield pushes
        self.versions[step] = seen
        parts = self._job.backwards
        self._do(self.core.commit(self._world.now_ns, step, "h", parts, b"hyper"))

    def _push(self, step: int, part: int, unit: int, weights: dict[int, Any]) -> int:
        gradients = []
        for chunk in self._job.layout.trainable_chunks(unit):
            values = gradient(weights[chunk], self._rank, step, chunk, part)
            if step == self._job.poison_step and self._rank == 0 and unit == 1:
                values[3] = np.nan
            absent = self._job.is_absent(self._rank, step, chunk)
            gradients.append(
                nic.Gradient(
                    chunk=chunk,
                    payload=None if absent else Payload(values),
                    payload_bytes=0 if absent else values.nbytes,
                    dtype="float32",
                )
            )
        handle = self._new()
        last = part == self._job.backwards - 1
        self._do(
            self.core.push(
                self._world.now_ns, handle, step, part, gradients,
                weight=1.0 if last else 0.0, last=last and self._job.update == "streaming",
            )
        )  # fmt: skip
        return handle


class Switch:
    """A SwitchCore; its sums take a little time."""

    def __init__(self, world: World, job: Job, *, incarnation: int, name: str = "switch") -> None:
        self.name, self._parent, self._world = name, "node", world
        self.parent_side = name
        """The name by which the node knows it."""
        self.alive = True
        self.core = SwitchCore(
            job=JOB,
            incarnation=incarnation,
            children=[1 << rank for rank in range(job.world_size)],
            limits=job.switch_limits,
            retry=job.retry,
        )
        world.listen(self.name, self._received)

    def kill(self) -> None:
        self.alive = False
        self._world.silence(self.name)

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        peer = PARENT if sender == self._parent else sender
        nbytes = payload.array.nbytes if isinstance(payload, Payload) else 0
        self._do(self.core.received(self._world.now_ns, peer, message, payload, nbytes))

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        receiver = self._parent if peer == PARENT else peer
                        sender = self.parent_side if peer == PARENT else self.name
                        self._world.send(sender, receiver, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Sum():
                    values = [p.read().copy() for p in action.payloads]  # type: ignore[attr-defined]
                    self._world.soon(lambda action=action, values=values: self._sum(action, values))

    def _sum(self, action: Sum, values: list[Any]) -> None:
        if not self.alive:
            return
        total = np.empty_like(values[0])
        sum_in_order([memoryview(v) for v in values], action.dtypes, total)
        payload = Payload(total)
        self._do(self.core.summed(self._world.now_ns, action, payload, total.nbytes))


@dataclass
class Disk:
    """What survives a node: two sides of every page, and the records beside them."""

    description: bytes | None = None
    generation: int = 0
    attempt: int = 0
    version: int | None = None
    applied: bool = True
    pages: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    """Decided: chunk -> (version, weights, momentum)."""
    tentative: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    ledger: dict[int, int] = field(default_factory=dict)
    """Version -> contributors: I1's record, one a decided step."""


class Node:
    """A NodeCore, a pipeline that takes random time, and a disk."""

    def __init__(self, world: World, job: Job, disk: Disk) -> None:
        self.name, self._world, self._job = "node", world, job
        self.disk = disk
        self.alive = True
        disk.generation += 1
        disk.tentative.clear()
        self.core = NodeCore(
            job=JOB,
            incarnation=disk.generation,
            ranks=(1 << job.world_size) - 1,
            limits=job.node_limits,
        )
        world.listen(self.name, self._received)
        if disk.description is not None:
            self._do(self.core.store_opened(self._facts()))

    def _facts(self) -> node_actions.StoreFacts:
        disk = self.disk
        disk.attempt += 1
        assert disk.description is not None
        return node_actions.StoreFacts(
            description=disk.description,
            generation=disk.generation,
            attempt=disk.attempt,
            epoch=0,
            job=JOB,
            version=disk.version,
            applied=disk.applied,
        )

    def kill(self) -> None:
        self.alive = False
        self._world.silence(self.name)

    def tick(self) -> None:
        pass

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        nbytes = payload.array.nbytes if isinstance(payload, Payload) else 0
        self._do(self.core.received(self._world.now_ns, sender, message, payload, nbytes))

    def _later(self, do: Any) -> None:
        self._world.soon(lambda: self._do(do()) if self.alive else None)

    def _do(self, actions: list[Any]) -> None:
        disk = self.disk
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        self._world.send(self.name, peer, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Note() | node_actions.Spill():
                    pass
                case node_actions.OpenStore(description):
                    disk.description = description
                    self._later(lambda: self.core.store_opened(self._facts()))
                case node_actions.LoadPage():
                    self._later(lambda a=action: self._load(a))
                case node_actions.RecordAttempt(attempt):
                    disk.attempt = attempt
                case node_actions.Discard():
                    disk.tentative.clear()
                case node_actions.Fold():
                    self._later(lambda a=action: self._fold(a))
                case node_actions.Update():
                    self._later(lambda a=action: self._update(a))
                case node_actions.ReadWeights():
                    self._later(lambda a=action: self._read(a))
                case node_actions.Prepare():
                    prepare = functools.partial(self._later, lambda a=action: self._prepare(a))
                    self._world.at(self._job.prepare_ns, prepare)
                case node_actions.Decide():
                    self._later(lambda a=action: self._decide(a))
                case _:
                    raise AssertionError(f"unknown action {action}")

    def _load(self, action: node_actions.LoadPage) -> Any:
        values = action.payload.read().copy()  # type: ignore[attr-defined]
        action.payload.drop()  # type: ignore[attr-defined]
        self.disk.tentative[action.chunk] = (0, values, np.zeros_like(values))
        return self.core.page_loaded(action.chunk)

    def _total(self, contributions: Any) -> Any:
        values = [c.payload.read() for c in contributions]
        total = np.empty_like(values[0])
        sum_in_order([memoryview(v) for v in values], [c.dtype for c in contributions], total)
        return total

    @staticmethod
    def _squares(total: Any) -> tuple[float, ...]:
        doubles = total.astype(np.float64)
        return tuple(float((block * block).sum()) for block in np.split(doubles, [4096])[:1])

    def _fold(self, action: node_actions.Fold) -> Any:
        total = self._total(action.contributions)
        if action.total is not None:
            total = action.total.payload.read() + total  # type: ignore[union-attr]
        return self.core.folded(action, self._squares(total), Payload(total), total.nbytes)

    def _update(self, action: node_actions.Update) -> Any:
        total = self._total(action.contributions)
        _, weights, momentum = self.disk.pages[action.chunk]
        grad = total / np.float32(action.divisor)
        new, momentum = apply_update(weights, momentum, grad, 1.0)
        published = Payload(new) if action.publish else None
        self._world.soon(lambda: self._written(action, new, momentum))
        return self.core.updated(action, self._squares(total), published)

    def _written(self, action: node_actions.Update, weights: Any, momentum: Any) -> None:
        if self.alive:
            self.disk.tentative[action.chunk] = (action.step + 1, weights, momentum)
            self._do(self.core.written(action))

    def _read(self, action: node_actions.ReadWeights) -> Any:
        disk = self.disk
        version = disk.version if action.version is None else action.version
        side = disk.tentative if version == (disk.version or 0) + 1 else disk.pages
        if action.chunk not in side or (side is disk.pages and version != disk.version):
            return self.core.weights_read(action, None)
        return self.core.weights_read(action, Payload(side[action.chunk][1]))

    def _prepare(self, action: node_actions.Prepare) -> Any:
        if not action.applied:
            assert not self.disk.tentative, "a skipped step must discard its pages first"
        return self.core.prepared(action)

    def _decide(self, action: node_actions.Decide) -> Any:
        disk = self.disk
        assert action.version not in disk.ledger, "a step was decided twice"
        disk.applied = action.version - 1 != self._job.poison_step
        disk.pages.update(disk.tentative)
        disk.tentative.clear()
        disk.version = action.version
        disk.ledger[action.version] = (1 << self._job.world_size) - 1
        return self.core.decided(action)


class Cluster:
    """One job's processes; `run` lets it finish and checks the oracles."""

    def __init__(self, seed: int, job: Job, faults: Faults) -> None:
        Payload.live_count = 0
        self.seed, self.job = seed, job
        self.world = World(seed, faults)
        self.disk = Disk()
        self.node = Node(self.world, job, self.disk)
        self.switch = Switch(self.world, job, incarnation=1)
        self.workers = [
            Worker(self.world, job, rank, self.switch.name) for rank in range(job.world_size)
        ]
        self._ticks()

    def _ticks(self) -> None:
        for process in (*self.workers, self.switch, self.node):
            process.tick()
        self.world.at(10_000_000, self._ticks)

    def restart_switch(self) -> None:
        """Kill the switch; a new one, that knows nothing, takes its place."""
        self.switch.kill()
        incarnation = self.world.now_ns + 2
        self.world.at(
            30_000_000,
            lambda: setattr(self, "switch", Switch(self.world, self.job, incarnation=incarnation)),
        )

    def restart_node(self) -> None:
        """Kill the node; a new one opens the same disk."""
        self.node.kill()
        self.world.at(
            30_000_000, lambda: setattr(self, "node", Node(self.world, self.job, self.disk))
        )

    def reconnect(self, rank: int) -> None:
        """A worker's connection is lost; it comes back under another name."""
        worker = self.workers[rank]
        self.world.silence(worker.name)
        worker.name += "'"
        self.world.listen(worker.name, worker._received)
        worker._do(worker.core.reconnected(self.world.now_ns))

    def reconnect_switch(self) -> None:
        """The switch's connection to the node is lost and comes back under another name."""
        switch = self.switch
        if switch.alive:
            switch.parent_side += "'"
            self.world.listen(switch.parent_side, switch._received)
            switch._do(switch.core.reconnected(self.world.now_ns))

    def cancel(self, rank: int) -> None:
        """A rank asks for the attempt to be given up."""
        worker = self.workers[rank]
        worker._do(worker.core.cancel(self.world.now_ns, "asked by the test"))

    def run(self) -> None:
        """Finish the job and check it: I1, I3 and that every worker saw the right weights."""
        self.world.run(
            lambda: all(worker.finished for worker in self.workers), limit_ns=600 * 10**9
        )
        versions = reference(self.job)
        assert self.disk.version == self.job.steps
        assert set(self.disk.ledger) == set(range(self.job.steps + 1))
        for chunk, (_, weights, _) in self.disk.pages.items():
            np.testing.assert_array_equal(weights, versions[-1][chunk], err_msg=self._where(chunk))
        for worker in self.workers:
            for step, seen in worker.versions.items():
                for chunk, weights in seen.items():
                    np.testing.assert_array_equal(
                        weights, versions[step][chunk], err_msg=self._where(chunk, step)
                    )

    def _where(self, chunk: int, step: int | None = None) -> str:
        return f"seed {self.seed}, chunk {chunk}, step {step}"

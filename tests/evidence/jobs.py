"""Whole jobs in one process, by every way to run: real shells, transports, stores; no torch trains.

A `Way` is what `luwu train` could be asked for. The workers are those of
`tests/helpers/local_job.py`: their gradients are single additions and multiplications of what they
pulled, so the digest of the weights at the end is the same on every machine, and every wrong byte
on the way changes it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from luwu.aggregate import FLOAT32
from luwu.base.clock import SYSTEM_CLOCK, new_incarnation
from luwu.base.tree import NODE, Place, Tree, one_switch
from luwu.layout import Layout
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.transport.opening import open_transport
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper
from switch_emu.node.pages import weights_digest
from switch_emu.node.process import serve_node
from switch_emu.node.spec import NodeSpec
from switch_emu.store.striped import StripedPages, node_directory
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.process import SwitchSpec, serve_switch
from tests.helpers.local_job import GROUPS, KIB, LARGE, Job, Worker, make_layout
from tests.simulate.trees import TREES

LIMIT_S = 60.0
_ENDPOINTS = {"tcp": "tcp://127.0.0.1:0", "ipc": "ipc://auto", "shm": "shm://auto"}

OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "adamw": ("adamw", ("m", "v"), {}),
    "adam": ("adam", ("m", "v"), {"decoupled_weight_decay": False}),
    "sgd": ("sgd", (), {"momentum": 0.0, "dampening": 0.0, "nesterov": False}),
    "sgd with momentum": (
        "sgd", ("momentum",), {"momentum": 0.9, "dampening": 0.1, "nesterov": False}
    ),
    "nesterov": ("sgd", ("momentum",), {"momentum": 0.9, "dampening": 0.0, "nesterov": True}),
    "lion": ("lion", ("m",), {}),
}  # fmt: skip
"""Name -> (update, state fields, hyper-parameters beside those of `GROUPS`)."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a job is run; the defaults are one way, and each table entry changes some."""

    world_size: int = 2
    transport: str = "ipc"
    has_switch: bool = True
    tree: str | None = None
    optimizer_nodes: int = 1
    chunk_kib: int = 16
    update: str = "streaming"
    optimizer: str = "adamw"
    wire_dtype: str = "float32"
    aggregate: str = FLOAT32
    max_grad_norm: float | None = None
    poison_step: int | None = None
    cancel_step: int | None = None
    stop_at: int | None = None
    """The job is stopped before this step, and resumed."""
    durability: str = "process"
    is_stored: bool = True
    """False: the state is in RAM only."""
    is_tight: bool = False
    """The node has memory for a handful of chunks."""
    slots: int | None = None
    """Of a switch in protocol fidelity; None: functional."""
    slot_bytes_max: int | None = None

    @property
    def switches(self) -> Tree:
        """The switches between workers and nodes."""
        if not self.has_switch:
            return Tree(())
        return one_switch(self.workers) if self.tree is None else TREES[self.tree]

    @property
    def workers(self) -> int:
        """How many there are: as the tree says, if there is one."""
        return self.world_size if self.tree is None else TREES[self.tree].workers


@dataclass(frozen=True)
class _Job(Job):
    """The job of the workers, with the optimizer that a way names."""

    way: Way = field(default_factory=Way)

    @property
    def description(self) -> Description:
        update, state_fields, _ = OPTIMIZERS[self.way.optimizer]
        return Description(
            layout=self.layout, optimizer=update, update=self.update, state_fields=state_fields
        )

    def hyper(self, step: int) -> StepHyper:
        more = OPTIMIZERS[self.way.optimizer][2]
        names = ("lr", "weight_decay", "maximize") if "momentum" in more else tuple(GROUPS[0])
        if self.way.optimizer == "lion":
            names = ("lr", "beta1", "beta2", "weight_decay", "maximize")
        found = super().hyper(step)
        groups = tuple({**{n: group[n] for n in names}, **more} for group in found.groups)
        return replace(found, groups=groups)


class _Threads:
    """The processes of a job as threads; the first error stops all."""

    def __init__(self, way: Way, directory: Path, *, resume: bool) -> None:
        self.way, self.directory = way, directory
        self._resume = resume
        self._job_number = SYSTEM_CLOCK.now_ns()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._endpoints: dict[str, str] = {}
        self._listening = threading.Condition()
        tight_bytes = 28 * way.chunk_kib * KIB
        self._budget_bytes = tight_bytes if way.is_tight else LARGE
        self._arena_bytes = 8 * 1024 * KIB if way.transport == "shm" else 0

    # ---------------------------------------------------------------------- processes

    def serve(self, layout: Layout) -> None:
        """Start nodes and switches."""
        way = self.way
        for number in range(way.optimizer_nodes):
            name = _node_name(number)
            spec = self._node_spec(number)
            self._start(name, lambda spec=spec, name=name: self._serve(serve_node, spec, name))
            self._endpoint(name)
        for place in way.switches:
            spec = self._switch_spec(place)
            name = place.name
            self._start(name, lambda spec=spec, name=name: self._serve(serve_switch, spec, name))
            self._endpoint(name)

    def _serve(self, serve: Callable[..., Any], spec: Any, name: str) -> None:
        def on_listening(endpoint: str) -> None:
            with self._listening:
                self._endpoints[name] = endpoint
                self._listening.notify_all()

        serve(spec, on_listening=on_listening, should_stop=self._stopping.is_set)

    def _node_spec(self, number: int) -> NodeSpec:
        way = self.way
        state = node_directory(self.directory / "state", number, way.optimizer_nodes)
        if way.optimizer_nodes > 1:
            state.parent.mkdir(exist_ok=True)
        return NodeSpec(
            job=self._job_number, world_size=way.workers, listen=_ENDPOINTS[way.transport],
            memory_budget_bytes=self._budget_bytes, chunk_bytes=way.chunk_kib * KIB,
            summary=self.directory / f"summary-{number}.json",
            state=state if way.is_stored else None, durability=way.durability,  # type: ignore[arg-type]
            has_switch=way.has_switch, resume=self._resume, arena_bytes=self._arena_bytes,
            number=number, optimizer_nodes=way.optimizer_nodes,
            groups=way.switches.groups if way.tree is not None else (),
            **({} if way.has_switch else self._fidelity()),
        )  # fmt: skip

    def _switch_spec(self, place: Place) -> SwitchSpec:
        way, tree = self.way, self.way.switches
        parents = [place.parent]
        if place.parent == NODE:
            parents = [_node_name(number) for number in range(way.optimizer_nodes)]
        first, *more = [self._endpoints[name] for name in parents]
        limits = {}
        if way.slot_bytes_max is not None:
            limits["limits"] = SwitchLimits(slot_bytes_max=way.slot_bytes_max)
        return SwitchSpec(
            job=self._job_number, children=tuple(tree.children(place)),
            listen=_ENDPOINTS[way.transport], parent=first, more_parents=tuple(more),
            name=place.name, above=place.parent, rank=tree.index(place),
            arena_bytes=self._arena_bytes, chunk_bytes=way.chunk_kib * KIB,
            **limits, **self._fidelity(),
        )  # fmt: skip

    def _fidelity(self) -> dict[str, Any]:
        if self.way.slots is None:
            return {}
        return {"fidelity": "protocol", "slots": self.way.slots}

    def train(self, job: Job, stop_at: int | None) -> None:
        """Run the workers to the end of the job, or to a step; then all end."""

        def work(rank: int) -> None:
            with self._nic(rank) as nic:
                Worker(job, cancel_step=self.way.cancel_step, stop_at=stop_at)(nic)
                nic.leave()

        workers = [self._start(f"worker-{rank}", lambda rank=rank: work(rank))
                   for rank in range(self.way.workers)]  # fmt: skip
        self._join(workers)
        self._join(self._threads)

    @contextlib.contextmanager
    def _nic(self, rank: int) -> Iterator[Nic]:
        way = self.way
        place = way.switches.leaf_of(rank).name if way.has_switch else _node_name(0)
        endpoint = self._endpoints[place]
        transport = open_transport(endpoint, arena_bytes=self._arena_bytes)
        nic = Nic(
            transport,
            WorkerIdentity(
                job=self._job_number, rank=rank, world_size=way.workers,
                incarnation=new_incarnation(),
            ),
            NicSettings(
                chunk_bytes=way.chunk_kib * KIB, aggregate=way.aggregate,
                optimizer_nodes=way.optimizer_nodes,
            ),
            endpoint=endpoint, grace_s=LIMIT_S,
        )  # fmt: skip
        try:
            yield nic
        finally:
            nic.close()
            transport.close()

    # ---------------------------------------------------------------------- threads

    def _start(self, name: str, do: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                do()
            except BaseException as exc:
                with self._listening:
                    self._errors.append(exc)
                    self._listening.notify_all()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _endpoint(self, name: str) -> str:
        with self._listening:
            self._listening.wait_for(lambda: name in self._endpoints or self._errors, LIMIT_S)
        self._raise()
        return self._endpoints[name]

    def _join(self, threads: list[threading.Thread]) -> None:
        end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
        for thread in threads:
            while thread.is_alive() and not self._errors and SYSTEM_CLOCK.now_ns() < end_ns:
                thread.join(0.05)
            self._raise()
            assert not thread.is_alive(), f"{thread.name} did not end"

    def _raise(self) -> None:
        if self._errors:
            self.stop()
            raise self._errors[0]

    def stop(self) -> None:
        """End what still runs."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(5.0)


def _node_name(number: int) -> str:
    return f"node-{number}" if number else NODE


def digest_of(way: Way, directory: Path) -> str:
    """Run a job in an empty directory; the digest of its weights at the end."""
    if way.stop_at is not None:
        run(way, directory, stop_at=way.stop_at)
    run(way, directory, resume=way.stop_at is not None)
    if not way.is_stored:
        summary = json.loads((directory / "summary-0.json").read_text())
        return str(summary["weights_digest"])
    return digest_at(way, directory)


def run(way: Way, directory: Path, *, resume: bool = False, stop_at: int | None = None) -> None:
    """Run a job, or go on with it, to its end or to a step."""
    layout = _layout(way)
    job = _Job(
        layout=layout, world_size=way.workers, update=way.update, max_grad_norm=way.max_grad_norm,
        poison_step=way.poison_step, way=way,
    )  # fmt: skip
    threads = _Threads(way, directory, resume=resume)
    try:
        threads.serve(layout)
        threads.train(job, stop_at)
    finally:
        threads.stop()


def digest_at(way: Way, directory: Path) -> str:
    """The digest of the weights of the state in a directory."""
    layout = _layout(way)
    with StripedPages(directory / "state", way.optimizer_nodes) as pages:
        pages.lay_out(layout)
        return weights_digest(pages, layout)


def _layout(way: Way) -> Layout:
    return replace(make_layout(way.chunk_kib, way.wire_dtype), optimizer_nodes=way.optimizer_nodes)

"""Steps of LuWu that its own cores decide: what a run would do, in virtual time.

`DrivenWorker` has the project's `NicCore`, `DrivenSwitch` its `SwitchCore`, `DrivenNode` its
`NodeCore`: a decision that is changed in a core changes a run and the prediction alike. Engines
take their time from the question, as the closed form (L1 to L5) does: the same rates, the same
passes over memory. Where `at_step` folds a gradient it is read and the sum is written once more.
Workers are equal, so two are played, and what is seen is the first one. One switch is played for
all on the way: the narrowest place between worker and node sets the rate of its links, and the
latency counts its hops. Pulls and pushes that devices of a host pass on in their domain share its
link (L8). Steps of several micro-batches are updated `at_step`, as the project does it:
`streaming` has one backward a step. A node holds and has under way what its memory plan says.

It is right where the order of work, windows and threads bind, which no closed form sees; the closed
form (`systems/in_network.py`) takes a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import simpy

from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.layout import SUM_BYTES, Layout, Parameter
from luwu.layout import Unit as LayoutUnit
from luwu.predict.driven.driven_node import DrivenNode
from luwu.predict.driven.driven_worker import DrivenWorker, Script, Unit, units_of
from luwu.predict.driven.engines import JOB, NEVER, Arrived, Link, Record, Token
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems.in_network import OptimizerNodes, domain_use, pull_rate, push_rate
from luwu.protocol.actions import PARENT, Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.plan import NodePlan, plan_node
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Sum, SwitchLimits

STEPS: Final = 3
"""Played; the last one is measured. Out of core the second may be shorter than all after it: the
first has left it less to write."""
CHUNK_BYTES_MIN: Final = 16 * 1024 * 1024
"""Default chunk of the project, if memory and links allow it."""
CHUNKS_MAX: Final = 512
"""Played in a step, unless more are asked for: playing takes time by their number."""
AHEAD: Final = 4
WORKERS: Final = 2
"""Played: they are equal, and with two of them a switch sums."""
SLOT_WINDOWS: Final = 16
"""Gradients that a switch holds, in windows of a worker: as in its own limits."""
GRADIENT_DTYPES: Final = {2: "bfloat16", 4: "float32"}


@dataclass(frozen=True, slots=True)
class Driven:
    """Steps that were played, and when each engine was at what."""

    record: Record
    ends_s: tuple[float, ...]
    """When compute was done with each step."""

    @property
    def step_s(self) -> float:
        """Seconds of the last step, from the end of the one before."""
        return self.ends_s[-1] - self.ends_s[-2]


def play_driven_steps(
    job: TrainingJob, nodes: OptimizerNodes, *, chunk_bytes: int | None = None,
    workers: int = WORKERS,
) -> Driven:  # fmt: skip
    """Play steps as the project's cores decide them. Raises ConfigError.

    chunk_bytes: of float32, a multiple of 16 KiB; by default 16 MiB, or more where the model has
    many chunks then. workers: played, at most."""
    if nodes.pulls_ahead:
        raise ConfigError(
            "node.pulls_ahead: the project's own cores pull within a window, so such steps are not "
            "played; leave it out to play them"
        )
    units = units_of(job)
    chunk_bytes = chunk_bytes or _chunk_bytes(job)
    scale = -(-chunk_bytes // PAYLOAD_BYTES_MAX)
    description = Description(
        layout=_layout(units, chunk_bytes // scale, scale), optimizer="adamw",
        update="streaming" if job.micro_batches == 1 else "at_step", state_fields=("m", "v"),
    )  # fmt: skip
    script = Script(
        units=units, steps=STEPS, micro_batches=job.micro_batches, pulls=nodes.pulls, ahead=AHEAD,
        gradient_dtype=_gradient_dtype(job), scale=scale,
    )  # fmt: skip
    plan = plan_node(
        budget_bytes=int(nodes.host.memory_bytes) * nodes.nodes, chunk_bytes=chunk_bytes,
        world_size=job.devices, has_switch=True,
    )  # fmt: skip
    return _World(job, nodes, plan, description, script, min(job.devices, workers)).play()


class _World:
    """The processes, and the links between them."""

    def __init__(
        self, job: TrainingJob, nodes: OptimizerNodes, plan: NodePlan, description: Description,
        script: Script, count: int,
    ) -> None:  # fmt: skip
        self._env, self._record = simpy.Environment(), Record()
        self._job, self._nodes = job, nodes
        limits = NodeLimits(
            sum_bytes_max=plan.sums_bytes // script.scale, updates_max=plan.updates_max,
            reads_max=plan.reads_count, push_window_bytes=plan.window_bytes // script.scale,
        )  # fmt: skip
        self._ups: list[Link] = []
        self._workers = [
            self._worker(rank, count, script, description, rank == 0) for rank in range(count)
        ]
        self._switch = DrivenSwitch(
            self._env, workers=count, send=self._send_from_switch,
            limits=SwitchLimits(
                push_window_bytes=limits.push_window_bytes,
                slot_bytes_max=SLOT_WINDOWS * limits.push_window_bytes,
                copies_bytes_max=SLOT_WINDOWS * limits.push_window_bytes,
                slots_are_awaited=True,
            ),
        )  # fmt: skip
        from_node = self._link("down", pull_rate(job, nodes), self._from_node)
        for up in self._ups[::-1]:
            from_node.share(up, domain_use(job, nodes))
        self._node = DrivenNode(
            self._env, self._record, description=description, nodes=nodes, world_size=count,
            limits=limits, threads_count=plan.updates_count, scale=script.scale,
            send=from_node.send,
        )  # fmt: skip
        to_node = self._link("", None, self._node.received)
        self._to = {PARENT: to_node} | {
            worker_name(rank): self._link("", None, worker.received)
            for rank, worker in enumerate(self._workers)
        }

    def play(self) -> Driven:
        """All steps. The first worker is what is seen."""
        self._env.run()
        first = self._workers[0]
        if not all(worker.is_finished for worker in self._workers):
            waits_for = self._node.core.waits_for()
            raise AssertionError(f"the cores stopped: the node waits for {waits_for}")
        return Driven(self._record, tuple(first.ends_s))

    def _worker(
        self, rank: int, count: int, script: Script, description: Description, is_seen: bool
    ) -> DrivenWorker:  # fmt: skip
        job, nodes, name = self._job, self._nodes, worker_name(rank)

        def arrived(message: Message, payload: Any, nbytes: int) -> None:
            self._switch.received(name, message, payload, nbytes)

        up = self._link("up", push_rate(job, nodes), arrived, is_seen=is_seen)
        self._ups.append(up)
        record = self._record if is_seen else Record()
        return DrivenWorker(
            self._env, record, script=script, description=description, send=up.send, rank=rank,
            world_size=count,
        )  # fmt: skip

    def _link(
        self, name: str, rate: float | None, arrived: Arrived, *, is_seen: bool = True
    ) -> Link:  # fmt: skip
        """The narrowest place on the way sets the rate (L1, L2), and is on one link of the way."""
        job, record = self._job, self._record if is_seen else Record()
        latency_s = 0.0
        if rate is not None:
            latency_s = job.network.latency_s + self._nodes.tiers * job.network.hop_s
        return Link(self._env, record, name, rate=rate, latency_s=latency_s, arrived=arrived)

    def _from_node(self, message: Message, payload: Any, nbytes: int) -> None:
        self._switch.received(PARENT, message, payload, nbytes)

    def _send_from_switch(self, peer: str, message: Message, payload: Any) -> None:
        self._to[peer].send(message, payload)


def _chunk_bytes(job: TrainingJob) -> int:
    """16 MiB, doubled until few are played in a step; but two of a layer, so that they overlap."""
    chunk_bytes = CHUNK_BYTES_MIN
    most = max(CHUNKS_MAX // job.micro_batches, 2 * job.model.layers)
    while job.model.parameters * SUM_BYTES / chunk_bytes > most:
        chunk_bytes *= 2
    return chunk_bytes


def _layout(units: list[Unit], chunk_bytes: int, scale: int) -> Layout:
    """A parameter for each unit: all 16-bit on the wire, all trained.

    An element is `scale` parameters: frames have a largest size, and models have not."""
    parameters = tuple(
        Parameter(name=unit.name, shape=(round(unit.parameters / scale),), wire_dtype="bfloat16")
        for unit in units
    )
    members = tuple(
        LayoutUnit(name=unit.name, parameters=(index,)) for index, unit in enumerate(units)
    )
    return Layout(parameters=parameters, units=members, chunk_bytes=chunk_bytes)


def _gradient_dtype(job: TrainingJob) -> str:
    nbytes = job.software.gradient_bytes
    for known, dtype in GRADIENT_DTYPES.items():
        if nbytes == known:
            return dtype
    raise ConfigError(
        f"software: {job.software.name} has gradients of {nbytes} bytes a parameter, and on LuWu's "
        "wire they have 2 or 4"
    )


def worker_name(rank: int) -> str:
    """The name by which the switch knows a worker."""
    return f"worker-{rank}"


class DrivenSwitch:
    """One switch between so many workers and their node; `send` puts a message on its way."""

    def __init__(
        self, env: simpy.Environment, *, workers: int, send: Callable[[str, Message, Any], None],
        limits: SwitchLimits,
    ) -> None:  # fmt: skip
        self._env, self._send = env, send
        self.core = SwitchCore(
            job=JOB, incarnation=1, children=[1 << rank for rank in range(workers)], limits=limits,
            retry=NEVER,
        )  # fmt: skip

    def received(self, peer: str, message: Message, payload: Any, payload_bytes: int) -> None:
        """A message came."""
        self._do(self.core.received(self._now_ns, peer, message, payload, payload_bytes))

    @property
    def _now_ns(self) -> int:
        return round(self._env.now * 1e9)

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        self._send(peer, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Sum():
                    total = total_of(action)
                    self._do(self.core.summed(self._now_ns, action, total, total.nbytes))
                case Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")


def total_of(action: Sum) -> Token:
    """The payload of a sum: float32, as the core announces it.

    It costs as much as one of its terms: a network that sums gradients of 16 bits on the way is
    taken to send as many on."""
    first = action.payloads[0]
    assert isinstance(first, Token)
    elems = first.nbytes // DTYPES[action.dtypes[0]].nbytes
    return Token(elems * SUM_BYTES, first.cost_bytes)

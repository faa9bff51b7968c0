"""Steps of LuWu that its own cores decide: what a run would do, in virtual time.

A decision that is changed in a core changes a run and the prediction alike. Engines take their
time from the question, as the closed form (L1 to L5) does. Workers are equal, so two are played.
One switch is played for all on the way: the narrowest place between worker and node sets the rate
of its links, and the latency counts its hops; a step is no shorter than a domain's link needs for
what devices of a host pass on (L8). Steps of several micro-batches are updated `at_step`:
`streaming` has one backward a step. A node holds and has under way what its memory plan says.

It is right where the order of work, windows and threads bind, which no closed form sees; the closed
form (`systems/in_network.py`) takes a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.layout import SUM_BYTES, Layout, Parameter, Unit
from luwu.predict.driven.driven_node import DrivenNode
from luwu.predict.driven.driven_worker import DrivenWorker, units_of
from luwu.predict.driven.engines import JOB, NEVER, Link, Token
from luwu.predict.model.clock import Clock
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems.in_network import DOMAIN_LINK, OptimizerNodes, node_resources, way_rate
from luwu.protocol.actions import PARENT, Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.plan import NodePlan, plan_node
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Sum, SwitchLimits

CHUNK_BYTES_MIN: Final = 16 * 1024 * 1024
"""Default chunk of the project, if memory and links allow it."""
CHUNKS_MAX: Final = 512
"""Played in a step, unless more are asked for: playing takes time by their number."""
WORKERS: Final = 2
"""Played: they are equal, and with two of them a switch sums."""
SLOT_WINDOWS: Final = 16
"""Gradients that a switch holds, in windows of a worker: as in its own limits."""


def play_driven_steps(
    job: TrainingJob, nodes: OptimizerNodes, *, chunk_bytes: int | None = None,
    workers: int = WORKERS,
) -> float:  # fmt: skip
    """Play steps as the project's cores decide them: the seconds of the last. Raises ConfigError.

    chunk_bytes: of float32, a multiple of 16 KiB; by default 16 MiB, or more where the model has
    many chunks then. workers: played, at most."""
    if nodes.pulls_ahead:
        raise ConfigError(
            "node.pulls_ahead: the project's own cores pull within a window, so such steps are not "
            "played; leave it out to play them"
        )
    chunk_bytes = chunk_bytes or _chunk_bytes(job)
    scale = -(-chunk_bytes // PAYLOAD_BYTES_MAX)
    description = Description(
        layout=_layout(job, chunk_bytes // scale, scale), optimizer="adamw",
        update="streaming" if job.micro_batches == 1 else "at_step", state_fields=("m", "v"),
    )  # fmt: skip
    plan = plan_node(
        budget_bytes=int(nodes.host.memory_bytes) * nodes.nodes, chunk_bytes=chunk_bytes,
        world_size=job.devices, has_switch=True,
    )  # fmt: skip
    return _play(job, nodes, plan, description, scale, min(job.devices, workers))


def _play(
    job: TrainingJob, nodes: OptimizerNodes, plan: NodePlan, description: Description,
    scale: int, count: int,
) -> float:  # fmt: skip
    """Connect a node, a switch and so many workers, and run them. The narrowest place on the way
    sets the rate (L1, L2), and is on one link of the way."""
    clock = Clock()
    latency_s = job.network.latency_s + nodes.tiers * job.network.hop_s
    to: dict[str, Link] = {}
    switch = DrivenSwitch(
        clock, workers=count, window_bytes=plan.window_bytes // scale,
        send=lambda peer, *what: to[peer].send(*what),
    )  # fmt: skip
    down = Link(
        clock, "down", rate=way_rate(job, nodes, "pull"), latency_s=latency_s,
        arrived=partial(switch.received, PARENT),
    )  # fmt: skip
    node = DrivenNode(
        clock, description=description, nodes=nodes, world_size=count, plan=plan, scale=scale,
        send=down.send,
    )  # fmt: skip
    to[PARENT] = Link(clock, "", arrived=node.received)
    workers = []
    for rank in reversed(range(count)):
        name = f"worker-{rank}"
        up = Link(
            clock, "up", rate=way_rate(job, nodes, "push"), latency_s=latency_s,
            arrived=partial(switch.received, name),
        )  # fmt: skip
        worker = DrivenWorker(
            clock, job=job, pulls=nodes.pulls, description=description, scale=scale, send=up.send,
            rank=rank, world_size=count,
        )  # fmt: skip
        workers.append(worker)
        to[name] = Link(clock, "", arrived=worker.received)
    clock.run()
    if not all(worker.is_finished for worker in workers):
        raise AssertionError(f"the cores stopped: the node waits for {node.core.waits_for()}")
    *_, before_s, end_s = workers[-1].ends_s
    resources = node_resources(job, nodes, job.model.parameters)
    return max(end_s - before_s, resources.get(DOMAIN_LINK, 0.0))


def _chunk_bytes(job: TrainingJob) -> int:
    """16 MiB, doubled until few are played in a step; but two of a layer, so that they overlap."""
    chunk_bytes = CHUNK_BYTES_MIN
    most = max(CHUNKS_MAX // job.micro_batches, 2 * job.model.layers)
    while job.model.parameters * SUM_BYTES / chunk_bytes > most:
        chunk_bytes *= 2
    return chunk_bytes


def _layout(job: TrainingJob, chunk_bytes: int, scale: int) -> Layout:
    """A parameter for each unit, 16-bit on the wire. An element is `scale` parameters: frames have
    a largest size, and models have not."""
    parameters, units = [], []
    for index, unit in enumerate(units_of(job)):
        shape = (round(unit.parameters / scale),)
        parameters.append(Parameter(name=unit.name, shape=shape, wire_dtype="bfloat16"))
        units.append(Unit(name=unit.name, parameters=(index,)))
    return Layout(parameters=tuple(parameters), units=tuple(units), chunk_bytes=chunk_bytes)


class DrivenSwitch:
    """One switch between so many workers and their node; `send` puts a message on its way."""

    def __init__(
        self, clock: Clock, *, workers: int, window_bytes: int,
        send: Callable[[str, Message, Any], None],
    ) -> None:  # fmt: skip
        self._clock, self._send = clock, send
        held_bytes, children = SLOT_WINDOWS * window_bytes, [1 << rank for rank in range(workers)]
        limits = SwitchLimits(
            push_window_bytes=window_bytes, slot_bytes_max=held_bytes, copies_bytes_max=held_bytes
        )
        self.core = SwitchCore(
            job=JOB, incarnation=1, children=children, limits=limits, retry=NEVER
        )

    def received(self, peer: str, message: Message, payload: Any, payload_bytes: int) -> None:
        self._do(self.core.received(self._clock.now_ns, peer, message, payload, payload_bytes))

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        self._send(peer, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Sum(payloads=[Token() as first, *_], dtypes=[dtype, *_]):
                    # A sum is float32, and costs as much as one of its terms: a network that sums
                    # gradients of 16 bits on the way is taken to send as many on.
                    elems = first.nbytes // DTYPES[dtype].nbytes
                    total = Token(elems * SUM_BYTES, first.cost_bytes)
                    self._do(self.core.summed(self._clock.now_ns, action, total, total.nbytes))
                case Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

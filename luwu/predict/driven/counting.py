"""Messages of a step, counted: the cores play a small job without time, and say what they send.

An *end* is a message that a process sends or receives. So many workers train a few extents through
a switch and a node; of the step that is counted each extent is pulled for forward and backward and
pushed once, and what is sent is put to the request, the pull, the push or the step itself. It is
right for any number of extents where nothing is lost, repeated or handed on raw, as an extent's
messages do not depend on the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import simpy

from luwu.base.limits import CHUNK_BYTES_STEP
from luwu.layout import SUM_BYTES, Layout, Parameter
from luwu.layout import Unit as LayoutUnit
from luwu.predict.driven.cores import OWN, SWITCH, Cores, worker_name
from luwu.predict.driven.driven_node import DrivenNode
from luwu.predict.driven.driven_switch import DrivenSwitch
from luwu.predict.driven.driven_worker import DrivenWorker, Script
from luwu.predict.driven.engine_work import EngineWork, NodeCosts
from luwu.predict.driven.links import Arrived, Link
from luwu.predict.events.engines import Record
from luwu.predict.model.units import Unit
from luwu.protocol.actions import PARENT
from luwu.wire.description import Description
from luwu.wire.kinds import Verb
from luwu.wire.messages import Message, Pull, Push, Received, Weights
from switch_emu.node.core.actions import NodeLimits
from switch_emu.switch.core.actions import SwitchLimits

EXTENTS: Final = 2
STEP: Final = 1
"""The one that is counted: the first has nothing before it."""
STEPS: Final = 3
WORKERS_MAX: Final = 16
"""Played; more of them add what the last of these added."""
ROOM_BYTES: Final = 1 << 40
"""Memory of switch and node: nothing waits for room."""
WORKER, NODE = "worker", "node"
REQUESTED, PULLED, PUSHED, STATED = "request", "pull", "push", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of messages at one process of a role."""

    request: float
    """Per unit and pull: what asks for its extents."""
    pull: float
    """Per extent and pull: its weights."""
    push: float
    """Per extent and push."""
    step: float
    """Per step: hyper-parameters, commit, verdict, decision."""


@cache
def ends_of_step(
    workers: int, update: str, cores: Cores = OWN, extent_chunks: int = 1
) -> dict[str, Ends]:
    """By role: `worker` (one of them), `switch`, `node`. `extent_chunks`: of each extent."""
    if workers <= WORKERS_MAX:
        return _Exchange(workers, update, cores, extent_chunks).ends()
    most = ends_of_step(WORKERS_MAX, update, cores, extent_chunks)
    fewer = ends_of_step(WORKERS_MAX - 1, update, cores, extent_chunks)
    more = workers - WORKERS_MAX

    def further(role: str) -> Ends:
        at, before = most[role], fewer[role]
        return Ends(
            request=at.request + more * (at.request - before.request),
            pull=at.pull + more * (at.pull - before.pull),
            push=at.push + more * (at.push - before.push),
            step=at.step + more * (at.step - before.step),
        )

    return {role: further(role) for role in most}


class _Exchange:
    """Workers, switch and node, and links that take no time."""

    def __init__(self, workers: int, update: str, cores: Cores, extent_chunks: int) -> None:
        self._env, self._counts = simpy.Environment(), Counter[tuple[str, str]]()
        elems = EXTENTS * extent_chunks * CHUNK_BYTES_STEP // SUM_BYTES
        layout = Layout(
            parameters=(Parameter(name="p", shape=(elems,)),),
            units=(LayoutUnit(name="u", parameters=(0,)),), chunk_bytes=CHUNK_BYTES_STEP,
            extent_chunks=extent_chunks,
        )  # fmt: skip
        assert len(layout.extents) == EXTENTS
        description = Description(
            layout=layout, optimizer="adamw", update=update, state_fields=("m", "v")
        )
        self._switch = DrivenSwitch(
            self._env, workers=workers, send=self._send_from_switch, cores=cores,
            limits=SwitchLimits(
                slot_bytes_max=ROOM_BYTES, copies_bytes_max=ROOM_BYTES,
                push_window_bytes=ROOM_BYTES, extent_chunks=extent_chunks,
            ),
        )  # fmt: skip
        work = EngineWork(
            self._env, Record(), Record(), description=description, scale=1,
            costs=NodeCosts(read_s=0.0, write_s=0.0, memory_s=0.0, away=0.0),
            sum_bytes_max=ROOM_BYTES,
        )  # fmt: skip
        self._node = DrivenNode(
            self._env, Record(), description=description, world_size=workers, work=work,
            limits=NodeLimits(
                sum_bytes_max=ROOM_BYTES, push_window_bytes=ROOM_BYTES,
                extent_chunks=extent_chunks,
            ),
            threads=(range(EXTENTS), range(EXTENTS)), cores=cores,
            send=self._link(NODE, SWITCH, self._received_by_switch(PARENT)).send,
        )  # fmt: skip
        script = Script(
            units=[Unit(name="u", parameters=elems, forward_s=0.0, backward_s=0.0)], steps=STEPS,
            micro_batches=1, pulls=2, ahead=1, gradient_dtype="float32",
        )  # fmt: skip
        self._workers = [
            DrivenWorker(
                self._env, Record(), Record(), script=script, description=description, rank=rank,
                world_size=workers, cores=cores,
                send=self._link(WORKER, SWITCH, self._received_by_switch(worker_name(rank))).send,
            )
            for rank in range(workers)
        ]  # fmt: skip
        self._to = {PARENT: self._link(SWITCH, NODE, self._node.received)} | {
            worker_name(rank): self._link(SWITCH, WORKER, worker.received)
            for rank, worker in enumerate(self._workers)
        }

    def ends(self) -> dict[str, Ends]:
        """Play some steps; what was counted in one of them."""
        self._env.run()
        finished = all(worker.is_finished for worker in self._workers)
        assert finished, f"the node waits for {self._node.core.waits_for()}"
        roles = {WORKER: len(self._workers), SWITCH: 1, NODE: 1}
        return {
            role: Ends(
                request=self._counts[role, REQUESTED] / (2 * count),
                pull=self._counts[role, PULLED] / (2 * EXTENTS * count),
                push=self._counts[role, PUSHED] / (EXTENTS * count),
                step=self._counts[role, STATED] / count,
            )
            for role, count in roles.items()
        }

    def _link(self, sender: str, receiver: str, received: Arrived) -> Link:
        """From one role to another; counts what it carries."""

        def arrived(message: Message, payload: Any, nbytes: int) -> None:
            if message.step == STEP:
                for role in (sender, receiver):
                    self._counts[role, _kind(message)] += 1
            received(message, payload, nbytes)

        return Link(self._env, Record(), "", rate=None, latency_s=0.0, arrived=arrived)

    def _received_by_switch(self, peer: str) -> Arrived:
        return lambda message, payload, nbytes: self._switch.received(
            peer, message, payload, nbytes
        )

    def _send_from_switch(self, peer: str, message: Message, payload: Any) -> None:
        self._to[peer].send(message, payload)


def _kind(message: Message) -> str:
    if isinstance(message, Pull):
        return REQUESTED
    if isinstance(message, Weights):
        return PULLED
    is_receipt = isinstance(message, Received) and message.verb is Verb.PUSH
    return PUSHED if is_receipt or isinstance(message, Push) else STATED

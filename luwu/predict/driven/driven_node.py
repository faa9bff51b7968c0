"""The project's own `NodeCore` in virtual time: it decides, and engines take the time.

Whatever a running node reads, folds, updates, publishes, writes, prepares and decides, and when, is
said by the same core here. This module does what its pipeline and its store do, without bytes:

    Update        read the page, pass over memory, `updated`; write the page, `written`
    Fold          pass over memory, `folded`          ReadWeights   the same, `weights_read`
    Prepare       all is flushed, `prepared`          Decide        `decided`, at once
    Spill         a gradient goes to drives, and is read back by its update or fold

Updates, folds and flushes are done by a crew of threads, weights are read by another, as
`switch_emu.node.pipeline` has it; drives read and write at once, memory does one thing at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from luwu.base.errors import ConfigError
from luwu.base.outstanding import RetryPolicy
from luwu.layout import SUM_BYTES
from luwu.predict.driven.links import Token
from luwu.predict.events.engines import Engine, Fields, Instant, Process, Record, Span
from luwu.predict.hardware.hosts import ADAM_BYTES, STATE_BYTES
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.systems.in_network import DMA, OptimizerNodes
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do

JOB = 1
NEVER = RetryPolicy(first_ns=10**18, most_ns=10**18)
"""Nothing is lost here, so nothing is said twice."""
SQUARES = (1.0,)
"""Of any gradient: a step is finite, and is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """What the engines of all nodes together take; nodes are equal, so one stands for all."""

    read_s: float
    """To read a byte from drives; NaN where there are none."""
    write_s: float
    memory_s: float
    """To pass over a byte of memory."""
    away: float
    """Of the state, the share on drives."""
    weights_away: bool = False
    """Masters are read from drives to be sent, where they are not in memory; else a copy of all
    weights stays there, as closed forms have it."""
    prepare_s: float = 0.0
    """To flush a step; the catalogue's drives do not say."""

    @staticmethod
    def of(nodes: OptimizerNodes, **more: Any) -> NodeCosts:
        """Of hosts of the catalogue. Raises ConfigError where a state is on drives and none is."""
        away = 1 - nodes.cached
        has_drives = away > 0 or nodes.host.disks > 0
        return NodeCosts(
            read_s=nodes.host.read(1.0) / nodes.nodes if has_drives else math.nan,
            write_s=nodes.host.write(1.0) / nodes.nodes if has_drives else math.nan,
            memory_s=1 / (nodes.host.memory_rate * nodes.nodes),
            away=away, **more,
        )  # fmt: skip

    @property
    def state_bytes(self) -> float:
        """Of a parameter, on drives."""
        return STATE_BYTES * self.away

    @property
    def update_bytes(self) -> float:
        """Of memory that the update of a parameter passes over; it reads the gradient too."""
        return ADAM_BYTES + 2 * DMA * self.state_bytes


class DrivenNode:
    """See the module.

    `send` puts a message on its way to the worker; `scale` is how many parameters each element of
    the layout stands for.
    """

    def __init__(
        self, env: simpy.Environment, record: Record, told: Record, *, description: Description,
        limits: do.NodeLimits, threads: int, costs: NodeCosts, scale: int,
        send: Callable[[Message, Any], None],
    ) -> None:  # fmt: skip
        self._env, self._told, self._layout = env, told, description.layout
        self._streaming = description.update == "streaming"
        self._costs, self._scale, self._send = costs, scale, send
        self._sum_bytes_max = limits.sum_bytes_max * scale
        self._read = Engine(env, record, "disk read")
        self._write = Engine(env, record, "disk write")
        self._memory = Engine(env, record, "node memory")
        self._crew = simpy.Resource(env, capacity=threads)
        self._readers = simpy.Resource(env, capacity=limits.reads_max)
        self.core = NodeCore(job=JOB, incarnation=1, ranks=1, limits=limits, retry=NEVER)
        self._do(self.core.store_opened(_facts(description)))

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        """A message came."""
        now_ns = round(self._env.now * 1e9)
        self._do(self.core.received(now_ns, "worker", message, payload, payload_bytes))

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Note(name, fields, _):
                    self._told.instants.append(Instant(name, self._env.now, fields))
                case do.Spill(payload):
                    payload.is_spilled = True  # type: ignore[attr-defined]
                    self._env.process(self._spill(payload))
                case do.Update():
                    self._env.process(self._update(action))
                case do.Fold():
                    self._env.process(self._fold(action))
                case do.ReadWeights():
                    self._env.process(self._read_weights(action))
                case do.Prepare():
                    self._env.process(self._prepare(action))
                case do.Decide():
                    self._env.process(self._decide(action))
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core says {action}")

    # ---------------------------------------------------------------------- the pipeline

    def _update(self, action: do.Update) -> Process:
        place, about = self._layout.chunks[action.chunk], _about(action)
        elems = place.elems * self._scale
        with self._crew.request() as turn:
            yield turn
            start_s = self._env.now
            yield from self._read_back(action.contributions, about)
            nbytes = elems * self._costs.state_bytes
            if nbytes:
                yield from self._read.work("state", nbytes * self._costs.read_s, nbytes, about)
            start_s = self._tell("read", start_s, nbytes, about)
            passed = elems * self._costs.update_bytes
            passed += self._arrived_bytes(action.contributions) if self._streaming else 0
            passed += elems * WIRE_BYTES if action.publish else 0
            yield from self._pass("update", passed, about)
            start_s = self._tell("update", start_s, passed, about)
            weights = Token(place.wire_bytes) if action.publish else None
            self._do(self.core.updated(action, SQUARES, weights))
            if nbytes:
                yield from self._write.work("state", nbytes * self._costs.write_s, nbytes, about)
            self._tell("write", start_s, nbytes, about)
        self._do(self.core.written(action))

    def _fold(self, action: do.Fold) -> Process:
        nbytes, about = self._layout.chunks[action.chunk].sum_bytes, _about(action)
        with self._crew.request() as turn:
            yield turn
            start_s = self._env.now
            before = () if action.total is None else (action.total,)
            yield from self._read_back((*action.contributions, *before), about)
            passed = float(2 * self._arrived_bytes(action.contributions))
            passed += nbytes * self._scale * (1 + len(before))
            yield from self._pass("fold", passed, about)
            self._tell("fold", start_s, passed, about)
        self._do(self.core.folded(action, SQUARES, Token(nbytes), nbytes))

    def _read_weights(self, action: do.ReadWeights) -> Process:
        place, about = self._layout.chunks[action.chunk], _about(action)
        elems = place.elems * self._scale
        with self._readers.request() as turn:
            yield turn
            start_s = self._env.now
            if self._costs.weights_away and self._costs.away:
                nbytes = elems * SUM_BYTES * self._costs.away
                yield from self._read.work("weights", nbytes * self._costs.read_s, nbytes, about)
            yield from self._pass("read_weights", elems * WIRE_BYTES, about)
            self._tell("read_weights", start_s, elems * WIRE_BYTES, about)
        self._do(self.core.weights_read(action, Token(place.wire_bytes)))

    def _prepare(self, action: do.Prepare) -> Process:
        with self._crew.request() as turn:
            yield turn
            start_s = self._env.now
            yield self._env.timeout(self._costs.prepare_s)
            self._tell("prepare", start_s, 0.0, (("step", action.version - 1),))
        self._do(self.core.prepared(action))

    def _decide(self, action: do.Decide) -> Process:
        with self._crew.request() as turn:
            yield turn
            self._tell("decide", self._env.now, 0.0, (("step", action.version - 1),))
        self._do(self.core.decided(action))

    # ---------------------------------------------------------------------- engines

    def _spill(self, payload: Any) -> Process:
        if math.isnan(self._costs.write_s):
            raise ConfigError(
                "node.disks: gradients that wait for their update take more than the "
                f"{self._sum_bytes_max / 2**20:,.0f} MiB that the node plans for them, and it has "
                "no drives for the rest; give disk and disks, or more memory"
            )
        nbytes = payload.nbytes * self._scale
        yield from self._write.work("spill", nbytes * self._costs.write_s, nbytes)

    def _read_back(self, contributions: Sequence[Any], about: Fields) -> Process:
        nbytes = self._arrived_bytes([each for each in contributions if each.payload.is_spilled])
        if nbytes:
            yield from self._read.work("spill", nbytes * self._costs.read_s, nbytes, about)

    def _pass(self, job: str, nbytes: float, about: Fields) -> Process:
        yield from self._memory.work(job, nbytes * self._costs.memory_s, nbytes, about)

    def _tell(self, name: str, start_s: float, nbytes: float, about: Fields) -> float:
        """As the node's own pipeline records it; the time now."""
        self._told.spans.append(Span(name, "", start_s, self._env.now, nbytes, about))
        return self._env.now

    def _arrived_bytes(self, contributions: Sequence[Any]) -> int:
        """What came in, and was put into memory as it came."""
        return sum(each.payload.nbytes for each in contributions) * self._scale


def _about(action: do.Update | do.Fold | do.ReadWeights) -> Fields:
    return (("step", action.step), ("chunk", action.chunk))


def _facts(description: Description) -> do.StoreFacts:
    """A store with its initial weights, opened for the first time."""
    return do.StoreFacts(
        description=description.to_bytes(), generation=1, attempt=1, epoch=0, job=JOB, version=0
    )

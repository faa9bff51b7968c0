"""The project's own `NodeCore` in virtual time: it decides, and its work takes the time.

Whatever a running node reads, folds, updates, publishes, writes, prepares and decides, and when, is
decided by the same core here. `DrivenNode` does what the node's pipeline does, without bytes:

    Update        `updated` when the page is read and made, `written` when it is on its other side
    Fold          `folded`          ReadWeights   `weights_read`
    Prepare       `prepared`        Decide        `decided`         Spill   at once

A crew of threads does updates, folds and flushes, another reads weights, as
`switch_emu.node.pipeline` has it. What each of these takes is said by a `NodeWork`: engines of
hosts that are not here (`EngineWork`: drives read and write at once, memory does one thing at a
time), or threads of this machine (`luwu.predict.machine`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from luwu.base.errors import ConfigError
from luwu.layout import SUM_BYTES
from luwu.predict.driven.cores import JOB, NEVER, OWN, SQUARES, SWITCH, Cores, store_facts
from luwu.predict.driven.links import Token
from luwu.predict.events.engines import Engine, Fields, Instant, Process, Record, Span
from luwu.predict.hardware.hosts import ADAM_BYTES, STATE_BYTES
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.systems.in_network import DMA, OptimizerNodes
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import actions as do


class NodeWork(Protocol):
    """What the node's work takes; each to be yielded from a process, by one thread of a crew."""

    def update(self, action: do.Update, thread: Any) -> Process:
        """Read a page and make its next version."""

    def write(self, action: do.Update, thread: Any) -> Process:
        """Write it."""

    def fold(self, action: do.Fold, thread: Any) -> Process:
        """Add a part of a step to the parts before."""

    def read_weights(self, action: do.ReadWeights, thread: Any) -> Process:
        """Read a page's weights to send them."""

    def flush(self, action: do.Prepare | do.Decide, thread: Any) -> Process:
        """Make a version durable, or record the decision."""

    def spill(self, payload: Token) -> Process:
        """Move a gradient to drives."""

    def is_placed(self, action: do.ReadWeights) -> bool:
        """Whether the weights lie where workers use them: no thread reads them."""

    def cost_bytes(self, chunk: int, nbytes: int) -> float:
        """What engines or threads take a payload of a chunk for."""


class DrivenNode:
    """See the module. `send` puts a message on its way to the switch."""

    def __init__(
        self, env: simpy.Environment, told: Record, *, description: Description, world_size: int,
        limits: do.NodeLimits, crew: Iterable[Any], readers: Iterable[Any], work: NodeWork,
        send: Callable[[Message, Any], None], in_place: bool = False, cores: Cores = OWN,
    ) -> None:  # fmt: skip
        """`crew`, `readers`: threads, which `work` is handed."""
        self._env, self._told, self._layout = env, told, description.layout
        self._work, self._send, self._in_place = work, send, in_place
        self._crew, self._readers = simpy.Store(env), simpy.Store(env)
        self._crew.items, self._readers.items = list(crew), list(readers)
        self.core = cores.node(
            job=JOB, incarnation=1, ranks=(1 << world_size) - 1, limits=limits, retry=NEVER
        )
        self._do(self.core.store_opened(store_facts(description)))

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        """A message came."""
        now_ns = round(self._env.now * 1e9)
        self._do(self.core.received(now_ns, SWITCH, message, payload, payload_bytes))

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
                    assert isinstance(payload, Token)
                    payload.is_spilled = True
                    self._env.process(self._work.spill(payload))
                case do.ReadWeights() if self._work.is_placed(action):
                    self._weights_read(action)
                case do.ReadWeights():
                    self._env.process(self._read_weights(action))
                case do.Update():
                    self._env.process(self._update(action))
                case do.Fold():
                    self._env.process(self._fold(action))
                case do.Prepare() | do.Decide():
                    self._env.process(self._flush(action))
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    # ---------------------------------------------------------------------- the pipeline

    def _update(self, action: do.Update) -> Process:
        thread = yield self._crew.get()
        yield from self._work.update(action, thread)
        weights = self._weights_of(action.chunk) if action.publish else None
        self._do(self.core.updated(action, SQUARES, weights, in_place=self._in_place))
        yield from self._work.write(action, thread)
        self._crew.put(thread)
        self._do(self.core.written(action))

    def _fold(self, action: do.Fold) -> Process:
        thread = yield self._crew.get()
        yield from self._work.fold(action, thread)
        self._crew.put(thread)
        nbytes = self._layout.chunks[action.chunk].sum_bytes
        total = Token(nbytes, self._cost(action.chunk, nbytes))
        self._do(self.core.folded(action, SQUARES, total, nbytes))

    def _read_weights(self, action: do.ReadWeights) -> Process:
        thread = yield self._readers.get()
        yield from self._work.read_weights(action, thread)
        self._readers.put(thread)
        self._weights_read(action)

    def _weights_read(self, action: do.ReadWeights) -> None:
        weights = self._weights_of(action.chunk)
        self._do(self.core.weights_read(action, weights, in_place=self._in_place))

    def _flush(self, action: do.Prepare | do.Decide) -> Process:
        thread = yield self._crew.get()
        yield from self._work.flush(action, thread)
        self._crew.put(thread)
        if isinstance(action, do.Prepare):
            self._do(self.core.prepared(action))
        else:
            self._do(self.core.decided(action))

    def _weights_of(self, chunk: int) -> Token:
        nbytes = self._layout.chunks[chunk].wire_bytes
        return Token(nbytes, self._cost(chunk, nbytes))

    def _cost(self, chunk: int, nbytes: int) -> float:
        return self._work.cost_bytes(chunk, nbytes)


# ---------------------------------------------------------------------- engines of hosts


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


class EngineWork:
    """A `NodeWork` of drives and memory; `scale` is how many parameters each element of the layout
    stands for."""

    def __init__(
        self, env: simpy.Environment, record: Record, told: Record, *, description: Description,
        costs: NodeCosts, scale: int, sum_bytes_max: int,
    ) -> None:  # fmt: skip
        self._env, self._told, self._layout = env, told, description.layout
        self._streaming = description.update == "streaming"
        self._costs, self._scale, self._sum_bytes_max = costs, scale, sum_bytes_max
        self._read = Engine(env, record, "disk read")
        self._write = Engine(env, record, "disk write")
        self._memory = Engine(env, record, "node memory")

    def update(self, action: do.Update, thread: Any) -> Process:
        about, elems, start_s = _about(action), self._elems(action.chunk), self._env.now
        yield from self._read_back(action.contributions, about)
        nbytes = elems * self._costs.state_bytes
        if nbytes:
            yield from self._read.work("state", nbytes * self._costs.read_s, nbytes, about)
        start_s = self._tell("read", start_s, nbytes, about)
        passed = elems * self._costs.update_bytes
        passed += _arrived_bytes(action.contributions) if self._streaming else 0
        passed += elems * WIRE_BYTES if action.publish else 0
        yield from self._pass("update", passed, about)
        self._tell("update", start_s, passed, about)

    def write(self, action: do.Update, thread: Any) -> Process:
        nbytes, about = self._elems(action.chunk) * self._costs.state_bytes, _about(action)
        start_s = self._env.now
        if nbytes:
            yield from self._write.work("state", nbytes * self._costs.write_s, nbytes, about)
        self._tell("write", start_s, nbytes, about)

    def fold(self, action: do.Fold, thread: Any) -> Process:
        nbytes, about = self._layout.chunks[action.chunk].sum_bytes, _about(action)
        start_s = self._env.now
        before = () if action.total is None else (action.total,)
        yield from self._read_back((*action.contributions, *before), about)
        passed = float(2 * _arrived_bytes(action.contributions))
        passed += nbytes * self._scale * (1 + len(before))
        yield from self._pass("fold", passed, about)
        self._tell("fold", start_s, passed, about)

    def read_weights(self, action: do.ReadWeights, thread: Any) -> Process:
        elems, about, start_s = self._elems(action.chunk), _about(action), self._env.now
        if self._costs.weights_away and self._costs.away:
            nbytes = elems * SUM_BYTES * self._costs.away
            yield from self._read.work("weights", nbytes * self._costs.read_s, nbytes, about)
        yield from self._pass("read_weights", elems * WIRE_BYTES, about)
        self._tell("read_weights", start_s, elems * WIRE_BYTES, about)

    def flush(self, action: do.Prepare | do.Decide, thread: Any) -> Process:
        start_s, is_prepare = self._env.now, isinstance(action, do.Prepare)
        if is_prepare:
            yield self._env.timeout(self._costs.prepare_s)
        name = "prepare" if is_prepare else "decide"
        self._tell(name, start_s, 0.0, (("step", action.version - 1),))

    def spill(self, payload: Token) -> Process:
        if math.isnan(self._costs.write_s):
            raise ConfigError(
                "node.disks: gradients that wait for their update take more than the "
                f"{self._sum_bytes_max / 2**20:,.0f} MiB that the node plans for them, and it has "
                "no drives for the rest; give disk and disks, or more memory"
            )
        nbytes = payload.cost_bytes
        yield from self._write.work("spill", nbytes * self._costs.write_s, nbytes)

    def is_placed(self, action: do.ReadWeights) -> bool:
        return False

    def cost_bytes(self, chunk: int, nbytes: int) -> float:
        return nbytes * self._scale

    def _elems(self, chunk: int) -> int:
        return self._layout.chunks[chunk].elems * self._scale

    def _read_back(self, contributions: Sequence[Any], about: Fields) -> Process:
        nbytes = _arrived_bytes([each for each in contributions if each.payload.is_spilled])
        if nbytes:
            yield from self._read.work("spill", nbytes * self._costs.read_s, nbytes, about)

    def _pass(self, job: str, nbytes: float, about: Fields) -> Process:
        yield from self._memory.work(job, nbytes * self._costs.memory_s, nbytes, about)

    def _tell(self, name: str, start_s: float, nbytes: float, about: Fields) -> float:
        """As the node's own pipeline records it; the time now."""
        self._told.spans.append(Span(name, "", start_s, self._env.now, nbytes, about))
        return self._env.now


def _arrived_bytes(contributions: Sequence[Any]) -> float:
    """What came in, and was put into memory as it came."""
    return sum(each.payload.cost_bytes for each in contributions)


def _about(action: do.Update | do.Fold | do.ReadWeights) -> Fields:
    return (("step", action.step), ("chunk", action.chunk))

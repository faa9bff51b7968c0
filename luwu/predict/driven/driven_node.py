"""The project's own `NodeCore` in virtual time: it decides, and its work takes the time.

Whatever a running node reads, folds, updates, publishes, writes, prepares and decides, and when, is
decided by the same core here. `DrivenNode` does what the node's pipeline does, without bytes:

    Update        `updated` when the page is read and made, `written` when it is on its other side
    Fold          `folded`          ReadWeights   `weights_read`
    Prepare       `prepared`        Decide        `decided`         Spill   at once

A crew of threads does updates, folds and flushes, another reads weights, as
`switch_emu.node.pipeline` has it: a thread takes the pages of an extent one after the other, and
hands out their weights before it writes the last.

Drives read and write at once, memory does one thing at a time. A page is read, passed over by the
update and written; a fold passes over what came and over the sum; a gradient for which there is no
room goes to drives, and is read back by its update or fold. The pages of an extent take their turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from luwu.base.errors import ConfigError
from luwu.layout import SUM_BYTES
from luwu.predict.driven.cores import JOB, NEVER, OWN, SQUARES, SWITCH, Cores, store_facts
from luwu.predict.driven.engines import Engine, Fields, Process, Record, Token
from luwu.predict.hardware.hardware import STATE_BYTES, adam_bytes
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.systems.in_network import DMA, OptimizerNodes
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import actions as do

# ---------------------------------------------------------------------- what work takes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """Costs of the engines of all nodes together; nodes are equal, so one stands for all."""

    read_s: float
    """To read a byte from drives; NaN where there are none."""
    write_s: float
    memory_s: float
    """To pass over a byte of memory."""
    away: float
    """Share of the state on drives."""
    parameter_bytes: float = STATE_BYTES
    """State of a parameter, wherever it is."""

    @staticmethod
    def of(nodes: OptimizerNodes) -> NodeCosts:
        """Costs on hosts of the catalogue. Raises ConfigError for a state on drives without any."""
        away = 1 - nodes.cached
        has_drives = away > 0 or nodes.host.disks > 0
        return NodeCosts(
            read_s=nodes.host.read(1.0) / nodes.nodes if has_drives else math.nan,
            write_s=nodes.host.write(1.0) / nodes.nodes if has_drives else math.nan,
            memory_s=1 / (nodes.host.memory_rate * nodes.nodes),
            away=away,
            parameter_bytes=nodes.state_bytes,
        )  # fmt: skip

    @property
    def state_bytes(self) -> float:
        """Bytes of a parameter on drives."""
        return self.parameter_bytes * self.away

    @property
    def update_bytes(self) -> float:
        """Memory traffic of the update of a parameter, reads of the gradient included."""
        return adam_bytes(self.parameter_bytes) + 2 * DMA * self.state_bytes


class _Page(NamedTuple):
    """A page of an extent."""

    chunk: int
    elems: int
    """Parameters that it stands for."""
    share: float
    """Share of the extent's payload that belongs to the page."""

    def about(self, step: int) -> Fields:
        return (("step", step), ("chunk", self.chunk))


class EngineWork:
    """Drives and memory; `scale` is how many parameters each element of the layout stands for.

    Each method is yielded from a process, by one of the node's threads.
    """

    def __init__(
        self, env: simpy.Environment, record: Record, *, description: Description,
        costs: NodeCosts, scale: int, sum_bytes_max: int,
    ) -> None:  # fmt: skip
        self._env, self._layout = env, description.layout
        self._streaming = description.update == "streaming"
        self._costs, self._scale, self._sum_bytes_max = costs, scale, sum_bytes_max
        self._read = Engine(env, record, "disk read")
        self._write = Engine(env, record, "disk write")
        self._memory = Engine(env, record, "node memory")

    def update(self, action: do.Update) -> Process:
        *pages, last = self._pages(action.extent)
        for page in pages:
            yield from self._update_page(action, page)
            yield from self._write_page(action, page)
        yield from self._update_page(action, last)

    def write(self, action: do.Update) -> Process:
        yield from self._write_page(action, self._pages(action.extent)[-1])

    def _update_page(self, action: do.Update, page: _Page) -> Process:
        about = page.about(action.step)
        yield from self._read_back(action.contributions, page, about)
        nbytes = page.elems * self._costs.state_bytes
        if nbytes:
            yield from self._read.work("state", nbytes * self._costs.read_s, nbytes, about)
        passed = page.elems * self._costs.update_bytes
        passed += _arrived_bytes(action.contributions, page) if self._streaming else 0
        passed += page.elems * WIRE_BYTES if action.publish else 0
        yield from self._pass("update", passed, about)

    def _write_page(self, action: do.Update, page: _Page) -> Process:
        nbytes, about = page.elems * self._costs.state_bytes, page.about(action.step)
        if nbytes:
            yield from self._write.work("state", nbytes * self._costs.write_s, nbytes, about)

    def fold(self, action: do.Fold) -> Process:
        before = () if action.total is None else (action.total,)
        for page in self._pages(action.extent):
            about = page.about(action.step)
            yield from self._read_back((*action.contributions, *before), page, about)
            passed = float(2 * _arrived_bytes(action.contributions, page))
            passed += page.elems * SUM_BYTES * (1 + len(before))
            yield from self._pass("fold", passed, about)

    def read_weights(self, action: do.ReadWeights) -> Process:
        for page in self._pages(action.extent):
            about = page.about(action.step)
            yield from self._pass("read_weights", page.elems * WIRE_BYTES, about)

    def flush(self, action: do.Prepare | do.Decide) -> Process:
        if isinstance(action, do.Prepare):
            yield self._env.timeout(0.0)  # the catalogue's drives do not say what a flush takes

    def spill(self, payload: Token) -> Process:
        if math.isnan(self._costs.write_s):
            raise ConfigError(
                "node.disks: gradients that wait for their update take more than the "
                f"{self._sum_bytes_max / 2**20:,.0f} MiB that the node plans for them, and it has "
                "no drives for the rest; give disk and disks, or more memory"
            )
        nbytes = payload.cost_bytes
        yield from self._write.work("spill", nbytes * self._costs.write_s, nbytes)

    def cost_bytes(self, extent: int, nbytes: int) -> float:
        return nbytes * self._scale

    def _pages(self, extent: int) -> list[_Page]:
        found = self._layout.extents[extent]
        return [
            _Page(index, elems * self._scale, elems / found.elems)
            for index in found.chunks
            for elems in (self._layout.chunks[index].elems,)
        ]

    def _read_back(self, contributions: Sequence[Any], page: _Page, about: Fields) -> Process:
        spilled = [each for each in contributions if each.payload.is_spilled]
        nbytes = _arrived_bytes(spilled, page)
        if nbytes:
            yield from self._read.work("spill", nbytes * self._costs.read_s, nbytes, about)

    def _pass(self, job: str, nbytes: float, about: Fields) -> Process:
        yield from self._memory.work(job, nbytes * self._costs.memory_s, nbytes, about)


def _arrived_bytes(contributions: Sequence[Any], page: _Page) -> float:
    """Received bytes of a page that were written to memory on arrival."""
    return sum(each.payload.cost_bytes for each in contributions) * page.share


# ---------------------------------------------------------------------- the node


class DrivenNode:
    """See the module. `send` puts a message on its way to the switch."""

    def __init__(
        self, env: simpy.Environment, *, description: Description, world_size: int,
        limits: do.NodeLimits, threads_count: int, work: EngineWork,
        send: Callable[[Message, Any], None], cores: Cores = OWN,
    ) -> None:  # fmt: skip
        """`threads_count`: of those that update; as many read weights as the limits allow."""
        self._env, self._layout = env, description.layout
        self._work, self._send = work, send
        self._crew, self._readers = simpy.Store(env), simpy.Store(env)
        self._crew.items = list(range(threads_count))
        self._readers.items = list(range(limits.reads_max))
        self.core = cores.node(
            job=JOB, incarnation=1, ranks=(1 << world_size) - 1, limits=limits, retry=NEVER,
        )  # fmt: skip
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
                case Note():
                    pass
                case do.Spill(payload):
                    assert isinstance(payload, Token)
                    payload.is_spilled = True
                    self._env.process(self._work.spill(payload))
                case do.ReadWeights():
                    self._env.process(self._read_weights(action))
                case do.Update():
                    self._env.process(self._update(action))
                case do.Fold():
                    self._env.process(self._fold(action))
                case do.Prepare() | do.Decide():
                    self._env.process(self._flush(action))
                case do.RecordAttempt() | do.Discard():
                    pass  # before the first step
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    # ---------------------------------------------------------------------- the pipeline

    def _update(self, action: do.Update) -> Process:
        thread = yield self._crew.get()
        yield from self._work.update(action)
        weights = self._weights_of(action.extent) if action.publish else None
        self._do(self.core.updated(action, SQUARES, weights))
        yield from self._work.write(action)
        self._crew.put(thread)
        self._do(self.core.written(action))

    def _fold(self, action: do.Fold) -> Process:
        thread = yield self._crew.get()
        yield from self._work.fold(action)
        self._crew.put(thread)
        nbytes = self._layout.extents[action.extent].sum_bytes
        total = Token(nbytes, self._cost(action.extent, nbytes))
        self._do(self.core.folded(action, {2.0: SQUARES}, total, nbytes))

    def _read_weights(self, action: do.ReadWeights) -> Process:
        thread = yield self._readers.get()
        yield from self._work.read_weights(action)
        self._readers.put(thread)
        self._do(self.core.weights_read(action, self._weights_of(action.extent)))

    def _flush(self, action: do.Prepare | do.Decide) -> Process:
        thread = yield self._crew.get()
        yield from self._work.flush(action)
        self._crew.put(thread)
        if isinstance(action, do.Prepare):
            self._do(self.core.prepared(action))
        else:
            self._do(self.core.decided(action))

    def _weights_of(self, extent: int) -> Token:
        nbytes = self._layout.extents[extent].wire_bytes
        return Token(nbytes, self._cost(extent, nbytes))

    def _cost(self, extent: int, nbytes: int) -> float:
        return self._work.cost_bytes(extent, nbytes)

"""The project's own `NodeCore` in virtual time: it decides, and its work takes the time.

A crew of threads does updates, folds and flushes, another reads weights, as
`switch_emu.node.pipeline` has it: a thread hands out the weights of a page before it writes it.
An extent is one chunk, and so one page.

Drives read and write at once, memory does one thing at a time. A page is read, passed over by the
update and written; a fold passes over what came and over the sum; a gradient for which there is no
room goes to drives, and is read back by its update or fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.layout import SUM_BYTES
from luwu.predict.driven.engines import JOB, NEVER, Engine, Token
from luwu.predict.hardware.hardware import adam_bytes
from luwu.predict.model.clock import Clock, Event, Process, Semaphore
from luwu.predict.model.layers import WIRE_BYTES
from luwu.predict.systems.in_network import DMA, OptimizerNodes
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.plan import NodePlan

SQUARES: Final = (1.0,)
"""Squares of any gradient: steps are finite, and are applied."""
SWITCH: Final = "switch"
"""The name by which the node knows its child."""


class DrivenNode:
    """See the module. `send` puts a message on its way to the switch; `scale` is how many
    parameters each element of the layout is."""

    def __init__(
        self, clock: Clock, *, description: Description, nodes: OptimizerNodes, world_size: int,
        plan: NodePlan, scale: int, send: Callable[[Message, Any], None],
    ) -> None:  # fmt: skip
        """`nodes` are equal: one is played. Raises ConfigError where the state lacks drives."""
        limits = do.NodeLimits(
            sum_bytes_max=plan.sums_bytes // scale, updates_max=plan.updates_max,
            reads_max=plan.reads_count, push_window_bytes=plan.window_bytes // scale,
        )  # fmt: skip
        self._clock, self._layout, self._scale, self._send = clock, description.layout, scale, send
        self._streaming = description.update == "streaming"
        self._sum_bytes_max = limits.sum_bytes_max
        self._crew = Semaphore(clock, plan.updates_count)
        self._readers = Semaphore(clock, plan.reads_count)
        self._read = Engine(clock, "disk read")
        self._write = Engine(clock, "disk write")
        self._memory = Engine(clock, "node memory")
        host, away = nodes.host, 1 - nodes.cached
        has_drives = away > 0 or host.disks > 0
        self._read_s = host.read(1.0) / nodes.nodes if has_drives else math.nan
        """Of a byte, as the two below."""
        self._write_s = host.write(1.0) / nodes.nodes if has_drives else math.nan
        self._memory_s = 1 / (host.memory_rate * nodes.nodes)
        self._state_bytes = nodes.state_bytes * away
        """Of a parameter, on drives."""
        self._update_bytes = adam_bytes(nodes.state_bytes) + 2 * DMA * self._state_bytes
        """Memory traffic of the update of a parameter, reads of the gradient included."""
        ranks = (1 << world_size) - 1
        self.core = NodeCore(job=JOB, incarnation=1, ranks=ranks, limits=limits, retry=NEVER)
        self._work: dict[type, Callable[[Any], Process]] = {
            do.ReadWeights: self._read_weights, do.Update: self._update, do.Fold: self._fold,
            do.Prepare: self._flush, do.Decide: self._flush,
        }  # fmt: skip
        opened = do.StoreFacts(  # for the first time, with its initial weights
            description=description.to_bytes(), generation=1, attempt=1, epoch=0, job=JOB, version=0
        )
        self._do(self.core.store_opened(opened))

    def received(self, message: Message, payload: Any, payload_bytes: int) -> None:
        self._do(self.core.received(self._clock.now_ns, SWITCH, message, payload, payload_bytes))

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case do.Spill(payload):
                    assert isinstance(payload, Token)
                    payload.spilled = Event(self._clock)
                    self._clock.start(self._spill(payload))
                case do.ReadWeights() | do.Update() | do.Fold() | do.Prepare() | do.Decide():
                    self._clock.start(self._work[type(action)](action))
                case Note() | do.RecordAttempt() | do.Discard():  # the two before the first step
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    def _update(self, action: do.Update) -> Process:
        yield self._crew.acquire()
        elems = self._elems(action.extent)
        yield from self._read_back(action.contributions)
        away = elems * self._state_bytes
        if away:
            yield from self._read.work(away * self._read_s)
        passed = elems * self._update_bytes
        passed += _arrived_bytes(action.contributions) if self._streaming else 0
        passed += elems * WIRE_BYTES if action.publish else 0
        yield from self._memory.work(passed * self._memory_s)
        weights = self._weights_of(action.extent) if action.publish else None
        self._do(self.core.updated(action, SQUARES, weights))
        if away:
            yield from self._write.work(away * self._write_s)
        self._crew.release()
        self._do(self.core.written(action))

    def _fold(self, action: do.Fold) -> Process:
        yield self._crew.acquire()
        before = () if action.total is None else (action.total,)
        yield from self._read_back((*action.contributions, *before))
        passed = 2 * _arrived_bytes(action.contributions)
        passed += self._elems(action.extent) * SUM_BYTES * (1 + len(before))
        yield from self._memory.work(passed * self._memory_s)
        self._crew.release()
        nbytes = self._layout.extents[action.extent].sum_bytes
        total = Token(nbytes, nbytes * self._scale)
        self._do(self.core.folded(action, {2.0: SQUARES}, total, nbytes))

    def _read_weights(self, action: do.ReadWeights) -> Process:
        yield self._readers.acquire()
        passed = self._elems(action.extent) * WIRE_BYTES
        yield from self._memory.work(passed * self._memory_s)
        self._readers.release()
        self._do(self.core.weights_read(action, self._weights_of(action.extent)))

    def _flush(self, action: do.Prepare | do.Decide) -> Process:
        yield self._crew.acquire()
        self._crew.release()  # the catalogue's drives do not say what a flush takes
        if isinstance(action, do.Prepare):
            self._do(self.core.prepared(action))
        else:
            self._do(self.core.decided(action))

    def _spill(self, payload: Token) -> Process:
        if math.isnan(self._write_s):
            raise ConfigError(
                "node.disks: gradients that wait for their update take more than the "
                f"{self._sum_bytes_max * self._scale / 2**20:,.0f} MiB that the node plans for "
                "them, and it has no drives for the rest; give disk and disks, or more memory"
            )
        yield from self._write.work(payload.cost_bytes * self._write_s)
        assert payload.spilled is not None
        payload.spilled.set()

    def _elems(self, extent: int) -> int:
        """Its parameters."""
        return self._layout.extents[extent].elems * self._scale

    def _weights_of(self, extent: int) -> Token:
        nbytes = self._layout.extents[extent].wire_bytes
        return Token(nbytes, nbytes * self._scale)

    def _read_back(self, contributions: Sequence[Any]) -> Process:
        spilled = [each for each in contributions if each.payload.spilled]
        yield from (each.payload.spilled for each in spilled)
        nbytes = _arrived_bytes(spilled)
        if nbytes:
            yield from self._read.work(nbytes * self._read_s)


def _arrived_bytes(contributions: Sequence[Any]) -> float:
    """Received bytes that were written to memory on arrival."""
    return float(sum(each.payload.cost_bytes for each in contributions))

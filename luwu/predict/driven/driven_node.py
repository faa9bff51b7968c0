"""The project's own `NodeCore` in virtual time: it decides, and its work takes the time.

Whatever a running node reads, folds, updates, publishes, writes, prepares and decides, and when, is
decided by the same core here. `DrivenNode` does what the node's pipeline does, without bytes:

    Update        `updated` when the page is read and made, `written` when it is on its other side
    Fold          `folded`          ReadWeights   `weights_read`
    Prepare       `prepared`        Decide        `decided`         Spill   at once

A crew of threads does updates, folds and flushes, another reads weights, as
`switch_emu.node.pipeline` has it: a thread takes the pages of an extent one after the other, and
hands out their weights before it writes the last. `engine_work.py` has the time that each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from luwu.predict.driven.cores import JOB, NEVER, OWN, SQUARES, SWITCH, Cores, store_facts
from luwu.predict.driven.engine_work import EngineWork
from luwu.predict.driven.engines import Process
from luwu.predict.driven.links import Token
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.messages import Message
from switch_emu.node.core import actions as do


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

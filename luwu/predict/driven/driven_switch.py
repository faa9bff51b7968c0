"""The project's own `SwitchCore` in virtual time: it decides what is summed, kept and sent to whom.

A shell of a dozen lines: messages go to `send`, sums are made by `add`, and the core is answered
when they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from luwu.base.dtypes import DTYPES
from luwu.layout import SUM_BYTES
from luwu.predict.driven.cores import JOB, NEVER, OWN, Cores
from luwu.predict.driven.links import Token
from luwu.predict.events.engines import Process
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.messages import Message
from switch_emu.switch.core.actions import Cache, Sum, SwitchLimits

Working = Callable[[Sum | Cache], Process]
"""The time that a sum takes, given its action and the payload that comes of it."""


class DrivenSwitch:
    """One switch between so many workers and their nodes.

    `send` puts a message on its way to a peer; `work` takes the time of a sum, or of a copy to the
    cache (None: no time). `caches_in_place`: workers use cached weights where they lie.
    """

    def __init__(
        self, env: simpy.Environment, *, workers: int, send: Callable[[str, Message, Any], None],
        limits: SwitchLimits | None = None, work: Working | None = None, cores: Cores = OWN,
        nodes: int = 1, replicas: int = 1, caches_in_place: bool = False,
    ) -> None:  # fmt: skip
        self._env, self._send, self._work = env, send, work
        self._caches_in_place = caches_in_place
        self.core = cores.switch(
            job=JOB, incarnation=1, children=[1 << rank for rank in range(workers)], limits=limits,
            retry=NEVER, parents_count=nodes, replicas=replicas,
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
                case Sum() | Cache():
                    made = made_by(action)
                    if self._work is None:
                        self._made(action, made)
                    else:
                        self._env.process(self._make(self._work(action), action, made))
                case Note():
                    pass
                case _:
                    raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")

    def _make(self, work: Process, action: Sum | Cache, made: Token) -> Process:
        yield from work
        self._made(action, made)

    def _made(self, action: Sum | Cache, made: Token) -> None:
        core, now_ns, nbytes = self.core, self._now_ns, made.nbytes
        if isinstance(action, Sum):
            self._do(core.summed(now_ns, action, made, nbytes))
        else:
            self._do(core.cached(now_ns, action, made, nbytes, in_place=self._caches_in_place))


def made_by(action: Sum | Cache) -> Token:
    """The payload of cached weights, or of a sum: float32, as the core announces it. It costs as
    much as one of its terms: a network that sums gradients of 16 bits on the way is taken to send
    as many on."""
    if isinstance(action, Cache):
        assert isinstance(action.payload, Token)
        return action.payload.copy()
    first = action.payloads[0]
    assert isinstance(first, Token)
    elems = first.nbytes // DTYPES[action.dtypes[0]].nbytes
    return Token(elems * SUM_BYTES, first.cost_bytes)

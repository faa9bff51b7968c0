"""The project's own `SwitchCore` in virtual time: it decides what is summed, kept and sent to whom.

A shell of a dozen lines: messages go to `send`, and sums take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import simpy

from luwu.base.dtypes import DTYPES
from luwu.layout import SUM_BYTES
from luwu.predict.driven.cores import JOB, NEVER, OWN, Cores
from luwu.predict.driven.links import Token
from luwu.protocol.actions import Drop, Note, Send
from luwu.wire.messages import Message
from switch_emu.switch.core.actions import Sum, SwitchLimits


class DrivenSwitch:
    """One switch between so many workers and their node; `send` puts a message on its way."""

    def __init__(
        self, env: simpy.Environment, *, workers: int, send: Callable[[str, Message, Any], None],
        limits: SwitchLimits, cores: Cores = OWN,
    ) -> None:  # fmt: skip
        self._env, self._send = env, send
        self.core = cores.switch(
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
    taken to send as many on.
    """
    first = action.payloads[0]
    assert isinstance(first, Token)
    elems = first.nbytes // DTYPES[action.dtypes[0]].nbytes
    return Token(elems * SUM_BYTES, first.cost_bytes)

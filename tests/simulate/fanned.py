"""A switch's core below several optimizer nodes, as one pure object: SwitchCore and Fan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import PARENT, Send
from luwu.wire.messages import Message, ReaderRequest
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fan import Fan
from switch_emu.switch.shell import parent_names


class FannedSwitch:
    """A SwitchCore whose parents are called `parent_names(parents_count)`, by their number."""

    def __init__(
        self, *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
        limits: SwitchLimits | None = None, retry: RetryPolicy | None = None, parents_count: int,
    ) -> None:  # fmt: skip
        self.core = SwitchCore(
            job=job, incarnation=incarnation, children=children, rank=rank, limits=limits,
            retry=retry,
        )  # fmt: skip
        self._fan = Fan(parents_count)
        self._parents = parent_names(parents_count)

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Any]:  # fmt: skip
        """A message came, of a child or of one of the nodes."""
        if peer not in self._parents:
            actions = self.core.received(now_ns, peer, message, payload, payload_bytes)
            return self._to_nodes(now_ns, actions)
        found: list[Any] = []
        for each in self._fan.down(self._parents.index(peer), message):
            data, nbytes = (payload, payload_bytes) if each is message else (None, 0)
            actions = self.core.received(now_ns, PARENT, each, data, nbytes)
            found += self._to_nodes(now_ns, actions)
        for number, hello, description in self._fan.to_greet():
            found.append(Send((self._parents[number],), hello, description))
        return found

    def summed(self, now_ns: int, done: Any, payload: Any, payload_bytes: int) -> list[Any]:
        """The sum that `done` asked for."""
        return self._to_nodes(now_ns, self.core.summed(now_ns, done, payload, payload_bytes))

    def reconnected(self, now_ns: int, parents: Sequence[int]) -> list[Any]:
        """The connections to these nodes are back."""
        for number in parents:
            self._fan.reconnected(number)
        return self._to_nodes(now_ns, self.core.reconnected(now_ns))

    def lost(self, now_ns: int, peer: str) -> list[Any]:
        """The connection to a child has ended."""
        return self._to_nodes(now_ns, self.core.lost(now_ns, peer))

    def tick(self, now_ns: int) -> list[Any]:
        """Repeat what is due."""
        return self._to_nodes(now_ns, self.core.tick(now_ns))

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self.core.next_tick_ns()

    @property
    def finished(self) -> bool:
        """All children have left, and the nodes know."""
        return self.core.finished

    def _to_nodes(self, now_ns: int, actions: Sequence[Any]) -> list[Any]:
        """The same actions, where the parent is replaced by the nodes that a message concerns."""
        found: list[Any] = []
        for action in actions:
            if not isinstance(action, Send) or PARENT not in action.peers:
                found.append(action)
                continue
            for peer in action.peers:
                found += self._sent(now_ns, peer, action)
        return found

    def _sent(self, now_ns: int, peer: str, send: Send) -> list[Any]:
        if peer != PARENT:
            return [Send((peer,), send.message, send.payload)]
        if isinstance(send.message, ReaderRequest):
            gone = self._fan.refusal(send.message)
            return self._to_nodes(now_ns, self.core.received(now_ns, PARENT, gone))
        numbers, message = self._fan.up(send.message, send.payload), self._fan.stamped(send.message)
        peers = tuple(self._parents[number] for number in numbers)
        return [Send(peers, message, send.payload)]

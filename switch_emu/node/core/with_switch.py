"""A node and its own switch (`--no-switch`), and the messages between them. Pure.

    workers --- SwitchCore --- NodeCore --- pipeline

    received, lost, tick    events of the two cores; the answer is the actions of the core
    outward                 the actions of a core without its messages to the other, which wait
    carry                   give the next message that waits to the other core

All actions of both cores pass through `outward`, once, before they are done; `carry` is called when
they are done, so neither core acts while actions of the other are still to be done. A data payload
that passes between the cores is shared: each of them drops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from luwu.protocol.actions import PARENT, Note, Send
from luwu.protocol.uplink import earliest
from luwu.wire.link_counts import LinkCounts
from luwu.wire.messages import Message
from switch_emu.node.core.node import NodeCore
from switch_emu.switch.core import SwitchCore

_NOTED_TWICE = ("switch.step", "switch.abort")
"""Notes of the switch that the node makes already."""
OWN_SWITCH = "own-switch"
"""The name by which the node knows its own switch."""


class NodeWithSwitch:
    """Two cores that are each other's parent and child."""

    def __init__(self, node: NodeCore, switch: SwitchCore) -> None:
        self.node, self.switch, self.duplicates = node, switch, node.duplicates
        self._waiting: deque[tuple[Send, int]] = deque()
        """Messages and the bytes of their data payloads."""
        self.links = LinkCounts()
        """Messages between them, as the node counts them."""

    # ---------------------------------------------------------------------- between the cores

    def outward(self, actions: Sequence[Any]) -> list[Any]:
        """The actions of one of the cores, without its messages to the other core."""
        found: list[Any] = []
        for action in actions:
            if isinstance(action, Send) and action.peers in ((PARENT,), (OWN_SWITCH,)):
                payload: Any = action.payload  # data that both cores have: each drops it
                is_data = payload is not None and not isinstance(payload, bytes)
                nbytes = payload.share().nbytes if is_data else 0
                self._waiting.append((action, nbytes))
            elif not (isinstance(action, Note) and action.name in _NOTED_TWICE):
                found.append(action)
        return found

    @property
    def is_waiting(self) -> bool:
        """True if a message waits for `carry`."""
        return bool(self._waiting)

    def carry(self, now_ns: int) -> list[Any]:
        """Give the next message to its core; the actions of that core."""
        send, nbytes = self._waiting.popleft()
        message, payload = send.message, send.payload
        if send.peers == (PARENT,):
            self.links.received(OWN_SWITCH, type(message), 0, nbytes)
            return self.node.received(now_ns, OWN_SWITCH, message, payload, nbytes)
        self.links.sent(OWN_SWITCH, type(message), 0, nbytes)
        return self.switch.received(now_ns, PARENT, message, payload, nbytes)

    # ---------------------------------------------------------------------- both as one

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Any]:
        """A message of a worker came."""
        return self.switch.received(now_ns, peer, message, payload, payload_bytes)

    def lost(self, now_ns: int, peer: str) -> list[Any]:
        """The connection to a worker has ended."""
        return [*self.node.lost(now_ns, peer), *self.switch.lost(now_ns, peer)]

    def tick(self, now_ns: int) -> list[Any]:
        """Repeat what is due."""
        return [*self.node.tick(now_ns), *self.switch.tick(now_ns)]

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return earliest(self.node.next_tick_ns(), self.switch.next_tick_ns())

    def is_member(self, peer: str) -> bool:
        """True if a connection is that of a worker that has joined."""
        return self.switch.is_member(peer) or self.node.is_member(peer)

    def name_of(self, peer: str) -> str:
        """The name of a connection, as text."""
        return self.switch.name_of(peer)

    def waits_for(self) -> str:
        """The next event that the pair waits for, as text."""
        return (self.node if self.switch.is_joined else self.switch).waits_for()

    def counts(self) -> dict[str, int]:
        """Counters of both; of equal names, those of the node."""
        return {**self.switch.counts(), **self.node.counts()}

    @property
    def finished(self) -> bool:
        """The job is over at both."""
        return self.node.finished and self.switch.finished

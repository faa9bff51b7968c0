"""The simulated node with a switch of its own (`--no-switch`): workers are connected to it."""

from __future__ import annotations

from typing import Any

from luwu.protocol.actions import End, Expel
from luwu.wire.messages import Message
from switch_emu.node.core import NodeCore
from switch_emu.node.core.with_switch import NodeWithSwitch
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Sum
from tests.simulate.job import JOB
from tests.simulate.machines import Node, added_up
from tests.simulate.world import Payload, payload_bytes


class NodeOfWorkers(Node):
    """A node, its own switch, and what passes between them; they live and die together."""

    def _make_core(self) -> NodeCore:
        job = self._job
        switch = SwitchCore(
            job=JOB, incarnation=self.disk.starts, limits=job.limits, retry=job.retry,
            children=[1 << rank for rank in range(job.world_size)],
        )  # fmt: skip
        node = super()._make_core()
        self.pair = NodeWithSwitch(node, switch)
        return node

    @property
    def has_all_children(self) -> bool:
        """Every worker has joined."""
        return self.pair.switch.children.members.complete

    def tick(self) -> None:
        self._do(self.pair.tick(self._world.now_ns))

    def child_lost(self, name: str) -> None:
        """The connection of a worker has ended."""
        self._do(self.pair.lost(self._world.now_ns, name))

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        nbytes = payload_bytes(payload)
        self._do(self.pair.received(self._world.now_ns, sender, message, payload, nbytes))

    def _do(self, actions: list[Any]) -> None:
        super()._do(self.pair.outward(actions))
        while self.alive and self.pair.is_waiting:
            super()._do(self.pair.outward(self.pair.carry(self._world.now_ns)))

    def _do_other(self, action: Any) -> None:
        match action:
            case Sum():
                values = [payload.read().copy() for payload in action.payloads]  # type: ignore[attr-defined]
                self.later(lambda: self._do(self._sum(action, values)))
            case Expel() | End():
                pass
            case _:
                super()._do_other(action)

    def _sum(self, action: Sum, values: list[Any]) -> list[Any]:
        total = added_up(self.pair.switch, action, values)
        payload = Payload(total, self.account)
        return self.pair.switch.summed(self._world.now_ns, action, payload, total.nbytes)

    def _send(self, peers: tuple[str, ...], message: Message, payload: Any) -> None:
        """To workers; none is connected any more to one that was replaced."""
        if not self.is_superseded:
            super()._send(peers, message, payload)

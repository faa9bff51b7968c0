"""Whole clusters of the real cores: scripted workers, a tree of switches, nodes with disks.

The oracles (`oracles.py`) look at all that workers see and disks hold; `Cluster.run` lets a job
finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from luwu.base.tree import Place
from switch_emu.switch.core import SwitchCore
from tests.simulate.disk import Disk
from tests.simulate.job import Job
from tests.simulate.limits import bytes_max
from tests.simulate.machines import Node, Switch, node_name
from tests.simulate.no_switch import NodeOfWorkers
from tests.simulate.oracles import Oracles
from tests.simulate.worker import Worker
from tests.simulate.world import Faults, Payload, Process, World


class Cluster:
    """One job's processes; `run` lets it finish. The oracles look at all that happens."""

    node_type: type[Node] = Node
    """Of optimizer nodes that have no switch of their own."""

    def __init__(self, seed: int, job: Job, faults: Faults) -> None:
        Payload.live_count = 0
        self.job = job
        self.world = World(seed, faults)
        count = job.layout.optimizer_nodes
        self.disks = [self.make_disk(number, count) for number in range(count)]
        self.oracles = Oracles(job, self.disks, self._known_steps)
        for disk in self.disks:
            disk.on_decided = self.oracles.decided
        self.nodes = [self.make_node(number) for number in range(count)]
        places = () if job.own_switch else job.tree
        self.switches = {place.name: self.make_switch(place, 1) for place in places}
        self.workers = [self.make_worker(rank) for rank in range(job.world_size)]
        self._ticks()

    def make_disk(self, number: int, count: int) -> Disk:
        return Disk(self.job, number, count)

    def make_node(self, number: int) -> Node:
        kind = NodeOfWorkers if self.job.own_switch else self.node_type
        node = kind(self.world, self.job, self.disks, number, on_failed=self.node_failed)
        if node.alive and not node.is_stalled:
            self.oracles.opened(number)
        if len(self.disks) > 1 and node.alive:  # the switch learns of its end: a connection ends
            node.on_killed = lambda node: self.world.soon(lambda: self._connected(node))
            self.world.soon(lambda: self._connected(node))
        return self._limited(node)

    def node_failed(self, node: Node) -> None:
        """A node ended by itself."""

    def _connected(self, node: Node) -> None:
        """The root switch learns that a node is there, or gone; of one that has a successor, only
        what becomes of that."""
        if node.is_superseded or node is not self.nodes[node.number]:
            return
        switch = self.switches.get(self.job.tree.root.name)
        if switch is not None and switch.alive:
            switch.enter(lambda: switch.parent_is(node.number, there=node.alive))

    def make_switch(self, place: Place, incarnation: int) -> Switch:
        switch = Switch(self.world, self.job, place, incarnation=incarnation)
        switch.on_step = self.oracles.noted
        return self._limited(switch)

    def make_worker(self, rank: int, start: int = 0) -> Worker:
        parent = self.parent_of(rank)
        return self._limited(Worker(self.world, self.job, rank, parent, start, self.oracles))

    def _limited(self, process: Any) -> Any:
        """A process that may hold so many payloads and no more (O5)."""
        process.account.bytes_max = bytes_max(self.job, process)
        return process

    def _known_steps(self) -> int:
        """Decided steps of which anybody knows who must be heard before a step is made."""
        if self.job.node_limits.workers_min is not None:
            return 0  # whoever knows may be left out
        known = [each.core.out.step for each in self.workers if each.alive]
        known += [each.core.outbox.step for each in self.switches.values() if each.alive]
        return max(known, default=0)

    def parent_of(self, rank: int) -> str:
        """The process to which a worker is connected."""
        return node_name(0) if self.job.own_switch else self.job.tree.leaf_of(rank).process

    @property
    def switch_cores(self) -> list[SwitchCore]:
        """Of all switches, nodes' own among them."""
        own = [node.pair.switch for node in self.nodes if isinstance(node, NodeOfWorkers)]
        return [*(switch.core for switch in self.switches.values()), *own]

    def _ticks(self) -> None:
        for process in (*self.workers, *self.switches.values(), *self.nodes):
            process.enter(process.tick)
        self.world.at(10_000_000, self._ticks)

    @property
    def switch(self) -> Switch:
        """The one below the node."""
        return self.switches[self.job.tree.root.name]

    def lose_node(self, number: int, *, comes_back: bool = False) -> None:
        """Kill a node, and delete its directory; another may start on an empty one."""
        if self.nodes[number].alive:
            self.nodes[number].kill()
        self.disks[number].lose()

        def start() -> None:
            self.nodes[number] = self.make_node(number)

        if comes_back:
            self.world.at(30_000_000, start)

    def process(self, who: str) -> Process:
        """Whom a fault means."""
        role, _, number = who.partition(" ")
        processes: Sequence[Process] = {
            "worker": self.workers, "switch": list(self.switches.values()) or self.nodes,
            "node": self.nodes,
        }[role]  # fmt: skip
        return processes[int(number) % len(processes)]

    def reconnect(self, who: str) -> None:
        """Break the connection to the parent."""
        process = self.process(who)
        if isinstance(process, Node):
            if len(self.nodes) == 1:
                return
            process = self.switch
        if process.alive:
            process.enter(process.reconnected)  # type: ignore[attr-defined]

    def run(self) -> str:
        """Finish the job: the digest of its weights, which are those of the plain loop."""
        self.world.run(
            lambda: all(worker.finished for worker in self.workers), limit_ns=600 * 10**9
        )
        return self.oracles.at_the_end()

    def lose_messages(self, is_lost: Callable[[str, Any], bool]) -> list[Any]:
        """Lose the messages of which this is true, by receiver and message; those lost so far."""
        send, lost = self.world.send, []

        def losing(sender: str, receiver: str, message: Any, payload: Any) -> None:
            if is_lost(receiver, message):
                lost.append(message)
            else:
                send(sender, receiver, message, payload)

        self.world.send = losing  # type: ignore[method-assign]
        return lost

    def skipped_steps(self) -> set[int]:
        """Those that were left out, of which all workers were told the same."""
        told = [
            frozenset(step for step, decided in worker.decided.items() if not decided.applied)
            for worker in self.workers
        ]
        assert len(set(told)) == 1
        return set(told[0])

    def run_to_the_end(self) -> str:
        """The same, until every node has ended; none may be killed as the last worker leaves."""
        digest = self.run()
        self.world.run(lambda: all(node.core.finished for node in self.nodes), limit_ns=700 * 10**9)
        return digest

"""Whole clusters of the real cores: scripted workers, a tree of switches, nodes with disks.

`Cluster.run` lets a job finish and checks the oracles: I1 by the ledger on disk, I2 by what each
disk has decided when (`machines.py`), I3 by the weights of every step that any worker saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from luwu.base.tree import Place
from switch_emu.switch.core import SwitchCore
from tests.simulate.disk import Disk, members_of
from tests.simulate.job import Job, kept, reference
from tests.simulate.machines import Node, Switch, node_name
from tests.simulate.no_switch import NodeOfWorkers
from tests.simulate.worker import Worker
from tests.simulate.world import Faults, Payload, World


class Cluster:
    """One job's processes; `run` lets it finish and checks the oracles."""

    def __init__(self, seed: int, job: Job, faults: Faults) -> None:
        Payload.live_count = 0
        self.seed, self.job = seed, job
        self.world = World(seed, faults)
        self.disks = self.make_disks(job, job.layout.optimizer_nodes)
        self.nodes = [self.make_node(number) for number in range(len(self.disks))]
        places = () if job.own_switch else job.tree
        self.switches = {place.name: self.make_switch(place, 1) for place in places}
        self.workers = [self.make_worker(rank) for rank in range(job.world_size)]
        self._ticks()

    def make_disks(self, job: Job, count: int) -> list[Disk]:
        return [Disk(job, number, count) for number in range(count)]

    def make_node(self, number: int) -> Node:
        kind = NodeOfWorkers if self.job.own_switch else Node
        return self.watched(kind(self.world, self.job, self.disks, number))

    def watched(self, node: Node) -> Node:
        """A node whose end the switch of several learns of: its connection ends."""
        if len(self.disks) > 1 and node.alive:
            node.on_killed = lambda node: self.world.soon(lambda: self._connected(node))
            self.world.soon(lambda: self._connected(node))
        return node

    def _connected(self, node: Node) -> None:
        """The root switch learns that a node is there, or gone; of one that has a successor, only
        what becomes of that."""
        if node.is_superseded or node is not self.nodes[node.number]:
            return
        switch = self.switches.get(self.job.tree.root.name)
        if switch is not None and switch.alive:
            switch.enter(lambda: switch.parent_is(node.number, there=node.alive))

    def make_switch(self, place: Place, incarnation: int) -> Switch:
        return Switch(self.world, self.job, place, incarnation=incarnation)

    def make_worker(self, rank: int) -> Worker:
        return Worker(self.world, self.job, rank, self.parent_of(rank))

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

    def restart_switch(self, name: str | None = None) -> None:
        """Kill a switch, the root unless named; one that knows nothing takes its place."""
        former = self.switches[self.job.tree.root.name if name is None else name]
        former.kill()
        incarnation = self.world.now_ns + 2

        def start() -> None:
            self.switches[former.place.name] = self.make_switch(former.place, incarnation)

        self.world.at(30_000_000, start)

    def restart_node(self, number: int = 0) -> None:
        """Kill a node; a new one opens the same disk."""
        self.nodes[number].kill()
        self.world.at(30_000_000, lambda: self._start_node(number))

    def lose_node(self, number: int, *, comes_back: bool = False) -> None:
        """Kill a node, and delete its directory; another may start on an empty one."""
        if self.nodes[number].alive:
            self.nodes[number].kill()
        self.disks[number].lose()
        if comes_back:
            self.world.at(30_000_000, lambda: self._start_node(number))

    def _start_node(self, number: int) -> None:
        if not self.nodes[number].alive:
            self.nodes[number] = self.make_node(number)

    def reconnect(self, rank: int) -> None:
        """A worker's connection is lost; it comes back under another name."""
        self.workers[rank].reconnected()

    def reconnect_switch(self, name: str | None = None) -> None:
        """A switch's connection to its parent is lost and comes back under another name."""
        switch = self.switches[self.job.tree.root.name if name is None else name]
        if switch.alive:
            switch.reconnected()

    def run(self) -> None:
        """Finish the job and check it: I1, I3 and that every worker saw the right weights."""
        self.world.run(
            lambda: all(worker.finished for worker in self.workers), limit_ns=600 * 10**9
        )
        versions = reference(self.job)
        members = members_of(self.disks)
        for disk in members:
            number = disk.number
            assert disk.version == self.job.steps, self._where(number)
            assert set(disk.ledger) == disk.versions_to(self.job.steps), self._where(number)
            for version, attempt in disk.decided_attempt.items():
                known = members[0].decided_attempt.get(version, attempt)
                assert attempt == known, self._where(number)
            owned = sorted(disk.share.chunks())
            assert sorted(disk.pages) == owned, self._where(number)
            for chunk, (_, weights, _) in disk.pages.items():
                where = self._where(chunk)
                np.testing.assert_array_equal(weights, versions[-1][chunk], err_msg=where)
        for version in range(1, self.job.steps + 1) if self.job.keeps else ():
            expected = {
                (rank, piece): data
                for rank in range(self.job.world_size)
                for piece, data in enumerate(kept(rank, version - 1))
            }
            for disk in members:
                if 0 in disk.share.stripes and version in disk.ledger:
                    assert disk.kept[version] == expected, f"seed {self.seed}, version {version}"
        for worker in self.workers:
            for step, seen in worker.versions.items():
                for chunk, weights in seen.items():
                    np.testing.assert_array_equal(
                        weights, versions[step][chunk], err_msg=self._where(chunk, step)
                    )

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

    def digest(self) -> str:
        """Of the decided weights of all chunks."""
        pages = sorted(
            (page for disk in self.disks for page in disk.pages.items()), key=lambda page: page[0]
        )
        return hashlib.sha256(b"".join(page[1].tobytes() for _, page in pages)).hexdigest()

    def run_to_the_end(self) -> None:
        """The same, until every node has ended; none may be killed as the last worker leaves."""
        self.run()
        self.world.run(lambda: all(node.core.finished for node in self.nodes), limit_ns=700 * 10**9)

    def _where(self, chunk: int, step: int | None = None) -> str:
        return f"seed {self.seed}, chunk {chunk}, step {step}"

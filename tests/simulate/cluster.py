"""Whole clusters of the real cores: scripted workers, a tree of switches, a node with a disk.

`Cluster.run` lets a job finish and checks the oracles: I1 by the ledger on disk, I3 by the weights
of every step that any worker saw.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tests.simulate.job import Job, kept, reference
from tests.simulate.machines import Disk, Node, Switch
from tests.simulate.worker import Worker
from tests.simulate.world import Faults, Payload, World


class Cluster:
    """One job's processes; `run` lets it finish and checks the oracles."""

    def __init__(self, seed: int, job: Job, faults: Faults) -> None:
        Payload.live_count = 0
        self.seed, self.job = seed, job
        self.world = World(seed, faults)
        self.disk = Disk()
        self.node = Node(self.world, job, self.disk)
        self.switches = {
            place.name: Switch(self.world, job, place, incarnation=1) for place in job.tree
        }
        self.workers = [
            Worker(self.world, job, rank, job.tree.leaf_of(rank).process)
            for rank in range(job.world_size)
        ]
        self._ticks()

    def _ticks(self) -> None:
        for process in (*self.workers, *self.switches.values(), self.node):
            process.tick()
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
            new = Switch(self.world, self.job, former.place, incarnation=incarnation)
            self.switches[former.place.name] = new

        self.world.at(30_000_000, start)

    def restart_node(self) -> None:
        """Kill the node; a new one opens the same disk."""
        self.node.kill()
        self.world.at(
            30_000_000, lambda: setattr(self, "node", Node(self.world, self.job, self.disk))
        )

    def reconnect(self, rank: int) -> None:
        """A worker's connection is lost; it comes back under another name."""
        worker = self.workers[rank]
        self.world.silence(worker.name)
        worker.name += "'"
        self.world.listen(worker.name, worker._received)
        worker._do(worker.core.reconnected(self.world.now_ns))

    def reconnect_switch(self, name: str | None = None) -> None:
        """A switch's connection to its parent is lost and comes back under another name."""
        switch = self.switches[self.job.tree.root.name if name is None else name]
        if switch.alive:
            switch.parent_side += "'"
            self.world.listen(switch.parent_side, switch._received)
            switch._do(switch.core.reconnected(self.world.now_ns))

    def cancel(self, rank: int) -> None:
        """A rank asks for the attempt to be given up."""
        worker = self.workers[rank]
        worker._do(worker.core.cancel(self.world.now_ns, "asked by the test"))

    def run(self) -> None:
        """Finish the job and check it: I1, I3 and that every worker saw the right weights."""
        self.world.run(
            lambda: all(worker.finished for worker in self.workers), limit_ns=600 * 10**9
        )
        versions = reference(self.job)
        assert self.disk.version == self.job.steps
        assert set(self.disk.ledger) == set(range(self.job.steps + 1))
        for chunk, (_, weights, _) in self.disk.pages.items():
            np.testing.assert_array_equal(weights, versions[-1][chunk], err_msg=self._where(chunk))
        for version in range(1, self.job.steps + 1) if self.job.keeps else ():
            expected = {
                (rank, piece): data
                for rank in range(self.job.world_size)
                for piece, data in enumerate(kept(rank, version - 1))
            }
            assert self.disk.kept[version] == expected, f"seed {self.seed}, version {version}"
        for worker in self.workers:
            for step, seen in worker.versions.items():
                for chunk, weights in seen.items():
                    np.testing.assert_array_equal(
                        weights, versions[step][chunk], err_msg=self._where(chunk, step)
                    )

    def digest(self) -> str:
        """Of the decided weights of all chunks."""
        pages = sorted(self.disk.pages.items())
        return hashlib.sha256(b"".join(page[1].tobytes() for _, page in pages)).hexdigest()

    def _where(self, chunk: int, step: int | None = None) -> str:
        return f"seed {self.seed}, chunk {chunk}, step {step}"

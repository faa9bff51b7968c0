"""Run a history: a cluster under a plan of faults, in two phases, with all oracles watching.

As TigerBeetle's simulator has it: while faults are on, only safety is asked for; then every fault
ends, whoever is down is started again, and the job must finish within a bound of virtual time (O4).

    python -m tests.simulate --first SEED --seeds 1     replays the history of a seed
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from luwu.base.seeds import derive
from luwu.base.tree import NODE
from tests.simulate.cluster import Cluster
from tests.simulate.device import simulated
from tests.simulate.disk import Copy, Disk, StoredDisk, members_of
from tests.simulate.faults import Hostile
from tests.simulate.hostile import Attacker
from tests.simulate.machines import Node, Switch
from tests.simulate.no_switch import NodeOfWorkers
from tests.simulate.plan import FINISH_MS, HEALED_MS, History
from tests.simulate.worker import Worker
from tests.simulate.world import Faults, Process, started_as

MS = 1_000_000
CALM = Faults()
LET_GO_MS = 2_000
"""After the end of a job, for what was to be repeated until it was answered."""
SUCCESSOR_NS = 30 * MS
"""When the successor of a process that was taken for dead, or failed by itself, starts."""


def run_history(
    history: History, make: Callable[[History], Simulation] | None = None
) -> Simulation:
    """A history from its beginning to its end; a violation is an AssertionError.

    `make`: of a simulation that differs in something.
    """
    with simulated():
        simulation = (make or Simulation)(history)
        try:
            simulation.run()
        finally:
            simulation.close()
    return simulation


class Simulation(Cluster):
    """A cluster, and what faults do to it; their names for processes are `"worker 3"`."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._starts: dict[str, int] = {}
        """Of switches and workers, by name: how often they were started again."""
        self._left: list[Process] = []
        """Zombies: another has their place."""
        self._gone: set[int] = set()
        """Nodes that are lost for good."""
        self._noise = 0
        self._stalls_until_ns = 0
        """When the last disk is as fast as ever."""
        self._attacker = Attacker(Random(derive(history.seed, "attacker")))
        self._is_over = False
        """Faults are off: what was planned to end later has ended."""
        self.counts: dict[str, int] = {}
        super().__init__(history.seed, history.options.job(), CALM)
        if any(isinstance(fault, Hostile) for fault in history.faults):
            self.world.eavesdropper = self._attacker.hear
        for fault in history.faults:
            self.world.at(fault.at_ms * MS, lambda fault=fault: self._strike(fault))

    def make_disk(self, number: int, count: int) -> Disk:
        if not self.history.options.stored:
            return Disk(self.job, number, count, in_place=self.history.options.in_place)
        random = Random(derive(self.history.seed, "device", number))
        options = self.history.options
        return StoredDisk(
            self.job, number, count, random, log_slots=options.log_slots, in_place=options.in_place
        )

    # ---------------------------------------------------------------------- the two phases

    def run(self) -> None:
        """Both phases, and what must hold at the end."""
        healed_ns = HEALED_MS * MS
        self.world.run(
            lambda: self._is_finished or self.world.now_ns >= healed_ns, limit_ns=2 * healed_ns
        )
        if self.is_refused:
            self.oracles.at_a_refusal()
            return
        self._heal()
        limit_ns = self.world.now_ns + FINISH_MS * MS
        try:
            self.world.run(lambda: self._is_finished, limit_ns=limit_ns)
        except AssertionError as exc:
            if "virtual s" not in str(exc):
                raise
            raise AssertionError(f"O4: {exc}: {self._waits_for()}") from None
        if self.is_refused:
            self.oracles.at_a_refusal()
            return
        self.oracles.at_the_end()
        self._check_held()

    def _check_held(self) -> None:
        """O5: when all is done nobody holds a payload; switches hold copies of weights alone.

        What waits for an answer that was lost, or for a disk that stalls, is let go of in time. A
        worker that was refused, as the job is over without it, ends: then its core holds nothing.
        A node that does not count may not hear that all is done; the launcher ends it.
        """
        if self._is_only_goodbye:
            return
        for worker in self.workers:
            if worker.alive and worker.refused is not None:
                worker.let_go()
        counting = [self.nodes[disk.number] for disk in members_of(self.disks)]
        everyone = (*self.workers, *self.switches.values(), *counting)
        living = [process for process in everyone if process.alive]
        end_ns = max(self.world.now_ns, self._stalls_until_ns) + LET_GO_MS * MS
        self.world.run(
            lambda: not any(map(_held_bytes, living)) or self.world.now_ns >= end_ns,
            limit_ns=2 * end_ns,
        )
        for process in living:
            held_bytes = _held_bytes(process)
            assert not held_bytes, f"O5: {process.name} holds {held_bytes} bytes when all is done"

    @property
    def is_refused(self) -> bool:
        """Somebody has found that the state lacks decided steps, and the launcher ends the run.

        A leaf may end as the job is over without its ranks.
        """
        roots = [each for each in self.switches.values() if each.place.parent == NODE]
        ended = (*(node.given_up for node in self.nodes), *(root.ended for root in roots))
        return any(ended) or any(worker.refused_older for worker in self.workers)

    @property
    def _is_finished(self) -> bool:
        if self.is_refused:
            return True
        finished = [worker.finished or self._is_out(worker) for worker in self.workers]
        return any(finished) and (all(finished) or self._is_only_goodbye)

    def _is_out(self, worker: Worker) -> bool:
        """Whether it was left out until the job was over."""
        is_over = all(disk.version == self.job.steps for disk in members_of(self.disks))
        return is_over and (worker.refused is not None or worker.core.membership.is_left_out)

    @property
    def _is_only_goodbye(self) -> bool:
        """All is decided and somebody has left, but not everybody can.

        A switch that is started again as a job ends waits for the Hello of ranks that have ended,
        or joins without them and waits for their Leave. Whoever has not heard the answer to its
        Leave, or comes back for it, then waits for the grace time; nothing is lost by it. Known;
        nothing of the protocol says that a job is over.
        """
        return (
            all(w.finished or w.only_leaves or self._is_out(w) for w in self.workers)
            and all(disk.version == self.job.steps for disk in members_of(self.disks))
            and (
                not all(core.is_joined for core in self.switch_cores)
                or any(core.outbox.incarnation > 1 for core in self.switch_cores)
            )
        )

    def _heal(self) -> None:
        """All faults end."""
        self._is_over = True
        self.world.faults = CALM
        self.world.cuts.clear()
        for disk in self.disks:
            if isinstance(disk, StoredDisk):
                disk.device.repair()
        for zombie in self._left:
            zombie.kill()
        for process in (*self.workers, *self.switches.values(), *self.nodes):
            self._end_stall(process)
            if process in self._left:  # its successor was still to start
                self._replace(process)
            self._start_again(process)

    def _waits_for(self) -> str:
        """Of everybody, for people."""
        lines = [f"{w.name}: {'done' if w.finished else w.core.waits_for()}" for w in self.workers]
        lines += [f"switch: {core.waits_for()}" for core in self.switch_cores]
        lines += [f"{n.name}: {n.core.waits_for() if n.alive else n.failed}" for n in self.nodes]
        return "; ".join(lines)

    def close(self) -> None:
        """Let go of the disks."""
        for disk in self.disks:
            if isinstance(disk, StoredDisk):
                disk.killed()
                disk.device.forget()

    # ---------------------------------------------------------------------- what faults do

    def _strike(self, fault: Any) -> None:
        if not self._is_over:
            name = type(fault).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            fault.strike(self)

    def _after(self, for_ms: int, do: Callable[[], None]) -> None:
        """When a fault has lasted so long; nothing, if it has been ended already."""
        self.world.at(for_ms * MS, lambda: None if self._is_over else do())

    def make_noise(self, faults: Faults, for_ms: int) -> None:
        """The network is like this for a while; of several, the last counts."""
        self._noise += 1
        number = self._noise
        before = self.world.faults
        self.world.faults = faults

        def end() -> None:
            if self._noise == number:
                self.world.faults = before

        self._after(for_ms, end)

    def cut(self, pairs: list[tuple[str, str]], for_ms: int) -> None:
        """Nothing passes between these, one way each."""
        names = {
            (started_as(self.process(a).name), started_as(self.process(b).name)) for a, b in pairs
        }
        self.world.cuts |= names
        self._after(for_ms, lambda: self.world.cuts.difference_update(names))

    def crash(self, who: str, for_ms: int, *, power_cut: bool = False) -> None:
        """Kill a process; start it again after a while."""
        process = self.process(who)
        if not process.alive or (isinstance(process, Worker) and process.finished):
            return
        process.kill()
        if isinstance(process, Worker):
            self._lose_child(process)
        if power_cut and isinstance(process, Node):
            process.disk.power_cut()
        self._after(for_ms, lambda: self._start_again(process))

    def lose_node(self, who: str, for_ms: int, *, comes_back: bool) -> None:
        """A node and all that lies on its disk."""
        node = self.process(who)
        assert isinstance(node, Node)
        is_done = any(disk.version == self.job.steps for disk in self.disks)
        others = [disk for disk in self.disks if disk is not node.disk]
        is_early = any(disk.version is None or disk.is_partial for disk in others)
        if is_done or node.is_superseded or is_early:
            return  # what is lost before there are weights, or as all ends, is another matter
        if node.alive:
            node.kill()
        node.disk.lose()
        if comes_back:
            self._after(for_ms, lambda: self._start_again(self.nodes[node.number]))
        else:
            self._gone.add(node.number)

    def _lose_child(self, worker: Worker) -> None:
        """The connection of a worker has ended."""
        parent: Any = self.nodes[0]
        if not self.job.own_switch:
            parent = self.switches[self.job.tree.leaf_of(worker.rank).name]
        parent.enter(lambda: parent.child_lost(worker.name))

    def blackout(self, for_ms: int) -> None:
        """All at once."""
        counts = {"worker": self.workers, "switch": self.switches, "node": self.nodes}
        for role, processes in counts.items():
            for number in range(len(processes)):
                self.crash(f"{role} {number}", for_ms, power_cut=True)

    def go_back(self, for_ms: int) -> None:
        """Copy the state; after a while kill the nodes, and put the copy back."""
        copies = [disk.copy() for disk in self.disks]
        self._after(for_ms, lambda: self._put_back(copies))

    def _put_back(self, copies: Sequence[Copy]) -> None:
        is_done = any(disk.version == self.job.steps for disk in self.disks)
        if self._is_finished or is_done or copies[0].kept["version"] is None:
            return  # nobody will look at the state any more; or no step of it was decided
        for node in self.nodes:
            if node.alive:
                node.kill()
        self.oracles.going_back(copies[0].kept["version"])
        for disk, copied in zip(self.disks, copies, strict=True):
            disk.put_back(copied)
        for node in list(self.nodes):
            self._after(SUCCESSOR_NS // MS, lambda node=node: self._start_again(node))

    def die_in_store(self, who: str, failpoints: int, for_ms: int, *, power_cut: bool) -> None:
        """Let a node end inside its store, at a failpoint to come."""
        node = self.process(who)
        assert isinstance(node, Node)
        if isinstance(node.disk, StoredDisk) and node.alive:
            node.disk.device.die_after = failpoints
            node.dies_for_ms, node.dies_by_power_cut = for_ms, power_cut

    def node_failed(self, node: Node) -> None:
        """For an error of its disk, or inside its store."""
        if node.is_superseded:
            return
        if node.dies_by_power_cut and node.failed.startswith("ProcessEnded"):
            node.disk.power_cut()
        if node.failed.startswith("DiskFailed") and isinstance(node.disk, StoredDisk):
            self.counts["failed by its disk"] = self.counts.get("failed by its disk", 0) + 1
            node.disk.device.repair()  # somebody puts the disk right, as the message says
        for_ms = SUCCESSOR_NS // MS if self._is_over else node.dies_for_ms
        self.world.at(for_ms * MS, lambda: self._start_again(node))

    def stall(self, who: str, for_ms: int) -> None:
        """Let a process do nothing for a while."""
        process = self.process(who)
        if process.alive and not process.is_stalled:
            process.stall()
            self._after(for_ms, lambda: self._end_stall(process))

    @staticmethod
    def _end_stall(process: Process) -> None:
        if process.alive and process.is_stalled:
            process.go_on()

    def make_zombie(self, who: str, for_ms: int) -> None:
        """Let a process stall, another take its place, and the first go on after a while."""
        process = self.process(who)
        if not process.alive or (isinstance(process, Worker) and process.finished):
            return
        process.stall()
        if isinstance(process, Node | Switch):
            process.supersede()
        self._left.append(process)
        self.world.at(SUCCESSOR_NS, lambda: self._replace(process))
        self._after(for_ms, lambda: self._end_stall(process))

    def cancel_attempt(self, who: str) -> None:
        """Let a worker give the attempt up."""
        worker = self.process(who)
        assert isinstance(worker, Worker)
        if not worker.finished:
            worker.enter(lambda: worker.cancel("asked by a fault"))

    def hurt_disk(self, who: str, kind: str, for_ms: int) -> None:
        """Let a device do something wrong, or be slow."""
        node = self.process(who)
        assert isinstance(node, Node)
        if kind == "stall":
            node.disk_stalls_until_ns = self.world.now_ns + for_ms * MS
            self._stalls_until_ns = max(self._stalls_until_ns, node.disk_stalls_until_ns)
        elif isinstance(node.disk, StoredDisk):
            node.disk.device.arm(kind)

    def attack(self, who: str, kind: str, count: int) -> None:
        """Let a peer say what it should not."""
        process = self.process(who)
        assert isinstance(process, Switch | Node)
        for _ in range(count):
            said = self._attacker.say(kind, process.name)
            if said is None:
                continue
            sender, message, payload = said
            if kind != "stale":
                self.world.send(sender, process.name, message, payload)
            elif process.alive and process.has_all_children:  # at once: its successor knows nobody
                process.enter(functools.partial(process._received, sender, message, payload))

    # ---------------------------------------------------------------------- successors

    def _start_again(self, process: Process) -> None:
        """Start the successor of a process that is no more, unless it has one."""
        if isinstance(process, Node) and (process.is_left_out or process.number in self._gone):
            return
        if not process.alive and process not in self._left:
            self._replace(process)

    def _replace(self, former: Process) -> None:
        if isinstance(former, Node):
            if former in self.nodes:
                self.nodes[former.number] = self.make_node(former.number)
        elif isinstance(former, Switch):
            if former is self.switches[former.place.name]:
                incarnation = self.world.now_ns + 2
                self.switches[former.place.name] = self.make_switch(former.place, incarnation)
        elif isinstance(former, Worker) and former is self.workers[former.rank]:
            self.workers[former.rank] = self.make_worker(former.rank, former.start + 1)


def _held_bytes(process: Process) -> int:
    """Bytes of payload that a process holds, but for a switch's copies of weights."""
    if isinstance(process, Switch):
        counts = process.core.counts()
    elif isinstance(process, NodeOfWorkers):
        counts = process.pair.switch.counts()
    else:
        return process.account.bytes_now
    return process.account.bytes_now - counts["copies_bytes_now"] - counts["cache_bytes_now"]

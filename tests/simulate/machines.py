"""The simulated switch and node: the real cores, work that takes random time, and a disk.

The shells here do by hand, with numpy and a dictionary, what the process shells do with sockets and
files; the cores are the same objects.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luwu.aggregate.interface import ENCODED
from luwu.base.tree import NODE, Place
from luwu.wire.actions import PARENT, Drop, Note, Send
from luwu.wire.messages import Message
from switch_emu.node import actions as node_actions
from switch_emu.node.core import NodeCore
from switch_emu.switch.actions import Sum
from switch_emu.switch.aggregate import sum_in_order
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.fan import Fan
from switch_emu.switch.tree_order import Group, combined, nested
from tests.simulate.job import JOB, Job, apply_update
from tests.simulate.world import Payload, World, drop, payload_bytes


def node_name(number: int) -> str:
    """Of an optimizer node's process."""
    return f"node-{number}" if number else "node"


class Switch:
    """A SwitchCore; its sums take a little time. Before several nodes stands a fan."""

    def __init__(self, world: World, job: Job, place: Place, *, incarnation: int) -> None:
        tree = job.tree
        self.name, self._world, self.place = place.process, world, place
        self._parents = [tree.parent_process(place)]
        if place.parent == NODE:
            self._parents = [node_name(number) for number in range(job.layout.node_count)]
        self.parent_side = self.name
        """The name by which its parents know it."""
        self.alive = True
        self.fan = Fan(len(self._parents)) if len(self._parents) > 1 else None
        self.core = SwitchCore(
            job=JOB,
            incarnation=incarnation,
            children=tree.children(place),
            rank=tree.index(place),
            limits=job.limits,
            retry=job.retry,
        )
        world.listen(self.name, self._received)

    def kill(self) -> None:
        self.alive = False
        self._world.silence(self.name)

    def reconnected(self) -> None:
        """The connections to the nodes are lost, and come back under another name."""
        self.parent_side += "'"
        self._world.listen(self.parent_side, self._received)
        for number in range(len(self._parents)):
            if self.fan is not None:
                self.fan.reconnected(number)
        self._do(self.core.reconnected(self._world.now_ns))

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        nbytes = payload_bytes(payload)
        if sender in self._parents and self.fan is not None:
            for said in self.fan.down(self._parents.index(sender), message):
                data = payload if said is message else None
                self._do(self.core.received(self._world.now_ns, PARENT, said, data, nbytes))
            for number, hello, description in self.fan.to_greet():
                self._world.send(self.parent_side, self._parents[number], hello, description)
            return
        peer = PARENT if sender in self._parents else sender
        self._do(self.core.received(self._world.now_ns, peer, message, payload, nbytes))

    def _up(self, message: Message, payload: Any) -> None:
        for number in (0,) if self.fan is None else self.fan.up(message, payload):
            self._world.send(self.parent_side, self._parents[number], message, payload)

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        if peer == PARENT:
                            self._up(message, payload)
                        else:
                            self._world.send(self.name, peer, message, payload)
                case Drop(payload):
                    drop(payload)
                case Sum():
                    values = [p.read().copy() for p in action.payloads]  # type: ignore[attr-defined]
                    self._world.soon(lambda action=action, values=values: self._sum(action, values))

    def _sum(self, action: Sum, values: list[Any]) -> None:
        if not self.alive:
            return
        if ENCODED in action.dtypes:
            parts = [memoryview(v).cast("B") for v in values]
            total = np.empty(self.core.aggregator.combined_bytes(parts), np.uint8)
            total = total[: self.core.aggregator.combine(parts, total.data)]
        else:
            total = np.empty_like(values[0])
            sum_in_order([memoryview(v) for v in values], action.dtypes, total)
        payload = Payload(total)
        self._do(self.core.summed(self._world.now_ns, action, payload, total.nbytes))


@dataclass
class Disk:
    """What survives a node: two sides of every page, and the records beside them."""

    description: bytes | None = None
    generation: int = 0
    attempt: int = 0
    version: int | None = None
    applied: bool = True
    pages: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    """Decided: chunk -> (version, weights, momentum)."""
    tentative: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    prepared: node_actions.PreparedVersion | None = None
    """A version whose pages are the tentative ones."""
    ledger: dict[int, int] = field(default_factory=dict)
    """Version -> contributors: I1's record, one a decided step."""
    decided_attempt: dict[int, int] = field(default_factory=dict)
    """Version -> the attempt under which it was made."""
    put_aside: dict[tuple[int, int], dict[tuple[int, int], bytes]] = field(default_factory=dict)
    """(version, attempt) -> (rank, piece) -> bytes that are to be kept beside the version."""
    kept: dict[int, dict[tuple[int, int], bytes]] = field(default_factory=dict)
    """Decided: the same by version."""


class Node:
    """A NodeCore, a pipeline that takes random time, and a disk."""

    def __init__(self, world: World, job: Job, disks: list[Disk], number: int = 0) -> None:
        self.name, self._world, self._job = node_name(number), world, job
        self._number, self._disks = number, disks
        disk = self.disk = disks[number]
        self.alive = True
        disk.generation += 1
        self.first_side = f"{self.name}.{disk.generation}"
        """The name by which node 0 knows it: that of a connection, which ends with the process."""
        if number == 0 or disk.prepared is None:  # what node 0 has not decided is not decided
            disk.tentative.clear()
            disk.prepared = None
        self._sealed: dict[tuple[int, int], bytes] = {}
        """What is kept beside the version that is prepared."""
        self.core = NodeCore(
            job=JOB,
            incarnation=disk.generation,
            ranks=(1 << job.world_size) - 1,
            place=node_actions.NodePlace(number=number, count=len(disks)),
            limits=job.node_limits,
            groups=job.tree.groups,
            retry=job.retry,
        )
        world.listen(self.name, self._received)
        world.listen(self.first_side, self._received)
        self.tick()
        if disk.description is not None:
            self._do(self.core.store_opened(self._facts()))

    def _facts(self) -> node_actions.StoreFacts:
        disk = self.disk
        disk.attempt += self._number == 0
        assert disk.description is not None
        return node_actions.StoreFacts(
            description=disk.description,
            generation=disk.generation,
            attempt=disk.attempt,
            epoch=0,
            job=JOB,
            version=disk.version,
            applied=disk.applied,
            prepared=disk.prepared,
        )

    def kill(self) -> None:
        self.alive = False
        self._world.silence(self.name)

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def reconnected(self) -> None:
        """The connection to node 0 is lost, and comes back under another name."""
        self.first_side += "'"
        self._world.listen(self.first_side, self._received)
        self._do(self.core.reconnected(self._world.now_ns))

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        if not self.alive:
            return  # it listened under more than one name
        nbytes = payload_bytes(payload)
        peer = PARENT if self._number and sender == node_name(0) else sender
        self._do(self.core.received(self._world.now_ns, peer, message, payload, nbytes))

    def _later(self, do: Any) -> None:
        self._world.soon(lambda: self._do(do()) if self.alive else None)

    def _do(self, actions: list[Any]) -> None:
        disk = self.disk
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        if peer == PARENT:
                            self._world.send(self.first_side, node_name(0), message, payload)
                        else:
                            self._world.send(self.name, peer, message, payload)
                case Drop(payload):
                    drop(payload)
                case Note() | node_actions.Spill():
                    pass
                case node_actions.OpenStore(description):
                    disk.description = description
                    self._later(lambda: self.core.store_opened(self._facts()))
                case node_actions.LoadPage():
                    self._later(lambda a=action: self._load(a))
                case node_actions.RecordAttempt(attempt):
                    assert attempt > disk.attempt, "an attempt went back"
                    disk.attempt = attempt
                case node_actions.Discard():
                    disk.tentative.clear()
                    disk.prepared = None
                case node_actions.Fold():
                    self._later(lambda a=action: self._fold(a))
                case node_actions.Inspect():
                    self._later(lambda a=action: self._inspect(a))
                case node_actions.Update():
                    self._later(lambda a=action: self._update(a))
                case node_actions.ReadWeights():
                    self._later(lambda a=action: self._read(a))
                case node_actions.KeepPiece():
                    self._later(lambda a=action: self._keep(a))
                case node_actions.Prepare():
                    prepare = functools.partial(self._later, lambda a=action: self._prepare(a))
                    self._world.at(self._job.prepare_ns, prepare)
                case node_actions.Decide():
                    self._later(lambda a=action: self._decide(a))
                case _:
                    raise AssertionError(f"unknown action {action}")

    def _load(self, action: node_actions.LoadPage) -> Any:
        values = action.payload.read().copy()  # type: ignore[attr-defined]
        action.payload.drop()  # type: ignore[attr-defined]
        if action.attempt == self.disk.attempt:
            self._write(action.chunk, 0, values, np.zeros_like(values))
        return self.core.page_loaded(action)

    def _total(self, chunk: int, contributions: Any) -> Any:
        aggregator = self.core.aggregator
        terms = nested(contributions, () if aggregator.is_order_free else self.core.groups)
        if contributions[0].dtype != ENCODED:
            return self._add(terms)
        total = np.empty(self._job.layout.chunks[chunk].elems, np.float32)
        together = combined(terms, aggregator, lambda c: memoryview(c.payload.read()).cast("B"))  # type: ignore[union-attr]
        aggregator.decode(together, total)
        return total

    def _add(self, terms: Any) -> Any:
        found = [
            (self._add(term.terms), "float32")
            if isinstance(term, Group)
            else (term.payload.read(), term.dtype)
            for term in terms
        ]
        total = np.empty(found[0][0].size, np.float32)
        sum_in_order([memoryview(v) for v, _ in found], [dtype for _, dtype in found], total)
        return total

    @staticmethod
    def _squares(total: Any) -> tuple[float, ...]:
        doubles = total.astype(np.float64)
        return tuple(float((block * block).sum()) for block in np.split(doubles, [4096])[:1])

    def _inspect(self, action: node_actions.Inspect) -> Any:
        payloads = [c.payload for c in action.contributions if c.payload is not None]
        parts = [memoryview(payload.read()).cast("B") for payload in payloads]  # type: ignore[attr-defined]
        return self.core.inspected(action, fits=not self.core.aggregator.overflowed(parts))

    def _fold(self, action: node_actions.Fold) -> Any:
        total = self._total(action.chunk, action.contributions)
        if action.total is not None:
            total = action.total.payload.read() + total  # type: ignore[union-attr]
        return self.core.folded(action, self._squares(total), Payload(total), total.nbytes)

    def _update(self, action: node_actions.Update) -> Any:
        total = self._total(action.chunk, action.contributions)
        _, weights, momentum = self.disk.pages[action.chunk]
        grad = total / np.float32(action.divisor)
        new, momentum = apply_update(weights, momentum, grad, 1.0)
        published = Payload(new) if action.publish else None
        self._world.soon(lambda: self._written(action, new, momentum))
        return self.core.updated(action, self._squares(total), published)

    def _written(self, action: node_actions.Update, weights: Any, momentum: Any) -> None:
        if self.alive:
            if action.attempt == self.disk.attempt:
                self._write(action.chunk, action.step + 1, weights, momentum)
            self._do(self.core.written(action))

    def _write(self, chunk: int, version: int, weights: Any, momentum: Any) -> None:
        """As the store does: only what it owns, and not while a version is prepared."""
        assert self._job.layout.owner(chunk) == self._number
        assert self.disk.prepared is None, "a page was written beside a prepared version"
        assert version == (0 if self.disk.version is None else self.disk.version + 1)
        self.disk.tentative[chunk] = (version, weights, momentum)

    def _read(self, action: node_actions.ReadWeights) -> Any:
        disk = self.disk
        version = disk.version if action.version is None else action.version
        side = disk.tentative if version == (disk.version or 0) + 1 else disk.pages
        if action.chunk not in side or (side is disk.pages and version != disk.version):
            return self.core.weights_read(action, None)
        return self.core.weights_read(action, Payload(side[action.chunk][1]))

    def _keep(self, action: node_actions.KeepPiece) -> Any:
        place = self.disk.put_aside.setdefault((action.step + 1, action.attempt), {})
        rank = action.ranks.bit_length() - 1
        assert (rank, action.piece) not in place, "a piece was put aside twice"
        place[rank, action.piece] = action.payload.read().tobytes()  # type: ignore[attr-defined]
        return self.core.piece_kept(action)

    def _prepare(self, action: node_actions.Prepare) -> Any:
        if action.kept_attempt is not None:
            self._sealed = self.disk.put_aside[action.version, action.kept_attempt]
        if not action.applied:
            assert not self.disk.tentative, "a skipped step must discard its pages first"
        assert action.attempt == self.disk.attempt
        assert all(version == action.version for version, _, _ in self.disk.tentative.values())
        self.disk.prepared = node_actions.PreparedVersion(
            action.version, action.attempt, action.applied, action.grad_norm, action.contributors
        )
        return self.core.prepared(action)

    def _is_joint(self, action: node_actions.Decide) -> bool:
        """I2: node 0 decides what all have prepared, the others what node 0 has decided."""
        made = (action.version, action.attempt)
        if self._number:
            return self._disks[0].decided_attempt.get(action.version) == action.attempt
        prepared = [disk.prepared for disk in self._disks]
        return all(p is not None and (p.version, p.attempt) == made for p in prepared)

    def _decide(self, action: node_actions.Decide) -> Any:
        disk = self.disk
        assert action.version not in disk.ledger, "a step was decided twice"
        assert self._is_joint(action), f"{self.name} decided version {action.version} alone"
        disk.prepared = None
        disk.decided_attempt[action.version] = action.attempt
        disk.applied = action.version - 1 != self._job.poison_step
        disk.pages.update(disk.tentative)
        disk.tentative.clear()
        disk.version = action.version
        disk.kept[action.version] = self._sealed
        self._sealed = {}
        disk.ledger[action.version] = (1 << self._job.world_size) - 1
        return self.core.decided(action)

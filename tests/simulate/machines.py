"""The simulated switch and node: the real cores, work that takes random time, and a disk.

The shells here do by hand, with numpy and a dictionary, what the process shells do with sockets and
files; the cores are the same objects.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from luwu.aggregate.float32 import sum_in_order
from luwu.aggregate.interface import ENCODED
from luwu.base.tree import NODE, Place
from luwu.protocol.actions import Drop, End, Note, Send
from luwu.protocol.contribution import Group, combined, nested
from luwu.wire.hyper import stated_hyper
from luwu.wire.messages import Adopt, Message, Refuse, Rejoin, Standing, Welcome
from luwu.wire.norms import clip_factor
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as node_actions
from switch_emu.node.extent_pages import PageGroup, extent_pages
from switch_emu.node.pipeline import block_norms
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Cache, Sum
from tests.simulate.device import ProcessEnded
from tests.simulate.disk import Disk, DiskFailed, Summed, members_of
from tests.simulate.job import JOB, Job, apply_update, mask_of, squares_of
from tests.simulate.world import Payload, Process, World, drop, payload_bytes

HANDSHAKE = (Welcome, Refuse, Rejoin, Standing)
"""What is said only in answer, on the connection that asked."""


def node_name(number: int) -> str:
    """Of an optimizer node's process."""
    return f"node-{number}" if number else "node"


class Switch(Process):
    """A SwitchCore; its sums take a little time."""

    def __init__(self, world: World, job: Job, place: Place, *, incarnation: int) -> None:
        super().__init__(world, place.process)
        tree = job.tree
        self.place = place
        self._parents = [tree.parent_process(place)]
        if place.parent == NODE:
            self._parents = [node_name(number) for number in range(job.layout.optimizer_nodes)]
        self.parent_side = self.name if incarnation == 1 else f"{self.name}.{incarnation}"
        """The name by which its parents know it: that of its connections, which end with it."""
        self.is_superseded = False
        """Another has its place, and its children: what it says to them reaches nobody."""
        self.on_step: Callable[[Place, dict[str, Any]], None] = lambda place, noted: None
        self.ended: tuple[str, str] | None = None
        """(code, text) with which it ended the job: what the launcher would show."""
        self.core = SwitchCore(
            job=JOB, incarnation=incarnation, children=tree.children(place),
            rank=tree.index(place), limits=job.limits, retry=job.retry,
            parents_count=len(self._parents), replicas=job.replicas,
        )  # fmt: skip
        for name in {self.name, self.parent_side}:
            world.listen(name, self._received, self)

    @property
    def has_all_children(self) -> bool:
        """Every child has joined."""
        return self.core.children.members.complete

    def supersede(self) -> None:
        """Another process takes the place; this one may still have something to say upwards."""
        self.is_superseded = True
        self._world.silence(self)
        self.parent_side = f"{self.name}.zombie-{self.core.outbox.incarnation}"
        self._world.listen(self.parent_side, self._received, self)

    def parent_is(self, number: int, *, there: bool) -> None:
        """The connection to one of several nodes is there, or has ended."""
        now_ns, name = self._world.now_ns, self.core.parent_names[number]
        self._do(self.core.reconnected(now_ns, [number]) if there else self.core.lost(now_ns, name))

    def child_lost(self, name: str) -> None:
        """The connection of a child has ended."""
        self._do(self.core.lost(self._world.now_ns, name))

    def reconnected(self) -> None:
        """The connections to the nodes are lost, and come back under another name."""
        self.parent_side += "'"
        self._world.listen(self.parent_side, self._received, self)
        numbers = [n for n, name in enumerate(self._parents) if self._world.is_there(name)]
        self._do(self.core.reconnected(self._world.now_ns, numbers))

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        nbytes = payload_bytes(payload)
        is_parent = sender in self._parents
        peer = self.core.parent_names[self._parents.index(sender)] if is_parent else sender
        self._do(self.core.received(self._world.now_ns, peer, message, payload, nbytes))

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    if isinstance(message, Adopt):
                        self._world.proposed = message.members
                    for peer in peers:
                        if peer in self.core.parent_names:
                            parent = self._parents[self.core.parent_names.index(peer)]
                            self._world.send(self.parent_side, parent, message, payload)
                        elif not self.is_superseded:
                            self._world.send(self.name, peer, message, payload)
                case Drop(payload):
                    drop(payload)
                case Sum():
                    values = [p.read().copy() for p in action.payloads]  # type: ignore[attr-defined]
                    self.later(lambda action=action, values=values: self._sum(action, values))
                case Note("switch.step", noted):
                    self.on_step(self.place, dict(noted))
                case End(text, code):
                    self.ended = (code, text)
                case Cache():
                    copied = action.payload.read().copy()  # type: ignore[attr-defined]
                    self.later(lambda action=action, copied=copied: self._cache(action, copied))

    def _cache(self, action: Cache, copied: Any) -> None:
        payload = Payload(copied, self.account)
        self._do(self.core.cached(self._world.now_ns, action, payload, copied.nbytes))

    def _sum(self, action: Sum, values: list[Any]) -> None:
        total = added_up(self.core, action, values)
        payload = Payload(total, self.account)
        self._do(self.core.summed(self._world.now_ns, action, payload, total.nbytes))


def added_up(core: SwitchCore, action: Sum, values: list[Any]) -> Any:
    """The sum that a switch's core asks for."""
    if ENCODED in action.dtypes:
        parts = [memoryview(v).cast("B") for v in values]
        total = np.empty(core.aggregator.combined_bytes(parts), np.uint8)
        return total[: core.aggregator.combine(parts, total.data)]
    total = np.empty_like(values[0])
    sum_in_order([memoryview(v) for v in values], action.dtypes, total)
    return total


class Node(Process):
    """A NodeCore, a pipeline that takes random time, and a disk."""

    def __init__(
        self, world: World, job: Job, disks: list[Disk], number: int = 0,
        on_failed: Callable[[Node], None] = lambda node: None,
    ) -> None:  # fmt: skip
        super().__init__(world, node_name(number))
        self._job, self.number, self._disks = job, number, disks
        self.disk = disks[number]
        self.failed = ""
        """Why it stopped by itself: an injected fault of its disk."""
        self.given_up = ""
        """Why it ended for good: what the launcher would show."""
        self.is_left_out = False
        """It ended as the job goes on without it."""
        self.is_superseded = False
        """Another has its disk. It can still speak, but nobody connects to it any more."""
        self._on_failed = on_failed
        self.on_killed: Callable[[Node], None] = lambda node: None
        self.dies_for_ms, self.dies_by_power_cut = 30, False
        """How long it is gone if it ends inside its store, and whether that is a power cut."""
        self.disk_stalls_until_ns = 0
        self._pipeline: dict[type[Any], Callable[[Any], Any]] = {
            node_actions.FillPage: self._fill, node_actions.CopyPage: self._copy,
            node_actions.LoadPage: self._load, node_actions.Fold: self._fold,
            node_actions.Update: self._update, node_actions.ReadWeights: self._read,
            node_actions.KeepPiece: self._keep, node_actions.Decide: self._decide,
        }  # fmt: skip
        world.listen(self.name, self._received, self)
        self.enter(self._start)

    def _start(self) -> None:
        with self._stopping():
            facts = self.disk.open()
            self.core = self._make_core()
            self.tick()
            if facts is not None:
                self._do(self.core.store_opened(facts))

    def _make_core(self) -> NodeCore:
        job = self._job
        node = node_actions.NodeNumber(
            number=self.number, count=len(self._disks), replicas=job.replicas
        )
        return NodeCore(
            job=JOB, incarnation=self.disk.starts, ranks=(1 << job.world_size) - 1, node=node,
            limits=job.limits_of_node, groups=job.tree.groups, retry=job.retry,
        )  # fmt: skip

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """An error of the disk ends the process, and so does the end of it inside the store."""
        try:
            yield
        except (DiskFailed, ProcessEnded) as exc:
            self.failed = f"{type(exc).__name__}: {exc}"
            self.kill()
            self._on_failed(self)

    def enter(self, do: Callable[[], None]) -> None:
        def guarded() -> None:
            with self._stopping():
                do()

        super().enter(guarded)

    def kill(self) -> None:
        super().kill()
        if not self.is_superseded:
            self.disk.killed()
        self.on_killed(self)

    @property
    def has_all_children(self) -> bool:
        """Every child has joined."""
        return self.core.children.members.complete

    def supersede(self) -> None:
        """Another process takes the disk; this one may still have something to say."""
        self.disk.killed()
        self.is_superseded = True
        self._world.silence(self)

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        nbytes = payload_bytes(payload)
        self._do(self.core.received(self._world.now_ns, sender, message, payload, nbytes))

    def _later(self, do: Any, more_ns: int = 0) -> None:
        """Work of the pipeline: it takes a while, longer while the disk stalls."""
        more_ns += max(0, self.disk_stalls_until_ns - self._world.now_ns)
        delay_ns = more_ns + self._world.random.randrange(1, 2_000_000)
        self._world.at(delay_ns, lambda: self.enter(lambda: self._do(do())))

    def _send(self, peers: tuple[str, ...], message: Message, payload: Any) -> None:
        for peer in peers:
            if self.is_superseded and isinstance(message, HANDSHAKE):
                continue  # an answer on a connection that its successor has now
            self._world.send(self.name, peer, message, payload)

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    self._send(peers, message, payload)
                case Drop(payload):
                    drop(payload)
                case Note(name):
                    twice = name in ("switch.step", "switch.abort")
                    assert not twice, f"{self.name} and its own switch both note {name}"
                case node_actions.Spill(payload):
                    payload.leave_memory()  # type: ignore[attr-defined]
                case node_actions.ReplaceAttached(version, rank, payload):
                    if self._owned.version == version:
                        self.disk.replaced[version, rank] = payload.read().tobytes()  # type: ignore[attr-defined]
                case node_actions.RecordAttempt(attempt, epoch):
                    self._owned.record_attempt(attempt, epoch)
                case node_actions.Discard(attempt):
                    self._owned.discard(attempt)
                case node_actions.GiveUp(text, code):
                    self.is_left_out = code == "E510"
                    self.given_up = "" if self.is_left_out else text
                    self.kill()
                    return
                case node_actions.OpenStore(description):
                    self._later(lambda d=description: self.core.store_opened(self._owned.make(d)))
                case node_actions.BeginFilling(description, version):
                    facts = self._owned.begin_filling(description, version)
                    self._do(self.core.store_opened(facts))
                case node_actions.Prepare():
                    self._later(lambda a=action: self._prepare(a), self._job.prepare_ns)
                case _ if type(action) in self._pipeline:
                    self._later(partial(self._pipeline[type(action)], action))
                case _:
                    self._do_other(action)

    def _do_other(self, action: Any) -> None:
        raise AssertionError(f"{self.name}: unexpected {action}")

    @property
    def _owned(self) -> Disk:
        """The disk, as long as it is this process's."""
        if self.is_superseded:
            raise DiskFailed("the disk is another's")
        return self.disk

    def _load(self, action: node_actions.LoadPage) -> Any:
        values = action.payload.read().copy()  # type: ignore[attr-defined]
        action.payload.drop()  # type: ignore[attr-defined]
        self._write(action.chunk, 0, action.attempt, values, np.zeros_like(values))
        return self.core.page_loaded(action)

    def _fill(self, action: node_actions.FillPage) -> Any:
        values = action.payload.read().copy()  # type: ignore[attr-defined]
        action.payload.drop()  # type: ignore[attr-defined]
        elems = self._job.layout.chunks[action.chunk].elems
        momentum = values[elems : 2 * elems] if values.size > elems else np.zeros_like(values)
        self._owned.fill(action.chunk, values[:elems], momentum)
        return self.core.page_filled(action)

    def _copy(self, action: node_actions.CopyPage) -> Any:
        if self._owned.version != action.step:
            return self.core.page_copied(action, None)
        weights, momentum = self._owned.read(action.chunk, action.step)
        layout = self._job.layout
        parts = [weights]
        if layout.chunks[action.chunk].trainable:
            parts += [momentum, np.zeros(2 * layout.segments_count(action.chunk), np.float32)]
        return self.core.page_copied(action, Payload(np.concatenate(parts), self.account))

    def _pages(self, extent: int) -> tuple[PageGroup, ...]:
        return extent_pages(self.disk.share, extent)

    def _total(self, extent: int, contributions: Any) -> Any:
        aggregator = self.core.shard.aggregator
        terms = nested(contributions, self.core.groups)
        if contributions[0].dtype != ENCODED:
            return self._add(terms)
        total = np.empty(self._job.layout.extents[extent].elems, np.float32)
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

    def _fold(self, action: node_actions.Fold) -> Any:
        total: Any = None if action.total is None else action.total.payload.read()  # type: ignore[union-attr]
        if action.contributions:
            added = self._total(action.extent, action.contributions)
            total = added if total is None else total + added
        found: dict[float, tuple[float, ...]] = {}
        for page in self._pages(action.extent):
            part = total[page.start : page.start + page.elems]
            for each in {2.0, *action.norm_types}:
                numbers = squares_of(part) if each == 2 else block_norms(part, each)
                found[each] = found.get(each, ()) + numbers
        return self.core.folded(action, found, Payload(total, self.account), total.nbytes)

    def _update(self, action: node_actions.Update) -> Any:
        first, *rest = *action.others, action
        return self._update_page(first, 0, (), [], rest)

    def _update_page(
        self, action: node_actions.Update, at: int, squares: tuple[float, ...], made: list[Any],
        rest: Sequence[node_actions.Update] = (),
    ) -> Any:  # fmt: skip
        """Page by page, and time passes between two: whatever happens, it may happen in between.
        All pages but the last are written before the core knows of any. `rest`: other extents of
        its sheet, which are still to be updated."""
        pages = self._pages(action.extent)
        page = pages[at]
        total = self._total(action.extent, action.contributions)
        total = total[page.start : page.start + page.elems]
        weights, momentum = self._owned.read(page.chunks[0], action.step)
        if not (action.is_preview or all(page.is_idle(action.absent))):
            self.disk.overwrite(page.chunks[0])
        grad = total / np.float32(action.divisor)
        unchanged = mask_of(self._job.layout, page.chunks[0], page.absent(action.absent))
        factor = clip_factor(stated_hyper(action.hyper).all_clips(2.0), action.norms)
        new, momentum = apply_update(weights, momentum, grad, unchanged, factor)
        made.append(new)
        summed = (total, action.divisor, page.absent(action.absent))
        squares += squares_of(total)
        is_finite = all(map(math.isfinite, squares))
        if is_finite and at + 1 < len(pages):
            if not action.is_preview:
                self._write_page(action, page, new, momentum, summed)
            self._later(lambda: self._update_page(action, at + 1, squares, made, rest))
            return []
        published = None
        if action.publish and len(made) == len(pages):
            published = Payload(np.concatenate(made), self.account)
        if rest:
            if not action.is_preview:
                self._write_page(action, page, new, momentum, summed)
            self._later(lambda: self._update_page(rest[0], 0, (), [], rest[1:]))
        if action.is_preview:
            return self.core.previewed(action, published)
        if rest:
            return self.core.updated(action, squares, published)
        self._later(lambda: self._written(action, page, new, momentum, summed))
        return self.core.updated(action, squares, published)

    def _written(
        self, action: node_actions.Update, page: PageGroup, weights: Any, momentum: Any,
        summed: Summed,
    ) -> Any:  # fmt: skip
        self._write_page(action, page, weights, momentum, summed)
        return self.core.written(action)

    def _write_page(
        self, action: node_actions.Update, page: PageGroup, weights: Any, momentum: Any,
        summed: Summed,
    ) -> None:  # fmt: skip
        (chunk,) = page.chunks
        if all(page.is_idle(action.absent)):
            self._owned.keep(chunk, action.step + 1, action.attempt)
            return
        if self._job.update == "streaming" and action.norms:  # perhaps once before the verdict
            self._owned.written.pop(chunk, None)
        self._write(chunk, action.step + 1, action.attempt, weights, momentum, summed)

    def _write(
        self, chunk: int, version: int, attempt: int, weights: Any, momentum: Any,
        summed: Summed | None = None,
    ) -> None:  # fmt: skip
        assert self.disk.share.owns(chunk)
        self._owned.write(chunk, version, attempt, weights, momentum, summed)

    def _read(self, action: node_actions.ReadWeights) -> Any:
        return self._read_page(action, self._owned.known(action.version), [])

    def _read_page(
        self, action: node_actions.ReadWeights, version: int | None, found: list[Any]
    ) -> Any:
        """Page by page, of one version; again from the first, if another was decided since."""
        pages = self._pages(action.extent)
        weights = self._owned.read_weights(pages[len(found)].chunks[0], version)
        if weights is None and action.version is None:
            return self._read(action)
        if weights is None:
            return self.core.weights_read(action, None)
        found.append(weights)
        if len(found) < len(pages):
            self._later(lambda: self._read_page(action, version, found))
            return []
        return self.core.weights_read(action, Payload(np.concatenate(found), self.account))

    def _keep(self, action: node_actions.KeepPiece) -> Any:
        place = self._owned.put_aside.setdefault((action.step + 1, action.attempt), {})
        rank = action.ranks.bit_length() - 1
        assert (rank, action.piece) not in place, "a piece was put aside twice"
        place[rank, action.piece] = action.payload.read().tobytes()  # type: ignore[attr-defined]
        return self.core.piece_kept(action)

    def _prepare(self, action: node_actions.Prepare) -> Any:
        self._owned.prepare(action)
        is_shared = len(self.disk.share.stripes) > 1
        return self.core.prepared(action, self._owned.digests() if is_shared else b"")

    def _is_joint(self, action: node_actions.Decide) -> bool:
        """I2, E2, E5: a node decides what all have prepared that count, or are to."""
        made = (action.version, action.attempt)
        ready = sum(1 << disk.number for disk in self._disks if made in disk.was_prepared)
        members = sum(1 << disk.number for disk in members_of(self._disks))
        return not members & ~ready or not (self._world.proposed or members) & ~ready

    def _decide(self, action: node_actions.Decide) -> Any:
        disk = self._owned
        assert self._is_joint(action), f"{self.name} decided version {action.version} alone"
        disk.decide(action.version, action.attempt)
        return self.core.decided(action)

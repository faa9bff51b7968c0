"""Weights on their way down: asked for once, held until every child has its copy. Pure.

    Pull       cached weights (`WeightsCache`), copies that are here, or one Pull to the parent
               for all children that ask
    Weights    from the parent: sent to all that have asked; or first copied to the cache, and sent
               from there

One entry per (step, use, extent): who asked, who was served, and the bytes once they are here.
Children ask for an extent once per use (forward, backward, ...), so the entry is done when all were
served. A child that asks when the bytes have gone is fetched for again and counted.

A copy may lie in memory of the parent, in shared memory or in one process, and some child may never
ask for it. So that such copies do not take the room that other weights wait for, all are released
when weights of the current step are asked for and none has come for `STALLED_NS`.

A unit is pulled for forward and for backward, of every micro-batch. Of some extents, chosen once,
the switch caches the weights of the newest step, and answers all pulls but the first itself. It
asks for those of the next step before their pages are updated: when a child has pushed a gradient
of the unit, or, where pages are updated after the last one (`at_step`), when the step has its
verdict. Then the node sends them as it updates a page, and need not read them again.

    -> cached     `Cache`      the weights of a step came
    -> newer      `Cache`      those of the next step came, or are the same, and not sent again: all
                               children have pushed, so none will ask for the older ones, and if one
                               does, it is asked for again
    -> dropped    `forget`     the step was decided, and the weights are those of before; or a new
                               attempt began: what streamed ahead of a decision is void

Weights that are frozen are those of every step of an attempt. The last extents are chosen: a node
keeps the first pages in its RAM (`TieredPageStore`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from luwu.layout import Layout
from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, Member
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink, neighbours
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.messages import Verb
from switch_emu.switch.core.actions import Cache, SwitchLimits


@dataclass(frozen=True, slots=True)
class Cached:
    """The weights of one extent."""

    step: int
    since: int
    """The first step of those, up to this one, for which they are the same."""
    dtype: str
    payload: Payload
    payload_bytes: int
    in_place: int
    """True if children may use them where they lie."""


class WeightsCache:
    """The weights of the chosen extents, as far as they are here."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chosen: frozenset[int] = frozenset()
        self._frozen: frozenset[int] = frozenset()
        self._ahead: dict[int, tuple[int, ...]] = {}
        """Trained extents -> the chosen ones of their unit, if pages are updated one by one."""
        self._cached: dict[int, Cached] = {}
        self.layout: Layout | None = None
        """The job's, if the weights of all its extents are cached; else None."""
        self.bytes_used = 0
        self.hits_count = 0
        """Pulls of an extent that were answered from here."""

    def learn(self, job: Description) -> None:
        """Choose the extents of a job's model."""
        layout = job.layout
        self._chosen = chosen_extents(layout, self._bytes_max)
        self.layout = layout if len(self._chosen) == len(layout.extents) else None
        frozen = {each.index for each in layout.extents if not each.trainable}
        self._frozen = self._chosen & frozen
        if job.update != "streaming":
            return
        for extents in layout.unit_extents:
            trained = [index for index in extents if index not in frozen]
            chosen = tuple(index for index in trained if index in self._chosen)
            self._ahead.update(dict.fromkeys(trained, chosen))

    @property
    def trained(self) -> tuple[int, ...]:
        """The chosen extents whose weights change, in order."""
        return tuple(sorted(self._chosen - self._frozen))

    def get(self, step: int, extent: int) -> Cached | None:
        """The weights of an extent for a step, if they are here."""
        found = self._cached.get(extent)
        if found is None or (found.step != step and extent not in self._frozen):
            return None  # what is frozen is the same in all steps
        return found

    def wants(self, step: int, extent: int) -> bool:
        """True if weights of a step that came should be cached."""
        found = self._cached.get(extent)
        if found is None:
            return extent in self._chosen
        return found.step < step and extent not in self._frozen

    def after_push(self, extent: int) -> tuple[int, ...]:
        """The extents to ask for, of the next step, when a gradient of this one was pushed."""
        return self._ahead.get(extent, ())

    def since(self, done: Cache) -> int:
        """The first step for which the weights that were copied are the same."""
        former = None if done.is_new else self._cached.get(done.extent)
        return done.step if former is None else former.since

    def put(self, extent: int, weights: Cached) -> Payload | None:
        """Keep weights that were copied here; returns those that they replace."""
        former = self._take(extent)
        self._cached[extent] = weights
        self.bytes_used += weights.payload_bytes
        return former

    def forget(self, step: int | None = None) -> list[Payload]:
        """Drop the weights of a decided step; without one, all. Returns payloads to drop."""
        over = [
            extent
            for extent, cached in self._cached.items()
            # Frozen weights are the same in every step.
            if step is None or (cached.step <= step and extent not in self._frozen)
        ]
        return [payload for extent in over if (payload := self._take(extent)) is not None]

    def close(self) -> None:
        """Cache no more: children read the weights where the node has them."""
        self._chosen = frozenset()
        self._ahead.clear()

    def _take(self, extent: int) -> Payload | None:
        former = self._cached.pop(extent, None)
        self.bytes_used -= 0 if former is None else former.payload_bytes
        return None if former is None else former.payload


def chosen_extents(layout: Layout, bytes_max: int) -> frozenset[int]:
    """The extents whose weights a cache of so many bytes holds."""
    chosen: list[int] = []
    left = bytes_max
    for extent in reversed(layout.extents):
        if extent.wire_bytes <= left:
            chosen.append(extent.index)
            left -= extent.wire_bytes
    return frozenset(chosen)


STALLED_NS: Final = 1_000_000_000

CopyKey = tuple[int, int, int]
"""(step, part, extent); the part of a pull is its use within the step."""


@dataclass(slots=True)
class Copy:
    """One extent of weights, for one use."""

    askers: dict[str, bool] = field(default_factory=dict)
    """And if they have the weights of the step before."""
    served: set[str] = field(default_factory=set)
    weights: wire.Weights | None = None
    payload: Payload | None = None
    payload_bytes: int = 0


class WeightsCopies:
    """All copies that a switch holds, within a budget of bytes."""

    def __init__(self, *, child_count: int, bytes_max: int) -> None:
        self._child_count = child_count
        self._bytes_max = bytes_max
        self._copies: dict[CopyKey, Copy] = {}
        self.bytes_used = 0
        self.fallback_count = 0
        """Pulls that found their copy gone and had to be fetched once more."""

    def serve(self, child_count: int) -> None:
        """The number of children that will ask in the attempt that begins."""
        self._child_count = child_count

    def asked(self, key: CopyKey, peer: str, *, has: bool = False) -> Copy | None:
        """A child asks. The copy to serve it from now, or None: it must be fetched."""
        copy = self._copies.setdefault(key, Copy())
        if copy.payload is not None:
            copy.served.add(peer)
            return copy
        if peer not in copy.askers:
            if copy.served:
                self.fallback_count += 1
            copy.askers[peer] = has
        return None

    def answered(self, key: CopyKey) -> dict[str, bool]:
        """The children that have asked, who are served now."""
        copy = self._copies.get(key)
        if copy is None:
            return {}
        askers, copy.askers = copy.askers, {}
        copy.served.update(askers)
        return askers

    def came(
        self, key: CopyKey, weights: wire.Weights, payload: Payload, payload_bytes: int
    ) -> dict[str, bool]:
        """The bytes are here; the children to send them to."""
        copy = self._copies[key]
        copy.weights, copy.payload, copy.payload_bytes = weights, payload, payload_bytes
        self.bytes_used += payload_bytes
        return self.answered(key)

    def awaits(self, key: CopyKey) -> bool:
        """True if a child waits for the bytes of this extent."""
        copy = self._copies.get(key)
        return copy is not None and bool(copy.askers)

    def trim(self, key: CopyKey) -> list[Payload]:
        """Release this copy if all were served or there is no room; payloads to drop."""
        copy = self._copies[key]
        if len(copy.served) < self._child_count and self.bytes_used <= self._bytes_max:
            return []
        return self._release(copy)

    def release_all(self) -> list[Payload]:
        """Release what is kept for children that have not asked; payloads to drop."""
        return [payload for copy in self._copies.values() for payload in self._release(copy)]

    def forget(self, step_max: int | None = None) -> list[Payload]:
        """Forget all copies, or those up to a step; payloads to drop."""
        dropped: list[Payload] = []
        for key in [k for k in self._copies if step_max is None or k[0] <= step_max]:
            dropped.extend(self._release(self._copies.pop(key)))
        return dropped

    def _release(self, copy: Copy) -> list[Payload]:
        if copy.payload is None:
            return []
        payload, copy.payload, copy.weights = copy.payload, None, None
        self.bytes_used -= copy.payload_bytes
        return [payload]


class WeightsDown:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, limits: SwitchLimits, *,
        parent_is_one: bool = True,
    ) -> None:  # fmt: skip
        """`parent_is_one`: neighbouring extents are of one node."""
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._parent_is_one = parent_is_one
        self.copies = WeightsCopies(
            child_count=len(children.members.children), bytes_max=limits.copies_bytes_max
        )
        self.cache = WeightsCache(limits.cache_bytes_max)
        self._ahead: set[tuple[int, int]] = set()
        """Units that were asked for ahead: step, and the first of the extents."""
        self._awaited: Counter[int] = Counter()
        """Extents that were asked for and have not come, by step."""
        self._moved_ns = 0
        """When the last of them came, or was asked for."""

    def tick(self) -> None:
        """Release what is kept, if weights that are due do not come."""
        due_ns = self.next_ns()
        if due_ns is not None and due_ns <= self._outbox.now_ns:
            self._outbox.drop_all(self.copies.release_all())

    def next_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing is kept or nothing is due."""
        if self.copies.bytes_used and self._awaited[self._outbox.step]:
            return self._moved_ns + STALLED_NS
        return None

    def forget(self, step: int | None = None) -> None:
        """Drop the weights up to a decided step; without one, in a new attempt, all."""
        self._outbox.drop_all(self.copies.forget(step_max=step))
        self._outbox.drop_all(self.cache.forget(step))
        self._moved_ns = self._outbox.now_ns
        for each in [each for each in self._awaited if step is None or each <= step]:
            del self._awaited[each]
        self._ahead = {each for each in self._ahead if step is not None and each[0] > step}
        if step is None:
            self.copies.serve(len(self._children.members.counted))

    def pull(self, child: Member, m: wire.Pull) -> None:
        """A child asks for the weights of some extents."""
        if not self._outbox.step <= m.step <= self._outbox.step + 1:
            return
        missing: list[int] = []
        for extent in range(m.index, m.index + m.count):
            key = (m.step, m.part, extent)
            if cached := self.cache.get(m.step, extent):
                self._send({child.peer: m.has}, key, cached)
                self.cache.hits_count += 1
                continue
            copy = self.copies.asked(key, child.peer, has=m.has)
            if copy is not None and copy.weights is not None:
                self._outbox.send_all((child.peer,), copy.weights, copy.payload)
                self._outbox.drop_all(self.copies.trim(key))
            elif not self._uplink.asks(("pull", *key)):
                missing.append(extent)
        self._ask(m.step, m.part, missing)

    def _send(self, askers: Mapping[str, bool], key: CopyKey, cached: Cached) -> None:
        """Answer children: by a receipt those that have the weights of the step before, if these
        are the same. Once that is decided they have dropped them, if they ask once more."""
        step, part, extent = key
        is_same = cached.since < step > self._outbox.step
        have = tuple(peer for peer, has in askers.items() if has and is_same)
        if have:
            self._outbox.send_all(have, self._outbox.receipt_of(Verb.PULL, step, extent, part))
        if lack := tuple(peer for peer in askers if peer not in have):
            weights = self._weights(key, cached.dtype, in_place=cached.in_place)
            self._outbox.send_all(lack, weights, cached.payload)

    def _weights(self, key: CopyKey, dtype: str, *, in_place: int) -> wire.Weights:
        step, part, extent = key
        return self._outbox.stamped(
            wire.Weights, step=step, part=part, index=extent, dtype=dtype, in_place=in_place
        )

    def pushed(self, step: int, extent: int) -> None:
        """A child has pushed a gradient: ask for what the unit needs next, before it is made."""
        unit = self.cache.after_push(extent)
        # If that is too early it is not noted: the next push of the unit tries again.
        if unit and (step + 1, unit[0]) not in self._ahead and self._ask_ahead(step + 1, unit):
            self._ahead.add((step + 1, unit[0]))

    def applied(self, step: int) -> None:
        """The step has its verdict, and is not skipped: its pages are updated now at the latest."""
        self._ask_ahead(step + 1, self.cache.trained)

    def _ask_ahead(self, step: int, extents: Sequence[int]) -> bool:
        """Ask for what is neither here nor asked for; False: it is too early."""
        if step > self._outbox.step + 1:
            return False
        missing = [
            extent
            for extent in extents
            if self.cache.wants(step, extent) and not self._uplink.asks(("pull", step, 0, extent))
        ]
        if missing:
            self._ask(step, 0, missing)
        return True

    def _ask(self, step: int, part: int, extents: Sequence[int]) -> None:
        names = [("pull", step, part, extent) for extent in extents]
        self._awaited[step] += len(names)
        self._moved_ns = self._outbox.now_ns
        runs = neighbours(extents) if self._parent_is_one else [(i, 1) for i in range(len(extents))]
        for first, count in runs:
            of_run = range(extents[first], extents[first] + count)
            pull = self._outbox.stamped(
                wire.Pull, step=step, part=part, index=extents[first], count=count,
                has=all(self.cache.get(step - 1, extent) for extent in of_run),
            )  # fmt: skip
            self._uplink.ask_for(self._outbox.now_ns, names[first : first + count], pull)

    def same(self, m: wire.Received) -> None:
        """Weights that were asked for are those of the step before."""
        former = self.cache.get(m.step - 1, m.index) or self.cache.get(m.step, m.index)
        if former is None or not self._answered(m):  # without them it is asked again
            return
        dtype, payload = former.dtype, former.payload
        attempt = self._outbox.attempt
        again = Cache(m.index, m.step, m.part, attempt, dtype, payload, is_new=False)
        self._outbox.actions.append(again)

    def _answered(self, m: wire.DataMessage) -> bool:
        """True if weights are waited for, which are here."""
        self._moved_ns = self._outbox.now_ns
        if not self._uplink.answered(("pull", m.step, m.part, m.index)):
            return False
        if self._awaited[m.step]:
            self._awaited[m.step] -= 1
        return True

    def weights(self, m: wire.Weights, payload: Payload, payload_bytes: int) -> None:
        """The weights that were asked for are here."""
        key = (m.step, m.part, m.index)
        if not self._answered(m):
            self._outbox.drop(payload)
            return
        if m.in_place:
            self.cache.close()
        elif self.cache.wants(m.step, m.index):  # `cached` answers those that have asked
            cache = Cache(m.index, m.step, m.part, self._outbox.attempt, m.dtype, payload)
            self._outbox.actions.append(cache)
            self._outbox.drop(payload)
            return
        if not self.copies.awaits(key):
            self._outbox.drop(payload)
            return
        self._children.loaded = True
        weights = self._weights(key, m.dtype, in_place=m.in_place)
        if m.in_place:  # none is kept for the others: they look there, or ask again
            self._outbox.send_all(tuple(self.copies.answered(key)), weights, payload)
            self._outbox.drop(payload)
            return
        askers = self.copies.came(key, weights, payload, payload_bytes)
        self._outbox.send_all(tuple(askers), weights, payload)
        self._outbox.drop_all(self.copies.trim(key))

    def cached(
        self, done: Cache, payload: Payload, payload_bytes: int, *, in_place: int = 0
    ) -> None:  # fmt: skip
        """The weights were copied to memory of ours: from there they go to all that ask, who may
        use them where they lie if they are `in_place`."""
        if done.attempt != self._outbox.attempt:
            # A step was skipped meanwhile: they are void, and who has asked since waits for others.
            self._outbox.drop(payload)
            return
        since, key = self.cache.since(done), (done.step, done.part, done.extent)
        weights = Cached(done.step, since, done.dtype, payload, payload_bytes, in_place)
        if askers := self.copies.answered(key):
            self._children.loaded = True
            self._send(askers, key, weights)
        if done.step < self._outbox.step or not self.cache.wants(done.step, done.extent):
            self._outbox.drop(payload)
            return
        self._outbox.drop(self.cache.put(done.extent, weights))

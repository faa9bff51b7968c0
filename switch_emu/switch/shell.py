"""The switch as a process: a transport with its children and its parents around a `SwitchCore`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from luwu.aggregate.float32 import SumInOrder, sum_in_order
from luwu.aggregate.interface import ENCODED, Aggregator
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConnectionFailed
from luwu.base.events import Recorder
from luwu.base.failpoints import failpoint
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.layout import SUM_BYTES
from luwu.transport.interface import CreditExceeded, PeerFailed, Transport
from luwu.wire.altered import AlteredWeights
from luwu.wire.link_counts import DATA_KINDS
from luwu.wire.messages import Push, Weights
from switch_emu.process.counting import CountersFile
from switch_emu.process.loop import Loop
from switch_emu.process.payload import Buffers, Payload, Unsummed
from switch_emu.process.places import WeightsPlaces, places_bytes
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Cache, Sum
from switch_emu.switch.host_link import HostLink


def unsummed(action: Sum) -> Unsummed:
    """An action's sum, added when it is read."""
    terms = [
        (payload, dtype)
        for payload, dtype in zip(action.payloads, action.dtypes, strict=True)
        if isinstance(payload, Payload)
    ]
    elems = terms[0][0].nbytes // DTYPES[terms[0][1]].nbytes
    return Unsummed(terms, elems * SUM_BYTES)


def is_encoded(action: Sum) -> bool:
    """True if its payloads are encoded by an aggregator."""
    return ENCODED in action.dtypes


def combine(action: Sum, buffers: Buffers, aggregator: Aggregator) -> Payload:
    """The combination of an action's encoded payloads. Raises ValueError if they do not match."""
    if any(dtype != ENCODED for dtype in action.dtypes):
        raise ValueError(f"extent {action.key[2]}: {action.dtypes} cannot be added to each other")
    parts = [payload.view() for payload in action.payloads if isinstance(payload, Payload)]
    memory, payload = buffers.take(aggregator.combined_bytes(parts))
    used = aggregator.combine(parts, memory)
    return payload if used == memory.nbytes else Payload(memory[:used], payload.drop)


def add_up(action: Sum, buffers: Buffers, add: SumInOrder = sum_in_order) -> Payload:
    """The float32 sum of an action's payloads, in their order."""
    terms = unsummed(action)
    memory, payload = buffers.take(terms.nbytes)
    terms.sum_into(np.frombuffer(memory, np.float32), add)
    terms.drop()
    return payload


class SwitchShell(Loop):
    """Runs one switch."""

    def __init__(
        self, transport: Transport, core: SwitchCore, recorder: Recorder, *,
        add: SumInOrder = sum_in_order, counters: CountersFile | None = None,
        shares_memory: bool = False, connect_timeout_s: float | None = None,
        host_link: HostLink | None = None,
    ) -> None:  # fmt: skip
        """`shares_memory`: all children read what lies in memory that `transport` reserves;
        `connect_timeout_s`: end if a parent was not reached by then; `host_link`: what leads to
        the parent."""
        super().__init__(transport, recorder, core, counters=counters)
        self.core = core
        self._parents = core.parent_names
        self._add = add
        self._altered = AlteredWeights("the switch")
        self._buffers = Buffers(transport.reserve)
        self._shares_memory = shares_memory
        self._connect_timeout_s = connect_timeout_s
        self._host_link = host_link
        self._started_ns = SYSTEM_CLOCK.now_ns()
        self._trouble = "it does not answer."

    def network_bytes(self) -> dict[str, int]:
        """Payload bytes of data so far: to and from the parents, and to and from all children."""

        def from_parents(peer: str) -> bool:
            return peer in self._parents

        def from_children(peer: str) -> bool:
            return peer not in self._parents

        above = self.links.total(*DATA_KINDS, of=from_parents)
        below = self.links.total(*DATA_KINDS, of=from_children)
        return {
            "to_parent": above.payload_bytes_sent,
            "pushed_to_parent": self.links.total(Push, of=from_parents).payload_bytes_sent,
            "from_parent": above.payload_bytes_received,
            "to_children": below.payload_bytes_sent,
            "from_children": below.payload_bytes_received,
            "pushed_by_children": self.links.total(Push, of=from_children).payload_bytes_received,
        }

    def peer_up(self, now_ns: int, peer: str) -> None:
        if peer in self._parents:
            self._connect_timeout_s = None
            self.do(self.core.reconnected(now_ns, (self._parents.index(peer),)))

    def peer_failed(self, peer: str, failed: PeerFailed) -> None:
        if peer in self._parents:
            self._trouble = str(failed.error)
            if failed.final:
                self.end_with(failed.error)

    def background(self) -> None:
        if self._host_link is not None:
            self._host_link.look(SYSTEM_CLOCK.now_ns())
        if self._connect_timeout_s is None:
            return
        waited_s = (SYSTEM_CLOCK.now_ns() - self._started_ns) / 1e9
        if waited_s > self._connect_timeout_s:
            self._connect_timeout_s = None
            self.end_with(ConnectionFailed(
                f"the switch above was not reached within {waited_s:.0f} s: {self._trouble} Is "
                "luwu up still running there, and does the network let this host through?"
            ))  # fmt: skip

    def takes(self, peer: str, message: Weights, payload: Payload) -> bool:
        if peer not in self._parents or not message.checksum:
            return True
        payload.checksum = message.checksum
        # What lies in a place is passed on: who uses it there looks at it.
        if message.in_place or not self._altered.has(message, payload.view()):
            return True
        self.recorder.event(
            "weights.altered", level="WARNING", peer=self.core.name_of(peer), extent=message.index,
            step=message.step, consequence="not used, and asked for again",
        )  # fmt: skip
        self.do(self.core.unanswered(SYSTEM_CLOCK.now_ns()))
        return False

    def do_own(self, action: Any) -> None:
        match action:
            case Sum():
                self._sum(action)
            case Cache():
                self._cache(action)
            case _:
                raise AssertionError(f"unknown action {action}")

    def _cache(self, action: Cache) -> None:
        payload = action.payload
        assert isinstance(payload, Payload)
        places, now_ns = self._places, SYSTEM_CLOCK.now_ns()
        if places is not None:
            cached = _placed(places, action, payload)
        else:
            cached = self._kept(payload) if action.is_new else payload.share()
        in_place = 0 if places is None else places.count
        self.do(self.core.cached(now_ns, action, cached, payload.nbytes, in_place=in_place))

    def _kept(self, payload: Payload) -> Payload:
        """The weights, as they leave for each child."""
        # Of a node by shared memory: it has other uses for that, or had none left, and what came
        # as a copy would leave as one to each child.
        if not payload.is_shared and not (
            self._shares_memory and payload.nbytes >= ZERO_COPY_BYTES_MIN
        ):
            return payload.share()
        memory, cached = self._buffers.take(payload.nbytes)
        memory[:] = payload.view()
        cached.checksum = payload.checksum
        return cached

    @functools.cached_property
    def _places(self) -> WeightsPlaces | None:
        """Places for all weights of two steps; None without shared memory or room for them."""
        layout = self.core.cached_layout
        if layout is None or not self._shares_memory:
            return None
        if any(len(each.runs) > 1 for each in layout.extents):
            return None
        nbytes = places_bytes(layout)
        if nbytes > self.core.limits.cache_bytes_max:
            return None
        try:
            return WeightsPlaces(layout, self.transport.reserve(nbytes))
        except CreditExceeded:
            return None

    def _sum(self, action: Sum) -> None:
        failpoint("switch.before_sum")
        start_ns = SYSTEM_CLOCK.now_ns()
        if is_encoded(action):
            total = combine(action, self._buffers, self.core.aggregator)
        else:
            total = add_up(action, self._buffers, self._add)
        now_ns = SYSTEM_CLOCK.now_ns()
        step, _, extent = action.key
        self.recorder.span(
            "sum", start_ns, now_ns, step=step, extent=extent, bytes=total.nbytes
        )  # fmt: skip
        self.do(self.core.summed(now_ns, action, total, total.nbytes))


def _placed(places: WeightsPlaces, action: Cache, payload: Payload) -> Payload:
    """The weights at a place beside the others of their unit, where children may use them."""
    key = (action.extent, action.step, action.attempt)
    if action.is_new:
        places.note_made(action.extent, action.step)
    # Who looks sees no checksum, which weights of one of several nodes have.
    show, memory = not payload.checksum, places.claim(*key)
    if memory is not None:
        memory[:] = payload.view()
        places.fill(*key, show=show)
    placed = places.get(*key, show=show)
    assert placed is not None, "it is there, as this is the only thread that writes"
    placed.checksum = payload.checksum
    return placed

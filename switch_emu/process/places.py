"""Weights at fixed places in shared memory: written once, read in place by every worker.

Each extent has two places, one for the weights of even and one for those of odd steps; a unit's
extents lie one behind the other, as in its flat vector, so that a worker can use a unit where it
lies. While step t+1's weights are written, those of step t stay, in the other place. Where pages
are updated after the verdict (`at_step`), workers have let go of step t by then: one place does.

    empty   -> written   `claim`, `fill`   weights of a step, made under an attempt
    written -> empty     `claim`           for a later step, under a later attempt, or as void
    written -> written   `get`             of an earlier step, and none were made since

Who reads is not noted, and need not be, whether it looked (`PlacesMap`) or received a message: a
place is written for a later step, or once more, when gradients came of all ranks that count, or
their `Commit`, which they sent when they had let go of what was there, and waited for no more of
it. So a message that is read when other weights are there is one that its receiver ignores; and a
rank that was left out meanwhile finds another word (`luwu/nic/board.py`).

A state in RAM of one side keeps its masters here, where they are what travels: they are there once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from luwu.layout import Layout, PlacesMap
from luwu.wire.altered import checksum_of
from switch_emu.process.payload import Buffers, Payload


@dataclass(slots=True)
class _Place:
    memory: memoryview
    step: int = -1
    """Step that its weights are for; -1: empty."""
    attempt: int = -1
    is_claimed: bool = False

    def payload(self) -> Payload:
        return Payload(self.memory.toreadonly(), is_shared=True)


def places_bytes(layout: Layout, count: int = 2) -> int:
    """Shared memory that so many places of each extent of a model take."""
    return PlacesMap(layout, count).nbytes


class WeightsPlaces:
    """The places of one model. Thread-safe."""

    def __init__(
        self, layout: Layout, memory: memoryview, count: int = 2, masters: Collection[int] = ()
    ) -> None:  # fmt: skip
        """`memory`: `places_bytes(layout, count)` bytes, writable and shared with the workers.
        `masters`: extents that have one place, which keeps their masters."""
        assert count == 1 or not masters, "masters cannot be in two places"
        self._lock = threading.Lock()
        self._decided = (-1, -1)
        """(step, attempt) of the newest decided weights."""
        self._made = {extent.index: 0 for extent in layout.extents if extent.trainable}
        """The newest step that weights of an extent were made for. Others are frozen: once written,
        they count for every step."""
        self.count = count
        """Places of each extent."""
        self._masters = frozenset(masters)
        self._map = places = PlacesMap(layout, count)
        self._words = memory[places.table_start : places.nbytes].cast("Q")
        self._words[:] = memoryview(bytes(self._words.nbytes)).cast("Q")
        self._places = {
            places.word(extent.index, step): _Place(memory[start : start + extent.wire_bytes])
            for extent in layout.extents
            for step in range(count)
            for start in (places.extent_start(extent.index, step),)
        }
        """By their words."""

    def note_made(self, extent: int, step: int) -> None:
        """Weights of an extent are made for a step, and are not those of the step before."""
        with self._lock:
            if extent in self._made:
                self._made[extent] = step

    def claim(
        self, extent: int, step: int, attempt: int, *, again: bool = False
    ) -> memoryview | None:
        """Where to write weights for a step; None if they are there already, or being written.

        `note_made` must precede, unless they are those of the step before. `again`: those that are
        there are void. `fill` or `give_up` must follow.
        """
        with self._lock:
            place = self._place(extent, step)
            is_there = self._has(extent, step, attempt) and extent not in self._masters
            if place.is_claimed or (is_there and not again):
                return None
            place.is_claimed, place.step = True, -1
            self._words[self._map.word(extent, step)] = 0
            return place.memory

    def fill(self, extent: int, step: int, attempt: int, *, show: bool = True) -> Payload:
        """The weights were written; they are handed out. `show`: to who looks, too."""
        with self._lock:
            place = self._place(extent, step)
            assert place.is_claimed
            place.is_claimed, place.step, place.attempt = False, step, attempt
            self._stamp(extent, step, attempt, show=show)
            return place.payload()

    def give_up(self, extent: int, step: int) -> None:
        """Nothing was written."""
        with self._lock:
            self._place(extent, step).is_claimed = False

    def get(self, extent: int, step: int, attempt: int, *, show: bool = True) -> Payload | None:
        """The weights for a step, if they are here and count under this attempt."""
        with self._lock:
            place = self._place(extent, step)
            if not self._has(extent, step, attempt):
                return None
            if place.step != step and extent not in self._masters:
                place.step, place.attempt = step, attempt
            self._stamp(extent, step, attempt, show=show)
            return place.payload()

    def keeps_masters(self, extent: int) -> bool:
        """True if the masters of an extent are here."""
        return extent in self._masters

    def memory(self, extent: int) -> memoryview:
        """The place of even steps."""
        return self._place(extent, 0).memory

    def note_decided(self, step: int, attempt: int) -> None:
        """Note that weights of this step, made under this attempt, are decided."""
        with self._lock:
            self._decided = (step, attempt)

    def _place(self, extent: int, step: int) -> _Place:
        return self._places[self._map.word(extent, step)]

    def _has(self, extent: int, step: int, attempt: int) -> bool:
        place, made = self._place(extent, step), self._made.get(extent)
        if place.is_claimed:
            return False
        if extent in self._masters:  # they are there before any are asked for; -1: as they came
            return place.step <= step
        if place.step < 0 or made is None:
            return place.step >= 0
        counts = place.attempt == attempt or (place.step, place.attempt) == self._decided
        return counts and (place.step == step or made <= place.step < step)

    def _stamp(self, extent: int, step: int, attempt: int, *, show: bool = True) -> None:
        stamp = self._map.stamp(extent, step, attempt)
        self._words[self._map.word(extent, step)] = stamp if show else stamp | PlacesMap.HIDDEN


class Outgoing:
    """Memory for outgoing weights: their place in shared memory, or a copy."""

    def __init__(
        self, places: WeightsPlaces | None, buffers: Buffers, extent: int, step: int, attempt: int,
        *, dtype: str, nbytes: int, again: bool = False, is_checked: bool = False,
        has_masters: bool = False,
    ) -> None:  # fmt: skip
        """`nbytes`: size of the copy, if the place cannot be written; 0: no copy. `again`: of
        weights in the place that are void. `is_checked`: who receives them can find out whether
        they are what was written. `has_masters`: the place keeps the masters, which are updated
        there."""
        self._is_checked = is_checked
        self._places, self._key = places, (extent, step, attempt)
        self.has_masters = has_masters
        place = None if places is None else places.claim(extent, step, attempt, again=again)
        self.in_place = 0 if places is None or place is None else places.count
        """Places of the extent, if it is one of them."""
        self._payload: Payload | None = None
        if has_masters:
            assert place is not None, "masters are written once a step"
            place = None
        elif place is None and nbytes:
            place, self._payload = buffers.take(nbytes)
        self.target: tuple[memoryview, str] | None = None if place is None else (place, dtype)
        """Memory for the new weights, beside the masters."""

    def written(self, *, show: bool = True) -> Payload | None:
        """The written weights as a payload; None without place and copy. `show`: in their place
        they may be used by now."""
        if self._places is not None and self.in_place:
            return self._places.fill(*self._key, show=show)
        if self._payload is not None and self._is_checked:
            self._payload.checksum = checksum_of(self._payload.view())
        return self._payload

    def given_up(self) -> None:
        """Release the memory; the weights are void."""
        if self.in_place:
            assert self._places is not None
            self._places.give_up(*self._key[:2])
        elif self._payload is not None:
            self._payload.drop()

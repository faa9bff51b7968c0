"""Weights that lie in memory shared with their sender: found by looking, or named by a message.

The first weights that come at a place of their own say where the table of all places is
(`PlacesMap`), and the worker looks there before it asks: for the stamp of its attempt and the step.

The sender does not know who reads. It writes over weights when the ranks that count have let go of
them, so their stamps are the same when they are let go. Those of a rank that was left out meanwhile
may not be: then what it computed is void, and the new attempt is about to be announced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import partial

from luwu.base.address import address_of
from luwu.layout import Layout, PlacesMap
from luwu.nic.memory import SharedWeights

Stamps = Sequence[tuple[int, int]]
"""Words of the table, and what is there."""


class Board:
    """The places of one sender, as this worker sees them in one attempt."""

    def __init__(self, places: PlacesMap, base: int, mapping: memoryview) -> None:
        """`base`: address of the places, in the memory of `mapping`."""
        self._base, self._places, self._mapping = base, places, mapping
        table = base + places.table_start
        self.words = (ctypes.c_uint64 * places.words_count).from_address(table)
        self.was_overtaken = False
        """True if weights were written over before they were let go."""

    def find(self, unit: int, step: int, attempt: int, *, judged_step: int) -> SharedWeights | None:
        """The weights of a unit, if all are there and the verdict of the step before is known."""
        if step > judged_step + 1:
            return None  # tentative
        stamps = self._stamps(self._places.layout.unit_extents[unit], step, attempt)
        if any(self.words[number] != stamp for number, stamp in stamps):
            return None
        return self._shared(unit, step, stamps)

    def named(self, unit: int, step: int, attempt: int) -> SharedWeights:
        """The weights of a unit, all of which messages have named."""
        stamps = self._stamps(self._places.layout.unit_extents[unit], step, attempt)
        return self._shared(unit, step, stamps)

    def let_go(self, extents: Iterable[int], step: int, attempt: int) -> None:
        """Weights of these extents were copied from their places, and are not read any more."""
        self._compare(self._stamps(extents, step, attempt))

    def is_place(self, extent: int, step: int, weights: memoryview) -> bool:
        """True if weights lie at the place of an extent for a step."""
        return address_of(weights) == self._base + self._places.extent_start(extent, step)

    def _stamps(self, extents: Iterable[int], step: int, attempt: int) -> Stamps:
        places = self._places
        return [(places.word(each, step), places.stamp(each, step, attempt)) for each in extents]

    def _shared(self, unit: int, step: int, stamps: Stamps) -> SharedWeights:
        address = self._base + self._places.unit_start(unit, step)
        nbytes, at_release = self._places.unit_bytes[unit], partial(self._compare, stamps)
        return SharedWeights(address, nbytes, self._mapping, at_release)

    def _compare(self, stamps: Stamps) -> None:
        hidden = PlacesMap.HIDDEN
        if any(self.words[number] | hidden != stamp | hidden for number, stamp in stamps):
            self.was_overtaken = True


def board_of(
    layout: Layout, weights: memoryview, *, extent: int, step: int, attempt: int, count: int
) -> Board | None:
    """The board that weights of an extent for a step lie on, one of `count` places; None if they
    are not what is there by its table, or its memory does not reach so far, as that of a peer of
    another version."""
    places, memory = PlacesMap(layout, count), weights.obj
    base = address_of(weights) - places.extent_start(extent, step)
    if not isinstance(memory, ctypes.Array):
        return None
    start = ctypes.addressof(memory)
    if not start <= base <= base + places.nbytes <= start + len(memory):
        return None
    board = Board(places, base, weights)
    board.let_go([extent], step, attempt)
    return None if board.was_overtaken else board

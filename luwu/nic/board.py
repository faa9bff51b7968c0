"""Weights that lie in memory shared with their sender, found by looking: without a message.

The first weights that come at a place of their own say where the table of all places is
(`PlacesMap`), and the worker looks there before it asks: for the stamp of its attempt and the step.

The sender does not know who reads. It writes over weights when the ranks that count have let go of
them, so their stamps are the same when they are let go. Those of a rank that was left out meanwhile
may not be: then what it computed is void, and the new attempt is about to be announced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

from luwu.layout import Layout, PlacesMap
from luwu.nic.memory import SharedWeights


class Board:
    """The places of one sender, as this worker sees them."""

    def __init__(self, places: PlacesMap, base: int, mapping: memoryview) -> None:
        """`base`: address of the places, in the memory of `mapping`."""
        self.base, self._places, self._mapping = base, places, mapping
        table = base + places.table_start
        self.words = (ctypes.c_uint64 * places.words_count).from_address(table)
        self.was_overtaken = False
        """True if weights were written over before they were let go."""

    def find(self, unit: int, step: int, attempt: int, *, judged_step: int) -> SharedWeights | None:
        """The weights of a unit, if all are there and the verdict of the step before is known."""
        places = self._places
        if step > judged_step + 1:
            return None  # tentative
        words = [
            (places.word(extent, step), places.stamp(extent, step, attempt))
            for extent in places.layout.unit_extents[unit]
        ]
        if any(self.words[number] != stamp for number, stamp in words):
            return None
        address = self.base + places.unit_start(unit, step)
        nbytes, let_go = places.unit_bytes[unit], partial(self._let_go, words)
        return SharedWeights(address, nbytes, self._mapping, let_go)

    def _let_go(self, words: Sequence[tuple[int, int]]) -> None:
        if any(self.words[number] != stamp for number, stamp in words):
            self.was_overtaken = True


def board_of(
    layout: Layout, shared: SharedWeights, *, unit: int, step: int, count: int
) -> Board | None:
    """The board that weights of a unit for a step lie on, one of `count` places; None if its memory
    does not reach so far, as that of a peer of another version."""
    places, memory = PlacesMap(layout, count), shared.mapping.obj
    base = shared.address - places.unit_start(unit, step)
    if not isinstance(memory, ctypes.Array):
        return None
    start = ctypes.addressof(memory)
    if not start <= base <= base + places.nbytes <= start + len(memory):
        return None
    return Board(places, base, shared.mapping)

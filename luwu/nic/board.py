"""Weights that lie in memory shared with their sender, found by looking: without a message.

The first weights that come at a place of their own say where the table of all places is
(`PlacesMap`), and the worker looks there before it asks: for the stamp of its attempt and the step.

The sender does not know who reads. It writes over weights when the ranks that count have let go of
them, so their stamps are the same when they are let go. Those of a rank that was left out meanwhile
may not be: then what it computed is void, and the new attempt is about to be announced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from luwu.layout import Layout, PlacesMap
from luwu.nic.memory import SharedWeights


class LookedUp(SharedWeights):
    """One unit's weights that were found by looking."""

    def __init__(
        self, address: int, nbytes: int, mapping: memoryview, board: Board,
        words: Iterable[tuple[int, int]],
    ) -> None:  # fmt: skip
        """`words`: number and content of each word of theirs."""
        self.address, self.nbytes, self.mapping = address, nbytes, mapping
        self._board, self._words = board, tuple(words)

    def release(self) -> None:
        words, self._words = self._words, ()
        if not all(self._board.words[number] == found for number, found in words):
            self._board.was_overtaken = True


class Board:
    """The places of one sender, as this worker sees them."""

    def __init__(self, places: PlacesMap, base: int, mapping: memoryview) -> None:
        """`base`: address of the places, in the memory of `mapping`."""
        self.base, self._places, self._mapping = base, places, mapping
        table = base + places.table_start
        self.words = (ctypes.c_uint64 * places.words_count).from_address(table)
        self.was_overtaken = False
        """True if weights were written over before they were let go."""

    def find(self, unit: int, step: int, attempt: int, *, judged_step: int) -> LookedUp | None:
        """The weights of a unit, if all are there and the verdict of the step before is known."""
        layout, places = self._places.layout, self._places
        if step > judged_step + 1:
            return None  # tentative
        words = [
            (places.word(extent, step), places.stamp(extent, step, attempt))
            for extent in layout.unit_extents[unit]
        ]
        if any(self.words[number] != stamp for number, stamp in words):
            return None
        address = self.base + places.unit_start(unit, step)
        return LookedUp(address, layout.unit_wire_bytes(unit), self._mapping, self, words)


def board_of(
    layout: Layout, shared: SharedWeights, *, unit: int, step: int, count: int
) -> Board | None:
    """The board that weights of a unit for a step lie on, one of `count` places; None if its memory
    does not reach so far, as that of a peer of another version."""
    places = PlacesMap(layout, count)
    base = shared.address - places.unit_start(unit, step)
    memory = shared.mapping.obj
    if not isinstance(memory, ctypes.Array):
        return None
    start = ctypes.addressof(memory)
    if not start <= base <= base + places.nbytes <= start + len(memory):
        return None
    return Board(places, base, shared.mapping)

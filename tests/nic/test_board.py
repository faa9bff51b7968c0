"""Weights that a worker finds by looking, in memory that their sender writes."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import pytest

from luwu.base.address import address_of
from luwu.layout import PlacesMap
from luwu.nic.board import Board, board_of
from luwu.nic.memory import SharedWeights
from switch_emu.process.places import WeightsPlaces
from tests.node.test_places import layout

LAYOUT = layout()
"""Two extents of unit 0, and a frozen one of unit 1."""
OFFSET = 4096
"""Where the places begin in the memory that is shared."""


class Sender(NamedTuple):
    """One that has places in its memory."""

    memory: ctypes.Array[ctypes.c_ubyte]
    places: WeightsPlaces

    @classmethod
    def of(cls, count: int) -> Sender:
        nbytes = OFFSET + PlacesMap(LAYOUT, count).nbytes
        memory = (ctypes.c_ubyte * nbytes)()
        return cls(memory, WeightsPlaces(LAYOUT, memoryview(memory).cast("B")[OFFSET:], count))

    def publish(self, extent: int, step: int, attempt: int, *, show: bool = True) -> None:
        self.places.note_made(extent, step)
        target = self.places.claim(extent, step, attempt)
        assert target is not None
        target[:] = bytes([step + attempt]) * target.nbytes
        self.places.fill(extent, step, attempt, show=show)

    def sent(self, extent: int, step: int) -> memoryview:
        """An extent's weights as they come by a message."""
        start = OFFSET + PlacesMap(LAYOUT, self.places.count).extent_start(extent, step)
        end = start + LAYOUT.extents[extent].wire_bytes
        return memoryview(self.memory).cast("B").toreadonly()[start:end]

    def board(self, extent: int = 0, step: int = 0, *, show: bool = True) -> Board:
        """As the first weights that come lead to it, of attempt 0."""
        self.publish(extent, step, 0, show=show)
        found = board_of(
            LAYOUT, self.sent(extent, step), extent=extent, step=step, attempt=0,
            count=self.places.count,
        )  # fmt: skip
        assert found is not None
        return found


def find(board: Board, unit: int, step: int, attempt: int) -> SharedWeights | None:
    """As a worker looks that knows the verdict of the step before."""
    return board.find(unit, step, attempt, judged_step=step - 1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("learnt", [(0, 6), (1, 7), (2, 7)])
def test_weights_of_the_step_and_attempt_are_found(count: int, learnt: tuple[int, int]) -> None:
    """I3. Goal: a unit is found when all its extents are there, for this step and this attempt;
    whichever weights came first, the worker looks at the right place."""
    sender = Sender.of(count)
    board = sender.board(*learnt)
    sender.publish(0, step=8, attempt=3)
    assert find(board, 0, 8, 3) is None
    sender.publish(1, step=8, attempt=3)
    for step, attempt in ((7, 3), (9, 3), (8, 2), (8, 4)):
        assert find(board, 0, step, attempt) is None
    found = find(board, 0, 8, 3)
    assert found is not None
    assert ctypes.string_at(found.address, found.nbytes) == bytes([11]) * found.nbytes
    assert found.address == address_of(sender.sent(0, 8))
    for extent in (0, 1):
        sender.publish(extent, step=9, attempt=3)
    assert find(board, 0, 9, 3) is not None
    assert (find(board, 0, 8, 3) is None) == (count == 1), "a place is written for the next step"


def test_weights_are_not_found_before_the_verdict_of_the_step_before() -> None:
    """I2. Goal: tentative weights are not used, though they are there."""
    sender = Sender.of(2)
    board = sender.board()
    for extent in (0, 1):
        sender.publish(extent, step=4, attempt=0)
    assert board.find(0, 4, 0, judged_step=2) is None
    assert board.find(0, 4, 0, judged_step=3) is not None


def test_weights_of_which_only_messages_tell_are_not_found() -> None:
    """I4. Goal: what is made as if a step was not clipped is found when it is handed out; who
    received messages may use weights that are hidden, and notices that they were written over."""
    sender = Sender.of(2)
    board = sender.board(show=False)
    for extent in (0, 1):
        sender.publish(extent, step=1, attempt=0, show=False)
    assert find(board, 0, 1, 0) is None
    used = board.named(0, 1, 0)
    for extent in (0, 1):
        assert sender.places.get(extent, 1, 0) is not None
    assert find(board, 0, 1, 0) is not None
    board.let_go([0], 0, 0)
    used.release()
    assert not board.was_overtaken
    late = board.named(0, 1, 0)
    sender.publish(1, step=3, attempt=0, show=False)
    late.release()
    assert board.was_overtaken


def test_nothing_is_found_while_it_is_written() -> None:
    """I3. Goal: half-written weights are not found, nor those of a place that was given up."""
    sender = Sender.of(1)
    board = sender.board()
    sender.publish(0, step=1, attempt=0)
    sender.publish(1, step=1, attempt=0)
    sender.places.note_made(1, 2)
    assert sender.places.claim(1, 2, 0) is not None
    assert find(board, 0, 1, 0) is None
    sender.places.give_up(1, 2)
    assert find(board, 0, 1, 0) is None
    assert find(board, 0, 2, 0) is None


@pytest.mark.parametrize("count", [1, 2])
def test_frozen_weights_are_found_in_each_step_of_an_attempt(count: int) -> None:
    """Goal: what never changes is asked for once in an attempt, and is there once."""
    sender = Sender.of(count)
    board = sender.board()
    sender.publish(2, step=1, attempt=5)
    assert all(find(board, 1, step, 5) for step in range(4))
    assert find(board, 1, 4, 6) is None


def test_weights_that_were_written_over_are_noticed_when_they_are_let_go() -> None:
    """I3. Goal: a rank that was left out, and read on, or copied what was there by then, does not
    go on as if nothing was."""
    sender = Sender.of(1)
    board = sender.board()
    for extent in (0, 1):
        sender.publish(extent, step=1, attempt=0)
    kept, late = find(board, 0, 1, 0), find(board, 0, 1, 0)
    assert kept is not None
    assert late is not None
    kept.release()
    assert not board.was_overtaken
    sender.publish(1, step=2, attempt=0)
    kept.release()
    assert not board.was_overtaken, "it was let go before"
    late.release()
    assert board.was_overtaken
    copying = sender.board()
    copying.let_go([1], 2, 0)
    assert not copying.was_overtaken
    copying.let_go([0, 1], 1, 0)
    assert copying.was_overtaken


@pytest.mark.parametrize(("step", "attempt", "count"), [(0, 0, 2), (1, 0, 2), (1, 0, 1), (0, 1, 1)])
def test_places_that_are_not_as_a_message_says_are_not_used(
    step: int, attempt: int, count: int
) -> None:
    """I7. Goal: a peer that says two places where it has one is not believed; nor one that has
    other weights there than it says.
    Method: it has one place, for step 0 and attempt 0."""
    sender = Sender.of(1)
    board = sender.board()
    assert board.is_place(0, 0, sender.sent(0, 0))
    assert not board.is_place(1, 0, sender.sent(0, 0))
    asked = {"extent": 0, "step": step, "attempt": attempt, "count": count}
    assert board_of(LAYOUT, sender.sent(0, 0), **asked) is None

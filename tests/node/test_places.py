"""Weights at fixed places: one for each step, never those of another one."""

from __future__ import annotations

import numpy as np
import pytest

from luwu.layout import Layout, Parameter, Unit
from switch_emu.process.payload import Payload
from switch_emu.process.places import WeightsPlaces, places_bytes

TRAINED, FROZEN = 0, 2
"""Chunks: two of unit 0, then the frozen one of unit 1."""


def layout() -> Layout:
    return Layout(
        parameters=(
            Parameter(name="w", shape=(6000,)),
            Parameter(name="table", shape=(100,), trainable=False),
        ),
        units=(Unit(name="a", parameters=(0,)), Unit(name="b", parameters=(1,))),
        chunk_bytes=16 * 1024,
    )


@pytest.fixture
def places() -> WeightsPlaces:
    return WeightsPlaces(layout(), memoryview(bytearray(places_bytes(layout()))))


def publish(places: WeightsPlaces, chunk: int, step: int, attempt: int, value: int) -> Payload:
    places.note_made(chunk, step)
    memory = places.claim(chunk, step, attempt)
    assert memory is not None
    memory[:] = bytes([value]) * memory.nbytes
    return places.fill(chunk, step, attempt)


def test_a_unit_lies_in_one_piece(places: WeightsPlaces) -> None:
    """Goal: chunks of a unit follow each other as in its flat vector, for both steps."""
    for step in (0, 1):
        first, second = (publish(places, chunk, step, 0, 1).view() for chunk in (0, 1))
        addresses = [
            np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (first, second)
        ]
        assert addresses[1] - addresses[0] == first.nbytes == 16 * 1024


def test_a_step_has_the_place_of_the_step_before_the_last() -> None:
    """I3. Goal: what workers read does not change while the weights of the next step are written;
    where every worker lets go of a step first, half of the memory does."""
    for count, is_there in ((1, False), (2, True)):
        nbytes = places_bytes(layout(), count)
        assert count * places_bytes(layout(), 1) == nbytes
        places = WeightsPlaces(layout(), memoryview(bytearray(nbytes)), count)
        before = publish(places, TRAINED, 4, 0, 1).view()
        publish(places, TRAINED, 5, 0, 2)
        assert (places.get(TRAINED, 4, 0) is not None) == is_there
        assert (bytes(before[:2]) == b"\1\1") == is_there
        publish(places, TRAINED, 6, 0, 3)
        assert bytes(before[:2]) == b"\3\3"


def test_only_weights_that_count_are_handed_out(places: WeightsPlaces) -> None:
    """I2. Goal: tentative weights count under their own attempt, decided ones under any."""
    publish(places, TRAINED, 7, 3, 1)
    assert places.get(TRAINED, 5, 3) is None
    assert places.get(TRAINED, 7, 4) is None
    assert places.get(TRAINED, 7, 3) is not None
    places.note_decided(7, 3)
    assert places.get(TRAINED, 7, 4) is not None
    places.note_decided(8, 4)
    assert places.get(TRAINED, 7, 4) is None


def test_void_weights_are_written_anew(places: WeightsPlaces) -> None:
    """I2. Goal: after an abort the same place takes what the new attempt makes."""
    publish(places, TRAINED, 2, 0, 1)
    assert places.claim(TRAINED, 2, 0) is None, "they are there already"
    publish(places, TRAINED, 2, 1, 9)
    found = places.get(TRAINED, 2, 1)
    assert found is not None
    assert bytes(found.view()[:1]) == b"\x09"


def test_nothing_is_handed_out_while_it_is_written(places: WeightsPlaces) -> None:
    """I3. Goal: half-written weights are nobody's; giving up leaves nothing."""
    assert places.claim(TRAINED, 0, 0) is not None
    assert places.get(TRAINED, 0, 0) is None
    assert places.claim(TRAINED, 0, 0) is None
    places.give_up(TRAINED, 0)
    assert places.get(TRAINED, 0, 0) is None
    assert places.claim(TRAINED, 0, 0) is not None


def test_frozen_weights_are_written_once(places: WeightsPlaces) -> None:
    """Goal: what never changes is not published anew at every step."""
    assert places.get(FROZEN, 0, 0) is None
    publish(places, FROZEN, 0, 0, 3)
    for step in range(1, 6):
        assert places.get(FROZEN, step, attempt=step) is not None
        assert places.claim(FROZEN, step, step) is None


@pytest.mark.parametrize("count", [1, 2])
def test_weights_that_did_not_change_are_not_written_again(count: int) -> None:
    """I3. Goal: a place has the weights of a later step, if none were made since, under the attempt
    in which they were, or decided; of those that were made for a step in between, it has not."""
    places = WeightsPlaces(layout(), memoryview(bytearray(places_bytes(layout(), count))), count)
    publish(places, TRAINED, 4, 0, 1)
    later = 4 + count
    assert places.get(TRAINED, later, 1) is None, "another attempt may have made others"
    assert places.claim(TRAINED, later, 0) is None
    found = places.get(TRAINED, later, 0)
    assert found is not None
    assert bytes(found.view()[:1]) == b"\1"
    publish(places, TRAINED, later + 1, 0, 2)
    memory = places.claim(TRAINED, later + 2, 0)
    assert (memory is None) == (count == 1), "with two places the other has what was made"
    assert (places.get(TRAINED, later + 2, 0) is None) == (count == 2)


def test_decided_weights_that_did_not_change_count_under_a_later_attempt(
    places: WeightsPlaces,
) -> None:
    """I2. Goal: an abort leaves what was decided; what the attempt made since is void."""
    publish(places, TRAINED, 4, 0, 1)
    places.note_decided(4, 0)
    assert places.get(TRAINED, 6, 1) is not None
    publish(places, TRAINED, 7, 1, 2)
    assert places.claim(TRAINED, 8, 2) is not None

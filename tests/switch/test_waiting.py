"""Contributions that wait for a slot, instead of going up raw (`switch/core/aggregation.py`)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate.cluster import Cluster
from tests.simulate.job import SMALL_NODE, Job, make_layout
from tests.simulate.seeds import seeds
from tests.simulate.world import ROUGH, Payload
from tests.suites.switch_suite import (
    CHUNK_BYTES,
    EXTENTS,
    WORLD,
    Bench,
    child,
    gradients,
    in_rank_order,
)

GRADS = {extent: gradients(extent) for extent in EXTENTS}
FIRST, SECOND, THIRD = EXTENTS[:3]


def bench(slot_count: int = 1) -> Bench:
    """With so many slots, which are waited for."""
    return Bench(SwitchLimits(slot_bytes_max=slot_count * WORLD * CHUNK_BYTES))


def push(found: Bench, rank: int, *extents: int) -> None:
    for extent in extents:
        found.push(rank, extent, GRADS[extent][rank])


def sums(found: Bench, *, raw_count: int = 0) -> list[int]:
    """Extents whose sums went up since the last call, as the parent receives them: exact."""
    extents = []
    for message, values in found.take_parent():
        assert not message.raw
        np.testing.assert_array_equal(values, in_rank_order(GRADS[message.index]))
        extents.append(message.index)
        found.parent_has(message)
    assert found.core.raw_up.count == raw_count
    return extents


def test_who_is_ahead_waits_and_is_answered_when_it_has_a_slot() -> None:
    """S6. Goal: nothing goes up raw, and what waits is not answered, so its window closes."""
    found = bench()
    push(found, 0, FIRST, SECOND, THIRD)
    push(found, 1, FIRST, SECOND)
    assert found.receipts() == [(child(0), FIRST), (child(1), FIRST)]
    assert found.core.counts()["waited_count"] == 3
    push(found, 2, FIRST)
    assert found.receipts() == [(child(2), FIRST)], "its sum is not with the parent yet"
    assert sums(found) == [FIRST]
    assert sorted(found.receipts()) == [(child(0), SECOND), (child(1), SECOND)]
    push(found, 2, SECOND)
    assert sums(found) == [SECOND]
    push(found, 1, THIRD)
    push(found, 2, THIRD)
    assert sums(found) == [THIRD]
    assert Payload.live_count == 0


def test_who_waits_for_another_extent_than_the_one_that_got_a_slot_goes_up_raw() -> None:
    """S6. Goal: rank 1, whose push of the second extent was lost, waits with the third; the second
    gets a slot without it, and so it waits no more."""
    found = bench()
    push(found, 0, FIRST, SECOND)
    push(found, 1, FIRST, THIRD)
    assert found.take_parent() == []
    push(found, 2, FIRST)
    [(total, _), *none] = found.take_parent()
    assert none == []
    found.parent_has(total)
    raw = [(m.index, m.contributors) for m, _ in found.take_parent()]
    assert raw == [(THIRD, 0b010)]
    assert (child(1), THIRD) in found.receipts()


def test_a_larger_extent_is_not_overtaken() -> None:
    """S7. Goal: an extent that would find room waits behind one for which there is none."""
    found = Bench(
        SwitchLimits(slot_bytes_max=5 * CHUNK_BYTES)
    )  # one slot, and room for less than another
    push(found, 0, FIRST, SECOND)
    found.push(0, THIRD, None)  # without a gradient it needs no room
    assert found.receipts() == [(child(0), FIRST)]
    for rank in (1, 2):
        push(found, rank, FIRST)
    assert sums(found) == [FIRST]
    assert found.receipts()[-2:] == [(child(0), SECOND), (child(0), THIRD)]


@pytest.mark.parametrize("seed", range(40))
def test_all_is_summed_whatever_the_orders(seed: int) -> None:
    """S1, S5, S6. Goal: with any number of slots, each rank pushing in its own order with one or
    two unanswered, every extent arrives whole and once, and no rank waits for ever."""
    rng = Random(seed)
    found = bench(slot_count=rng.randrange(1, 4))
    orders = {rank: list(EXTENTS) for rank in range(WORLD)}
    for order in orders.values():
        if rng.random() < 0.5:
            rng.shuffle(order)
    unanswered: dict[int, set[int]] = {rank: set() for rank in range(WORLD)}
    arrived: dict[int, int] = dict.fromkeys(EXTENTS, 0)
    while any(orders.values()) or any(unanswered.values()):
        can = [rank for rank in orders if orders[rank] and len(unanswered[rank]) < 1 + seed % 2]
        if can and rng.random() < 0.8:
            rank = rng.choice(can)
            extent = orders[rank].pop(0)
            unanswered[rank].add(extent)
            push(found, rank, extent)
        else:
            came = found.take_parent()
            assert came or can, f"all wait: {orders}, {unanswered}; seed {seed}"
            for message, _ in came:
                assert not arrived[message.index] & message.contributors
                arrived[message.index] |= message.contributors
                found.parent_has(message)
        for peer, extent in found.receipts():
            unanswered[int(peer.rpartition("-")[2])].discard(extent)
    for message, _ in found.take_parent():
        arrived[message.index] |= message.contributors
    assert set(arrived.values()) == {(1 << WORLD) - 1}


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("seed", seeds(4, quick=2))
def test_whole_sums_wait_for_room_at_the_node(seed: int, update: str) -> None:
    """I5. Goal: a node that has no room for a sum spills none that it can update at once; those
    that wait for the verdict of their step it spills."""
    limits = replace(SMALL_NODE, sum_bytes_max=10_000)
    job = Job(make_layout(), node_limits=limits, update=update)
    cluster = Cluster(seed, job, ROUGH)
    cluster.run()
    counts = cluster.nodes[0].core.counts()
    assert cluster.switch.core.raw_up.count == 0
    assert (counts["owed_count"] > 0) == (update == "streaming")
    assert (counts["spilled_count"] > 0) == (update == "at_step")

"""Aggregation slots: S1 to S4, one by one. (Whatever arrives in whatever order: histories.)"""

from __future__ import annotations

import pytest

from luwu.protocol.contribution import Contribution, OverlapError, merge, rank_order
from switch_emu.switch.core.slots import Slot, SlotKey, SlotPool


def said(contributors: int, payload: object = None, payload_bytes: int = 100) -> Contribution:
    """What one child says."""
    return Contribution(contributors, 1.0, True, "float32", payload, payload_bytes)


def opened(pool: SlotPool, key: SlotKey = (0, 0, 0), contribution_bytes: int = 100) -> Slot:
    slot = pool.room(key, contribution_bytes)
    assert slot is not None
    return slot


def test_rank_order_is_by_the_lowest_rank() -> None:
    """S3. Goal: the order is that of the lowest rank, not of the bitmaps as numbers."""
    assert [c.contributors for c in rank_order([said(0b1001), said(0b0110)])] == [0b1001, 0b0110]
    assert [c.contributors for c in rank_order([said(0b0110), said(0b1001)])] == [0b1001, 0b0110]
    assert rank_order([]) == []


@pytest.mark.parametrize(
    ("seen", "contributors", "expected"),
    [(0, 1, True), (0b10, 0b1, True), (0b11, 0b1, False), (0b11, 0b11, False), (0, 0b111, True)],
)
def test_merge(seen: int, contributors: int, expected: bool) -> None:
    """S1. Goal: new, or a repetition."""
    assert merge(seen, contributors) is expected


@pytest.mark.parametrize(("seen", "contributors"), [(0b1, 0b11), (0b110, 0b011), (0b1, 0b111)])
def test_overlap_is_never_merged(seen: int, contributors: int) -> None:
    """I1. Goal: a rank is never added twice in two different sums; the text names ranks."""
    with pytest.raises(OverlapError, match=f"{seen & contributors:#b}"):
        merge(seen, contributors)


def test_an_overlap_leaves_the_slot_as_it_was() -> None:
    """S1. Goal: what is refused changes nothing."""
    pool = SlotPool(ranks=7, child_count=3, bytes_max=1000)
    slot = opened(pool)
    slot.add(said(0b001))
    with pytest.raises(OverlapError):
        slot.add(said(0b011))
    assert (slot.contributors, len(slot.contributions), slot.full) == (0b001, 1, False)


def test_a_slot_is_opened_with_room_for_all() -> None:
    """S4. Goal: an open slot can always become full; to the byte."""
    pool = SlotPool(ranks=7, child_count=3, bytes_max=600)
    opened(pool, (0, 0, 0))
    opened(pool, (0, 0, 1))
    assert pool.bytes_used == 600
    assert pool.room((0, 0, 2), 1) is None
    assert len(pool) == 2
    pool.free((0, 0, 0))
    assert pool.bytes_used == 300
    assert pool.room((0, 0, 2), 101) is None
    assert pool.room((0, 0, 2), 100) is not None


def test_a_slot_grows_with_its_largest_contribution() -> None:
    """S4, I5. Goal: a first child without a gradient does not open slots that cost nothing."""
    pool = SlotPool(ranks=7, child_count=3, bytes_max=400)
    one, other = opened(pool, (0, 0, 0), 0), opened(pool, (0, 0, 1), 0)
    assert pool.bytes_used == 0
    assert pool.room((0, 0, 0), 100) is one
    assert pool.bytes_used == 300
    assert pool.room((0, 0, 0), 60) is one
    assert pool.bytes_used == 300
    assert pool.room((0, 0, 0), 110) is one
    assert pool.bytes_used == 330
    assert pool.room((0, 0, 1), 100) is None
    assert pool.bytes_used == 330
    pool.free((0, 0, 0))
    assert pool.room((0, 0, 1), 100) is other
    pool.free((0, 0, 1))
    assert pool.bytes_used == 0

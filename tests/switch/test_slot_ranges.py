"""Slots that jobs share, slots that fit memory, and what they would take of a real switch."""

from __future__ import annotations

from random import Random

import pytest

from luwu.base.errors import ConfigError
from switch_emu.switch.capacity import (
    SLOTS_AUTO_MAX,
    SlotRanges,
    lent_range,
    planned_slots,
    pool_range,
    with_slots,
)
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolRange
from switch_emu.switch.core.resources import CHIPS, pool_resources, sram_bytes, window_of_link

KIB, MIB = 1024, 1024**2


def asked(slot_count: int) -> PoolRange:
    return PoolRange(slot_count=slot_count, slot_bytes=MIB)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_never_overlap_and_are_given_back(seed: int) -> None:
    """F4. Goal: every job has slots of its own, within the pool; what is refused could not fit.
    Method: jobs that come and go in an order drawn from a seed, against a list of owners."""
    rng = Random(seed)
    ranges = SlotRanges(40)
    open_jobs: list[PoolRange] = []
    for _ in range(200):
        owners = [None] * 40
        for job in open_jobs:
            for slot in range(job.first_slot, job.first_slot + job.slot_count):
                assert owners[slot] is None, f"seed {seed}"
                owners[slot] = job
        text = "".join("x" if owner else "." for owner in owners)
        if open_jobs and rng.random() < 0.4:
            ranges.give_back(open_jobs.pop(rng.randrange(len(open_jobs))))
            continue
        count = rng.randrange(1, 25)
        if "." * count in text:
            open_jobs.append(ranges.take(asked(count)))
        else:
            most = max(len(gap) for gap in text.split("x"))
            with pytest.raises(ConfigError, match=f"slots: {count} asked for, but {most} of"):
                ranges.take(asked(count))
    for job in open_jobs:
        ranges.give_back(job)
    assert ranges.take(asked(40)).first_slot == 0


def test_bad_network_a_job_that_finds_no_slots_is_told_how_many_there_are() -> None:
    """Goal: the refusal names what was asked, what is free, who has the rest and what to do."""
    ranges = SlotRanges(10)
    first = ranges.take(asked(6))
    with pytest.raises(
        ConfigError,
        match="5 asked for, but 4 of this switch's 10 are free side by side; 1 job has the rest: "
        "give --slots 4, or start it with more",
    ):
        ranges.take(asked(5))
    ranges.take(asked(4))
    with pytest.raises(ConfigError, match=r"but 0 of .*2 jobs have the rest: wait until one"):
        ranges.take(asked(1))
    ranges.give_back(first)
    assert ranges.take(asked(6)).first_slot == 0


def test_a_range_is_given_back_however_the_job_ends() -> None:
    """F4. Goal: by its end, by an error; and a job without fixed slots takes none."""
    ranges = SlotRanges(4)
    limits = SwitchLimits(slots=asked(4))
    with lent_range(ranges, limits) as lent:
        assert ranges.lent == [lent.slots]
        with lent_range(ranges, SwitchLimits()), lent_range(None, limits) as alone:
            assert alone is limits
    assert ranges.lent == []
    with pytest.raises(ZeroDivisionError), lent_range(ranges, limits):
        raise ZeroDivisionError
    assert ranges.lent == []


@pytest.mark.parametrize(
    ("slots", "memory_bytes", "expected"),
    [(None, 64 * MIB, 8), (None, 10**12, SLOTS_AUTO_MAX), (8, 64 * MIB, 8), (1, 8 * MIB, 1)],
)
def test_slots_follow_from_memory(slots: int | None, memory_bytes: int, expected: int) -> None:
    """I5. Goal: two copies of every child's chunk, for each slot, are within the memory."""
    found = pool_range(slots, child_count=4, chunk_bytes=MIB, memory_bytes=memory_bytes)
    assert found.slot_count == expected
    assert found.bytes_max(4) <= memory_bytes


@pytest.mark.parametrize(
    ("slots", "memory_bytes", "said"),
    [
        (9, 64 * MIB, r"slots: 9 slots of two copies .*72.00 MiB .*64.00 MiB .*give --slots 8"),
        (None, 7 * MIB, r"slots: 1 slot of two copies .* 8.00 MiB .* 7.00 MiB .*: give a smaller"),
    ],
)  # fmt: skip
def test_bad_network_slots_that_do_not_fit(
    slots: int | None, memory_bytes: int, said: str
) -> None:  # fmt: skip
    """I5. Goal: refused with the number that would do."""
    limits = SwitchLimits(slot_bytes_max=memory_bytes)
    with pytest.raises(ConfigError, match=said):
        with_slots(limits, "protocol", slots, child_count=4, chunk_bytes=MIB)
    assert with_slots(limits, "functional", None, child_count=4, chunk_bytes=MIB) is limits


def test_the_node_plans_for_slots_of_its_own_switch_only() -> None:
    """I5. Goal: not for those of another process, nor for those in the workers' shared memory."""
    protocol = "protocol"
    assert planned_slots(protocol, 7, has_switch=False, in_arenas=False) == 7
    assert planned_slots(protocol, None, has_switch=False, in_arenas=False) == 1
    assert planned_slots(protocol, 7, has_switch=True, in_arenas=False) == 0
    assert planned_slots(protocol, 7, has_switch=False, in_arenas=True) == 0
    assert planned_slots("functional", None, has_switch=False, in_arenas=False) == 0


def test_resources_are_those_of_the_pool() -> None:
    """Goal: SwitchML's pool (8192 slots of 256 elements, two copies) by hand, and a larger one.
    Source: `configuration.p4`; 16 MiB of values, which is more than Tofino's 15 MiB in all."""
    switchml = PoolRange(slot_count=8192, slot_bytes=256 * 4)
    found = pool_resources(switchml, 16)
    assert found["elements_per_slot"] == 256
    assert found["packets_per_chunk"] == {"64": 4, "128": 2, "256": 1}
    assert found["sram_bytes"]["256"] == {
        "values": 16 * MIB, "bitmaps": 64 * KIB, "counters": 64 * KIB,
        "total": 16 * MIB + 128 * KIB,
    }  # fmt: skip
    assert found["emulation_bytes"] == 16 * 16 * MIB
    assert found["window_bytes"] == 8 * MIB
    assert [*CHIPS.values()] == [15 * MIB, 25 * MIB]
    assert not found["fits"]["tofino1"]["is_held"]
    assert found["fits"]["tofino2"]["is_held"]
    held = found["fits"]["tofino1"]["slots_held"]
    assert held < 8192 <= found["fits"]["tofino2"]["slots_held"]
    for count, is_held in ((held, True), (held + 1, False)):
        other = pool_resources(PoolRange(slot_count=count, slot_bytes=256 * 4), 16)
        assert other["fits"]["tofino1"]["is_held"] is is_held


def test_bitmaps_grow_with_children_and_small_packets() -> None:
    """Goal: a word for each 32 children, in every copy of every packet's slot."""
    pool = PoolRange(slot_count=3, slot_bytes=16 * KIB)  # 4,096 elements: 64 packets of 64
    assert sram_bytes(pool, 32, 64)["bitmaps"] == 3 * 2 * 64 * 4
    assert sram_bytes(pool, 33, 64)["bitmaps"] == 3 * 2 * 64 * 8
    assert sram_bytes(pool, 33, 256)["bitmaps"] == 3 * 2 * 16 * 8
    assert sram_bytes(pool, 33, 256)["values"] == 3 * 2 * 16 * KIB


@pytest.mark.parametrize(("slot_count", "is_enough"), [(12, False), (13, True)])
def test_the_window_beside_a_link(slot_count: int, is_enough: bool) -> None:
    """Goal: 100 Gbit/s x 1 ms is 12.5 MB; 12 slots of 1 MiB keep 12.58 MB, but of 1 MB 12 MB."""
    pool = PoolRange(slot_count=slot_count, slot_bytes=10**6)
    found = window_of_link(pool, rate_bytes_per_s=12.5e9, round_trip_s=1e-3)
    assert found["product_bytes"] == 12.5e6
    assert found["is_enough"] is is_enough
    assert found["slots_needed"] == 13

"""Slots of protocol fidelity that fit memory."""

from __future__ import annotations

import pytest

from luwu.base.errors import ConfigError
from switch_emu.switch.capacity import SLOTS_AUTO_MAX, planned_slots, slot_memory, with_slots
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolSize

MIB = 1024**2


def asked(slot_count: int) -> PoolSize:
    return PoolSize(slot_count=slot_count, slot_bytes=MIB)


@pytest.mark.parametrize(
    ("slots", "memory_bytes", "expected"),
    [(None, 64 * MIB, 8), (None, 10**12, SLOTS_AUTO_MAX), (8, 64 * MIB, 8), (1, 8 * MIB, 1)],
)
def test_slots_follow_from_memory(slots: int | None, memory_bytes: int, expected: int) -> None:
    """I5. Goal: two copies of every child's chunk, for each slot, are within the memory."""
    limits = SwitchLimits(slot_bytes_max=memory_bytes)
    found = with_slots(limits, "protocol", slots, child_count=4, chunk_bytes=MIB)
    assert found.slots == asked(expected)
    assert slot_memory(expected, child_count=4, chunk_bytes=MIB) <= memory_bytes


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

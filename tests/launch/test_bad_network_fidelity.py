"""Fidelities and slots that cannot be: refused at the start, with what would work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.launch.sizes import check_fidelity, decide_sizes, own_slots
from switch_emu.node.process import own_switch_limits
from switch_emu.node.spec import NodeSpec
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.process import SwitchSpec, serve_switch

KIB, MIB = 1024, 1024**2


def node(slots: int | None, budget_bytes: int, **more: int) -> NodeSpec:
    values = {"chunk_bytes": 64 * KIB, **more}
    return NodeSpec(
        job=1, world_size=4, listen="", memory_budget_bytes=budget_bytes, summary=Path("none"),
        has_switch=False, fidelity="protocol", slots=slots, **values,
    )  # fmt: skip


def test_bad_network_slots_beyond_the_budget_of_the_node() -> None:
    """I5. Goal: slots of the node's own switch come out of its budget; too many are refused with
    the budget that would do, and that one does."""
    with pytest.raises(ConfigError, match=r"memory_budget: .* or fewer --slots") as caught:
        node(64, 16 * MIB).plan()
    named = re.search(r"give at least (\d+)KiB", str(caught.value))
    assert named is not None
    least = int(named[1]) * KIB
    plan = node(64, least).plan()
    limits = own_switch_limits(node(64, least), plan)
    assert limits.slots is not None
    assert limits.slots.slot_count == 64
    assert limits.slots.window_bytes == 64 * 64 * KIB <= plan.slots_bytes // 8
    with pytest.raises(ConfigError):
        node(64, least - KIB).plan()


def test_bad_network_slots_beyond_the_arenas() -> None:
    """I5. Goal: in shared memory half of a worker's arena may wait in slots."""
    spec = node(17, 64 * MIB, arena_bytes=4 * MIB)
    with pytest.raises(ConfigError, match=r"slots: 17 slots .*: give --slots 16"):
        own_switch_limits(spec, spec.plan())
    fits = node(16, 64 * MIB, arena_bytes=4 * MIB)
    assert own_switch_limits(fits, fits.plan()).slots is not None


def test_bad_network_a_switch_without_room_never_listens(tmp_path: Path) -> None:
    """Goal: refused before anybody can dial it."""
    spec = SwitchSpec(
        job=1, children=(1, 2), listen="tcp://127.0.0.1:0", parent="tcp://127.0.0.1:1",
        limits=SwitchLimits(slot_bytes_max=MIB), chunk_bytes=MIB, fidelity="protocol",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"slots: 1 slot of two .*: give a smaller --chunk"):
        serve_switch(spec, on_listening=pytest.fail, should_stop=lambda: True)


def test_the_default_chunk_leaves_room_for_a_slot() -> None:
    """I5. Goal: whatever the budget, a chunk that follows from it can be planned with a slot."""
    for budget in (2 * MIB, 5 * MIB, 64 * MIB, 1024 * MIB):
        config = RunConfig(
            workers=4, memory_budget=budget, no_switch=True, fidelity="protocol", transport="tcp"
        )
        check_fidelity(config)
        assert own_slots(config) == 1
        spec = node(None, budget, chunk_bytes=decide_sizes(config, None).chunk_bytes)
        assert own_switch_limits(spec, spec.plan()).slots is not None

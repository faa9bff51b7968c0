"""The switch's memory plan: within the budget, or a refusal with the number that works (I5)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.quantities import parse_bytes
from luwu.base.tree import one_switch
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.sizes import decide_sizes
from luwu.launch.specs import SwitchEnds, job_spec, switch_spec
from luwu.launch.switch_memory import switch_plan, widest_plan
from switch_emu.switch.capacity import slot_memory
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.plan import (
    BUDGET_AUTO_MAX,
    EXTENT_BYTES_MIN,
    EXTENTS_AUTO,
    SwitchPlan,
    plan_switch,
    roomy_extent_bytes,
)

KIB, MIB = 1024, 1024**2

every_kind = pytest.mark.parametrize("in_arenas", [False, True], ids=["sockets", "arenas"])
every_job = pytest.mark.parametrize("children", [1, 2, 3, 8, 64, 512])
every_extent = pytest.mark.parametrize("extent", [16 * KIB, 48 * KIB, MIB, 16 * MIB])


def plan(budget: int | None, children: int, extent: int, in_arenas: bool) -> SwitchPlan:
    return plan_switch(
        budget_bytes=budget, child_count=children, extent_bytes=extent, in_arenas=in_arenas
    )


def check(found: SwitchPlan, children: int, extent: int, in_arenas: bool) -> None:
    """What every plan promises."""
    assert found.slots_bytes >= 2 * children * extent, found
    assert found.window_bytes >= extent, found
    assert found.copies_bytes >= extent, found
    spent = found.slots_bytes + found.copies_bytes + found.cache_bytes
    if in_arenas:
        spent += found.arena_bytes
        limits = SwitchLimits().in_arenas(found.arena_bytes, children, extent)
        assert limits.slot_bytes_max == found.slots_bytes
        assert limits.push_window_bytes == found.window_bytes
        # Two extents in slots, one under way and one that is written find room in a child's arena.
        assert found.arena_bytes >= 4 * extent, found
    else:
        spent += children * found.window_bytes + extent  # and a sum that is made
        assert found.arena_bytes == 0
    assert spent <= found.budget_bytes, found


@pytest.mark.feature("a memory budget of the switch")
@every_kind
@every_job
@every_extent
def test_a_refusal_names_a_budget_that_works(extent: int, children: int, in_arenas: bool) -> None:
    """I5. Goal: a budget without room for two extents of every child is refused; the one that is
    named does, and so do all larger ones. Method: as a user would, by the message."""
    with pytest.raises(ConfigError, match=r"switch_memory_budget: .* too small") as caught:
        plan(KIB, children, extent, in_arenas)
    named = re.search(r"give at least (\d+KiB)", str(caught.value))
    assert named is not None
    assert f"each of {children} children" in str(caught.value)
    least = parse_bytes(named.group(1))
    with pytest.raises(ConfigError):
        plan(least - KIB, children, extent, in_arenas)
    for more in range(0, 40 * extent, extent // 3 + 4099):
        found = plan(least + more, children, extent, in_arenas)
        assert found.budget_bytes == least + more
        check(found, children, extent, in_arenas)


@every_kind
@every_job
@every_extent
def test_the_default_follows_the_job_alone(extent: int, children: int, in_arenas: bool) -> None:
    """I5. Goal: 512 MiB, but two extents of every child in any case; gradients have so many
    extents of every child, of 4 MiB at least, and what they leave is a cache of weights."""
    found = plan(None, children, extent, in_arenas)
    check(found, children, extent, in_arenas)
    assert found.budget_bytes == max(BUDGET_AUTO_MAX, plan_least(children, extent, in_arenas))
    many = EXTENTS_AUTO * children * max(extent, EXTENT_BYTES_MIN)
    if found.slots_bytes < many:
        assert found.cache_bytes == 0
    else:
        assert found.slots_bytes <= many * 9 // 8  # arenas are whole pages, windows a share
        more = plan(found.budget_bytes + MIB, children, extent, in_arenas)
        assert more.cache_bytes == found.cache_bytes + MIB


@every_kind
@every_job
def test_a_default_extent_leaves_room_for_four_of_every_child(
    children: int, in_arenas: bool
) -> None:
    """I5. Goal: the budget has room for four extents of every child, unless it is so small that
    even chunks of 16 KiB would not fit."""
    for budget in (None, *(MIB << bits for bits in range(14))):
        found = roomy_extent_bytes(
            16 * MIB, budget_bytes=budget, child_count=children, in_arenas=in_arenas
        )
        if found >= 16 * KIB:
            planned = plan(budget, children, found, in_arenas)
            assert planned.budget_bytes == (budget or BUDGET_AUTO_MAX)
            assert planned.slots_bytes >= 4 * children * found
    assert found == 16 * MIB or children > 64


@pytest.mark.parametrize("switch_memory_budget", [None, 24 * MIB, 12 * MIB])
def test_the_default_extent_fits_a_small_switch(switch_memory_budget: int | None) -> None:
    """I5. Goal: a switch's budget that has room for single chunks is not rejected because of the
    default extent."""
    config = RunConfig(workers=2, memory_budget=76 * MIB, switch_memory_budget=switch_memory_budget)
    found = decide_sizes(config, None)
    longest = {None: 4 * MIB, 24 * MIB: MIB, 12 * MIB: MIB}[switch_memory_budget]
    assert found.chunk_bytes == MIB
    assert found.extent_chunks * found.chunk_bytes == longest


def plan_least(children: int, extent: int, in_arenas: bool) -> int:
    with pytest.raises(ConfigError) as caught:
        plan(1, children, extent, in_arenas)
    return parse_bytes(re.findall(r"(\d+KiB)", str(caught.value))[-1])


@every_kind
@pytest.mark.parametrize("slots", [None, 1, 7, 1000])
def test_fixed_slots_have_room(slots: int | None, in_arenas: bool) -> None:
    """I5. Goal: the default has room for the slots of protocol fidelity that are asked for; a
    budget that is given does not grow, and the switch refuses to start."""
    config = RunConfig(fidelity="protocol", slots=slots)
    found = switch_plan(config, child_count=2, extent_bytes=64 * KIB, in_arenas=in_arenas)
    assert found.slots_bytes >= slot_memory(slots or 256, child_count=2, chunk_bytes=64 * KIB)
    given = RunConfig(fidelity="protocol", slots=slots, switch_memory_budget=MIB)
    kept = switch_plan(given, child_count=2, extent_bytes=64 * KIB, in_arenas=in_arenas)
    assert kept.budget_bytes == MIB
    assert found.cache_bytes == kept.cache_bytes == 0, "it emulates a switch without a cache"


def test_a_machine_without_so_much_memory_is_told_of() -> None:
    """I5. Goal: slots for more than the machine's memory are refused before anything starts."""
    config = RunConfig(fidelity="protocol", slots=10**9)
    with pytest.raises(ConfigError, match=r"switch_memory_budget: .* needed, but .* fewer --slots"):
        widest_plan(config, one_switch(2), 64 * KIB, in_arenas=True)


def test_the_process_is_told_its_part(tmp_path: Path) -> None:
    """Goal: what the option asks for is what the switch's process is started with."""
    config = RunConfig(switch_memory_budget=BUDGET_AUTO_MAX)
    tree = one_switch(2)
    told = switch_spec(
        config, RunDirectory.create(tmp_path / "run"),
        job_spec(config, job=1, chunk_bytes=64 * KIB, extent_chunks=4),
        SwitchEnds(listen="tcp://127.0.0.1:0", parent="tcp://127.0.0.1:9"),
        tree=tree, place=tree.root,
    )  # fmt: skip
    expected = plan(BUDGET_AUTO_MAX, 2, 256 * KIB, False)
    assert told["memory_budget_bytes"] == BUDGET_AUTO_MAX
    assert told["limits"]["cache_bytes_max"] == expected.cache_bytes > 0
    assert told["limits"]["slot_bytes_max"] == expected.slots_bytes
    assert told["limits"]["copies_bytes_max"] == expected.copies_bytes
    assert told["limits"]["push_window_bytes"] == expected.window_bytes


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_switch_that_joins_knows_of_replicas_by_the_job(replicas: int, tmp_path: Path) -> None:
    """E4, E8. Goal: luwu up --role switch --join has no --replicas of its own; it leaves lost nodes
    out and fills them where the job has some."""
    config, tree = RunConfig(drop_node_after=3.0, fill_rate=5e6), one_switch(2)
    job = job_spec(config, job=1, chunk_bytes=64 * KIB, extent_chunks=4)
    told = switch_spec(
        config, RunDirectory.create(tmp_path / "run"), replace(job, replicas=replicas),
        SwitchEnds(listen="tcp://127.0.0.1:0", parent="tcp://127.0.0.1:9"),
        tree=tree, place=tree.root,
    )  # fmt: skip
    found = (told["limits"]["drop_node_after_ns"], told["limits"]["fill_rate_bytes_per_s"])
    assert found == ((3_000_000_000, 5e6) if replicas > 1 else (None, None))

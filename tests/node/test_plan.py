"""The node's memory plan: within the budget, or a refusal with the number that works (I5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.base.quantities import parse_bytes
from switch_emu.node.plan import (
    EXTENT_AUTO_BYTES_MAX,
    NodePlan,
    budget_for_pages,
    default_chunk_bytes,
    default_extent_chunks,
    plan_node,
)

KIB, MIB, GIB = 1024, 1024**2, 1024**3
every_kind = pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])


def plan(budget_bytes: int, chunk_bytes: int, world_size: int, has_switch: bool) -> NodePlan:
    return plan_node(
        budget_bytes=budget_bytes,
        chunk_bytes=chunk_bytes,
        world_size=world_size,
        has_switch=has_switch,
    )


def uses(found: NodePlan) -> dict[str, int]:
    """Everything the budget is spent on."""
    sizes = {item.name: getattr(found, item.name) for item in fields(found)}
    del sizes["budget_bytes"]
    return {name: value for name, value in sizes.items() if name.endswith("_bytes")}


@every_kind
def test_more_budget_never_gives_less(has_switch: bool) -> None:
    """Goal: raising the budget takes no buffer away and loses no thread.
    Method: budgets in steps of 5 %; resident pages are left out, for threads may cost some."""
    before = plan(GIB // 256, 64 * KIB, 4, has_switch)
    budget = GIB // 256
    while budget < 64 * GIB:
        budget = budget * 21 // 20
        now = plan(budget, 64 * KIB, 4, has_switch)
        assert now.updates_count >= before.updates_count
        assert now.reads_count >= before.reads_count
        before = now
    assert now.resident_bytes > budget // 2, "what is left keeps pages in RAM"


def test_the_plan_is_told_in_one_line() -> None:
    """Goal: people see the budget, every use that is not nothing, and what travels together."""
    line = plan(GIB, MIB, 2, True).line
    assert line.startswith("memory budget 1.00 GiB: pipeline (6 updates, 2 reads) ")
    assert not any(words in line for words in ("slots", "at once", "travel"))
    line = plan(GIB, MIB, 2, False).line
    for use in ("pushes under way", "sums in RAM", "weights going out", "slots", "resident pages"):
        assert use in line
    line = plan_node(
        budget_bytes=GIB, extent_chunks=16, chunk_bytes=64 * KIB, world_size=2, has_switch=True
    ).line
    assert "16 pages at once" in line
    assert line.endswith("; 16 chunks travel together")


@pytest.mark.parametrize(
    ("budget_bytes", "chunk_bytes"),
    [
        (0, 16 * KIB),
        (1 * MIB - 1, 16 * KIB),
        (1 * MIB, 32 * KIB),
        (2 * MIB - 1, 32 * KIB),
        (2 * MIB, 64 * KIB),
        (8 * MIB, 256 * KIB),
        (31 * MIB, 256 * KIB),
        (64 * MIB, MIB),
        (256 * MIB, 4 * MIB),
        (GIB, 16 * MIB),
        (512 * GIB, 16 * MIB),
    ],
)
def test_default_chunk_follows_from_the_budget(budget_bytes: int, chunk_bytes: int) -> None:
    """Goal: a 32nd of the budget up to 256 KiB, then a 64th: a power of two, from 16 KiB to
    16 MiB."""
    assert default_chunk_bytes(budget_bytes, world_size=4, has_switch=True) == chunk_bytes


@every_kind
@pytest.mark.parametrize("world_size", [1, 2, 8, 16])
def test_the_default_chunk_can_work(has_switch: bool, world_size: int) -> None:
    """Goal: without --chunk, a budget of a MiB and more is not refused, and two pages and more are
    in flight."""
    budget = MIB
    while budget < 1024 * GIB:
        chunk = default_chunk_bytes(budget, world_size=world_size, has_switch=has_switch)
        found = plan(budget, chunk, world_size, has_switch)
        assert found.updates_count >= 2
        budget = budget * 3 // 2


EXTENTS = (1, 2, 3, 8, 64)
every_memory = pytest.mark.parametrize("in_arenas", [False, True], ids=["sent", "arenas"])


def budgets_from(least: int, step: int) -> Iterator[int]:
    """The least budget, 40 that are a step apart, and up to 64 GiB by ratio."""
    yield from (least + index * step for index in range(40))
    budget = least + 40 * step
    while budget < 64 * GIB:
        yield budget
        budget = budget * 5 // 4 + 1


def least_budget(**asked: Any) -> int:
    """The number in the refusal of nearly nothing."""
    with pytest.raises(ConfigError, match="memory_budget") as caught:
        plan_node(budget_bytes=1024, **asked)
    named = re.search(r"at least (\d+KiB)", str(caught.value))
    assert named is not None, str(caught.value)
    return parse_bytes(named.group(1))


@every_kind
@every_memory
@pytest.mark.parametrize("world_size", [1, 2, 8, 512])
@pytest.mark.parametrize("extent_chunks", EXTENTS)
def test_a_plan_of_extents_is_its_budget(
    extent_chunks: int, world_size: int, in_arenas: bool, has_switch: bool
) -> None:
    """I5. Goal: all uses together are the budget, and each use has what it cannot do without; a
    budget that is too small is refused, and the one that is named does.
    Method: chunks of four sizes, budgets from the one that the refusal names."""
    for chunk_bytes in (16 * KIB, 48 * KIB, MIB, 8 * MIB):
        asked: dict[str, Any] = {
            "chunk_bytes": chunk_bytes, "world_size": world_size, "has_switch": has_switch,
            "extent_chunks": extent_chunks, "in_arenas": in_arenas,
        }  # fmt: skip
        extent = extent_chunks * chunk_bytes
        of_all = max(2, world_size) * extent
        least = least_budget(**asked)
        with pytest.raises(ConfigError):
            plan_node(budget_bytes=least - KIB, **asked)
        for budget in budgets_from(least, chunk_bytes + 4099):
            found = plan_node(budget_bytes=budget, **asked)
            spent, told = uses(found), f"{asked}: {found}"
            assert sum(spent.values()) == budget == found.budget_bytes, told
            assert min(spent.values()) >= 0, told
            assert found.sums_bytes >= extent, told
            assert found.spill_bytes >= extent, told
            assert found.outgoing_bytes >= 2 * extent, told
            threads = found.updates_count + found.reads_count
            together = found.pages_together
            assert together & together - 1 == 0 < together <= extent_chunks, told
            pages = together * (4 * found.updates_count + 1) + found.reads_count
            assert found.pipeline_bytes == pages * chunk_bytes + threads * extent, told
            if in_arenas:
                assert found.window_bytes == found.slots_bytes == 0, told
            elif has_switch:
                assert found.window_bytes >= 2 * extent, told
            else:
                assert found.window_bytes >= of_all, told
                assert found.slots_bytes >= world_size * extent, told
            if has_switch:
                assert found.slots_bytes == found.copies_bytes == 0, told
            else:
                assert found.copies_bytes >= 2 * extent, told


@every_kind
@every_memory
@pytest.mark.parametrize("world_size", [1, 2, 8, 64])
def test_the_default_extent_can_work(world_size: int, in_arenas: bool, has_switch: bool) -> None:
    """Goal: wherever single chunks have a plan, the extent that auto gives has one, with as many
    updates under way, up to three. Method: budgets from the least of each chunk on."""
    for chunk_bytes in (16 * KIB, 48 * KIB, MIB, 8 * MIB):
        kind: dict[str, Any] = {
            "world_size": world_size, "has_switch": has_switch, "in_arenas": in_arenas
        }  # fmt: skip
        for budget in budgets_from(least_budget(chunk_bytes=chunk_bytes, **kind), chunk_bytes):
            count = default_extent_chunks(budget, chunk_bytes, EXTENT_AUTO_BYTES_MAX, **kind)
            asked = {"budget_bytes": budget, "chunk_bytes": chunk_bytes, **kind}
            found, single = plan_node(extent_chunks=count, **asked), plan_node(**asked)
            assert count == 1 or count * chunk_bytes <= EXTENT_AUTO_BYTES_MAX
            assert found.updates_count >= min(single.updates_count, 3)
        most = max(1, EXTENT_AUTO_BYTES_MAX // chunk_bytes)
        assert count == 1 << most.bit_length() - 1  # where the budget is large


@every_kind
@every_memory
def test_a_budget_for_pages_has_room_for_them_with_the_extent_that_follows(
    in_arenas: bool, has_switch: bool
) -> None:
    """Goal: a budget that a refusal names leaves room for the state, whatever extent auto gives."""
    kind: dict[str, Any] = {"world_size": 2, "has_switch": has_switch, "in_arenas": in_arenas}
    for needed in (100 * KIB, MIB, 10 * MIB, 300 * MIB):
        chunk = 16 * KIB
        budget = budget_for_pages(
            lambda _, n=needed: n, budget_bytes=MIB, chunk_bytes=chunk, **kind
        )
        count = default_extent_chunks(budget, chunk, EXTENT_AUTO_BYTES_MAX, **kind)
        for extent_chunks in (1, count):
            found = plan_node(
                budget_bytes=budget, chunk_bytes=chunk, extent_chunks=extent_chunks, **kind
            )
            assert found.resident_bytes >= needed


def test_a_tree_takes_an_array_for_each_level() -> None:
    """I5. Goal: sums of switches that are made again are in the plan, for as many pages as a thread
    works on at once."""
    asked: dict[str, Any] = {
        "budget_bytes": 256 * MIB, "chunk_bytes": 64 * KIB, "world_size": 4, "has_switch": True,
        "extent_chunks": 16,
    }  # fmt: skip
    flat, tree = plan_node(**asked), plan_node(levels=2, **asked)
    assert flat.pages_together == tree.pages_together == 16
    assert tree.pipeline_bytes - flat.pipeline_bytes == 2 * 16 * 64 * KIB
    least = least_budget(**{k: v for k, v in asked.items() if k != "budget_bytes"})
    assert least_budget(levels=2, chunk_bytes=64 * KIB, world_size=4, has_switch=True,
                        extent_chunks=16) == least + 128 * KIB  # fmt: skip

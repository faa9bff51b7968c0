"""The estimate of a step that the cores play, and when floors answer instead."""

from __future__ import annotations

import dataclasses

import pytest

from luwu.estimate import played
from luwu.estimate.plan import Estimate, estimate
from luwu.estimate.played import machine_job
from luwu.estimate.shape import JobShape, kept_in_ram
from luwu.estimate.text import bound_text
from luwu.measure.floors import Floors
from luwu.measure.message_floors import MessageFloors
from luwu.predict.hardware.software import fitted
from tests.unit.test_estimate import DISK, FLOORS, P, job, plan
from tests.unit.test_predict_decisions import TWICE

MEASURED = dataclasses.replace(
    FLOORS, compute_s=0.2, messages=MessageFloors(end_s=5e-5, handed_s=2e-5)
)


def shm(**changes: object) -> JobShape:
    return job(**{"transport": "shm", "durability": "process", **changes})  # type: ignore[arg-type]


def seconds(shape: JobShape, floors: Floors = MEASURED) -> float:
    found = estimate(shape, plan(), floors)
    assert found.is_played
    assert found.step_seconds is not None
    return found.step_seconds


def floor_seconds(found: Estimate, name: str) -> float:
    value = next(floor.seconds for floor in found.floors if floor.name == name)
    assert value is not None
    return value


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_no_played_step_is_shorter_than_what_its_parts_take(transport: str) -> None:
    """Goal: compute, messages and copies share the cores; the disk works beside them."""
    found = estimate(shm(transport=transport), plan(), MEASURED)
    assert found.is_played
    assert found.step_seconds is not None
    assert found.step_seconds > (1 + fitted("crowding")) * 0.2, "compute, of all cores"
    slow = dataclasses.replace(MEASURED, disk=dataclasses.replace(DISK, mixed_bytes_per_s=5e7))
    bound = estimate(shm(transport=transport), plan(), slow)
    assert bound.binding == "disk"
    assert bound.step_seconds is not None
    assert bound.step_seconds > 24 * P / 5e7
    assert bound.document()["is_played"] is True
    assert "(predicted)" in bound_text(bound)


def test_a_played_step_has_lanes() -> None:
    """Goal: the picture of what is predicted is as long as the step, its compute takes the time
    that it was given, forward a third, and the disk is busy where it binds."""
    slow = dataclasses.replace(MEASURED, disk=dataclasses.replace(DISK, mixed_bytes_per_s=5e7))
    for floors, limit in ((MEASURED, "compute"), (slow, "disk")):
        found = estimate(shm(), plan(), floors)
        lanes = found.lanes
        assert lanes is not None
        assert lanes.length_s == found.step_seconds
        assert lanes.limit == limit
        by_engine = {lane.engine: lane for lane in lanes.lanes}
        computed = [(p.end_s - p.start_s, p.is_pale) for p in by_engine["compute"].pieces]
        assert sum(length for length, _ in computed) >= 0.2
        pale = sum(length for length, is_pale in computed if is_pale)
        assert 0.2 < pale / sum(length for length, _ in computed) < 0.5
        assert all(by_engine[name].pieces for name in ("push", "sum", "update", "write"))
        assert all(0 <= lane.busy_ratio <= 1 for lane in lanes.lanes)
    assert estimate(shm(update="at_step"), plan(), MEASURED).lanes is None


def test_what_the_switch_caches_makes_a_step_shorter_where_the_disk_binds() -> None:
    """Goal: pulls that need not be read are no time of the disk."""
    slow = dataclasses.replace(MEASURED, disk=dataclasses.replace(DISK, pull_bytes_per_s=5e6))
    assert seconds(shm(cache_bytes=4 * P), slow) < 0.7 * seconds(shm(), slow)


def test_weights_that_are_used_where_the_switch_caches_them_cost_no_copies() -> None:
    """Goal: a cache with room for two steps' weights saves the workers' copies; with room for one,
    or over sockets, they are copied as before."""
    slow = dataclasses.replace(MEASURED, copy_bytes_per_s=2e8)
    two, one = (shm(cache_bytes=count * 4 * P + 8 * 4096) for count in (2, 1))
    sockets = shm(cache_bytes=9 * P, transport="ipc")
    found = [kept_in_ram(each, plan(), each.store) for each in (two, one, sockets)]
    assert [each.cached_in_place for each in found] == [True, False, False]
    assert machine_job(two, plan(), found[0]).caches_in_place
    assert not machine_job(two, plan(), found[0], nodes=2).caches_in_place, "chunks take turns"
    assert seconds(two, slow) < 0.9 * seconds(one, slow)


def test_flushes_are_time_of_the_disk() -> None:
    """Goal: a decided step that survives power loss takes three."""
    slow = dataclasses.replace(MEASURED, disk=dataclasses.replace(DISK, flush_s=1.0))
    flushed, own = seconds(shm(durability="step"), slow), seconds(shm(), slow)
    assert 3 <= flushed <= (1 + fitted("crowding")) * 3 + own
    assert seconds(shm(), slow) == seconds(shm())


def test_a_decision_of_a_core_changes_the_estimate() -> None:
    """Goal: who says what to whom is not stated here. Method: a switch that acknowledges twice."""
    shape = shm()
    kept = kept_in_ram(shape, plan(), shape.store)
    costly = dataclasses.replace(MEASURED, messages=MessageFloors(end_s=2e-3, handed_s=0.0))
    own, twice = (
        played.played_step(shape, plan(), kept, costly, 0.2, *cores) for cores in ((), (TWICE,))
    )
    assert own is not None
    assert twice is not None
    assert twice.work_s["messages"] > 1.1 * own.work_s["messages"]
    assert twice.step_s > own.step_s


@pytest.mark.parametrize(
    ("changes", "floors"),
    [
        ({"update": "at_step"}, MEASURED),
        ({"has_switch": False}, MEASURED),
        ({}, dataclasses.replace(MEASURED, messages=None)),
        ({}, dataclasses.replace(MEASURED, copy_bytes_per_s=None)),
        ({}, dataclasses.replace(MEASURED, compute_s=None, matmul_flops_per_s=None)),
    ],
)
def test_what_is_not_played_floors_answer(changes: dict[str, object], floors: Floors) -> None:
    """Goal: and the text says so."""
    found = estimate(shm(**changes), plan(), floors)
    assert not found.is_played
    assert found.step_seconds is not None
    assert "(predicted by floors alone)" in bound_text(found)
    assert floor_seconds(found, "disk") > 0


def test_a_job_of_many_extents_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a run begins within seconds."""
    shape = shm()
    monkeypatch.setattr(played, "EXTENTS_MAX", 2 * len(shape.layout.extents) - 1)
    assert not estimate(shape, plan(), MEASURED).is_played

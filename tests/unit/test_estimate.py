"""The estimate: bytes by hand, phases by hand, refusals, and that measuring leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.estimate.outcome import bound_by, busy_seconds, error_ratio, outcome
from luwu.estimate.plan import Estimate, estimate
from luwu.estimate.shape import JobShape
from luwu.estimate.steps import steps_lines
from luwu.estimate.text import estimate_text, short_lines
from luwu.measure.disk_floors import DiskFloors, disk_floors
from luwu.measure.floors import Floors, measure_floors
from luwu.measure.gpt_floor import gpt_seconds
from luwu.measure.timing import Samples, taking_turns
from luwu.wire.description import Description
from switch_emu.node.pages import store_config
from switch_emu.node.plan import NodePlan, plan_node
from tests.unit.test_timeline import clock, span, write
from tests.unit.unit_layouts import layout_of_units
from workers.gpt import GPTConfig

KIB, MIB, GIB = 1024, 1024**2, 1024**3
CHUNK = 64 * KIB
ELEMS = CHUNK // 4
UNITS = 4
P = UNITS * 8 * ELEMS
"""Parameters: four units of eight whole chunks."""

DISK = DiskFloors(
    read_bytes_per_s=1e9, write_bytes_per_s=5e8, mixed_bytes_per_s=8e8, pull_bytes_per_s=4e8,
    flush_s=0.001, page_cpu_s=0.0, pull_cpu_s=0.0, requests_count=4,
    request_bytes=3 * CHUNK, pulls_count=2, pull_request_bytes=CHUNK, file_bytes=GIB,
    reason="by hand", total_bytes=10**12, free_bytes=10**12,
)  # fmt: skip
FLOORS = Floors(
    cores_count=2, copy_bytes_per_s=1e10, disk=DISK, update_parameters_per_s=1e9,
    update_kernel="compiled", matmul_flops_per_s=1e11, socket_bytes_per_s=1e9,
)  # fmt: skip


def job(*, cache_bytes: int = 0, **changes: object) -> JobShape:
    """A job, whose switch caches so many bytes of weights."""
    values: dict[str, object] = {
        "layout": layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK),
        "workers": 2,
        "transport": "ipc",
        "tokens_per_step": 64,
    }
    shape = JobShape(**{**values, **changes})  # type: ignore[arg-type]
    return dataclasses.replace(
        shape, switch=dataclasses.replace(shape.switch_plan, cache_bytes=cache_bytes)
    )


def floor_seconds(found: Estimate, name: str) -> float | None:
    return next(floor.seconds for floor in found.floors if floor.name == name)


def plan(*, resident_bytes: int = 0, sums_bytes: int = 1 << 40) -> NodePlan:
    found = plan_node(budget_bytes=GIB, chunk_bytes=CHUNK, world_size=2, has_switch=True)
    return dataclasses.replace(found, resident_bytes=resident_bytes, sums_bytes=sums_bytes)


def use(found: Estimate, name: str) -> tuple[float, float]:
    """Bytes a parameter, read and written."""
    each = next(each for each in found.disk if each.name == name)
    return each.read_bytes / P, each.written_bytes / P


def test_out_of_core_reads_and_writes_12_bytes_a_parameter() -> None:
    """Nothing is resident: all of a record is read and written, and weights again by each pull."""
    found = estimate(job(prefetch_units=0), plan(), FLOORS)
    assert use(found, "updates") == (12, 12)
    assert use(found, "pulls for forward") == (4, 0)
    assert use(found, "pulls for backward") == (4, 0)
    assert use(found, "spilled sums") == (0, 0)
    assert found.disk_read_bytes == 20 * P
    assert 12 * P < found.disk_written_bytes < 12 * P + 64 * KIB  # the manifest
    assert 24 * P < sum(found.disk_space_bytes.values()) < 24 * P + 2 * MIB


def test_without_resharding_weights_are_pulled_once() -> None:
    found = estimate(job(prefetch_units=0, reshard_after_forward=False), plan(), FLOORS)
    assert use(found, "pulls for forward") == (4, 0)
    assert use(found, "pulls for backward") == (0, 0)
    assert {each.role: (each.into_bytes, each.out_of_bytes) for each in found.links} == {
        "worker": (4 * P, 4 * P),
        "switch": (3 * 4 * P, 3 * 4 * P),
        "node": (4 * P, 4 * P),
    }


def test_what_is_asked_for_ahead_is_handed_out_by_the_update() -> None:
    """A streaming step whose updates are late: its first units come without a read."""
    found = estimate(job(prefetch_units=2), plan(), FLOORS)
    assert use(found, "pulls for forward") == (2, 0)


def test_resident_pages_are_written_and_never_read() -> None:
    found = estimate(job(), plan(resident_bytes=GIB), FLOORS)
    assert found.resident_pages_ratio == 1
    assert use(found, "updates") == (0, 12)
    assert found.disk_read_bytes == 0
    half = estimate(job(prefetch_units=0), plan(resident_bytes=16 * (12 * ELEMS + 64)), FLOORS)
    assert half.resident_pages_ratio == 0.5
    assert use(half, "updates") == (6, 12)
    assert use(half, "pulls for backward") == (2, 0)


def test_weights_that_the_switch_caches_are_read_once() -> None:
    """Goal: of what is cached only updates read, and it leaves the node once. Method: by hand; all
    of the weights, then half of them: the last two units, beside pages of the first that stay."""
    every = estimate(job(cache_bytes=4 * P, prefetch_units=0), plan(), FLOORS)
    assert every.cached_ratio == 1
    assert use(every, "updates") == (12, 12)
    assert use(every, "pulls for forward") == use(every, "pulls for backward") == (0, 0)
    assert {each.role: (each.into_bytes, each.out_of_bytes) for each in every.links} == {
        "worker": (8 * P, 4 * P),
        "switch": (2 * 4 * P + 4 * P, 4 * P + 2 * 8 * P),
        "node": (4 * P, 4 * P),
    }
    shape = job(cache_bytes=2 * P, prefetch_units=0)
    half = estimate(shape, plan(resident_bytes=8 * (12 * ELEMS + 64)), FLOORS)
    assert half.cached_ratio == 0.5
    assert use(half, "pulls for forward") == (1, 0), "the second unit alone"
    assert use(half, "pulls for backward") == (1, 0)
    assert "weights are sent, 50% by the switch alone" in estimate_text(half, shape, plan(), FLOORS)
    shared = job(cache_bytes=4 * P, transport="shm")
    in_place = estimate(shared, plan(resident_bytes=16 * P), FLOORS)
    assert in_place.weights_in_place
    assert in_place.cached_ratio == 0


def test_a_state_in_ram_has_no_disk() -> None:
    floors = dataclasses.replace(FLOORS, disk=None)
    shape = job(is_in_ram=True, durability="none", transport="shm")
    found = estimate(shape, plan(resident_bytes=GIB), floors)
    assert (found.disk_read_bytes, found.disk_written_bytes) == (0, 0)
    assert found.disk_space_bytes == {}
    assert found.endurance_days is None
    assert floor_seconds(found, "disk") == 0


def test_weights_in_shared_memory_are_not_read_from_disk() -> None:
    """Two places of 4 bytes fit half of what pages may take: the tier gets the other half."""
    found = estimate(job(transport="shm"), plan(resident_bytes=16 * P), FLOORS)
    assert found.weights_in_place
    assert found.resident_pages_ratio < 1
    assert use(found, "updates")[0] > 0
    assert use(found, "pulls for forward") == use(found, "pulls for backward") == (0, 0)
    assert next(each.into_bytes for each in found.links if each.role == "worker") == 4 * P


def test_sums_beyond_the_plan_are_spilled() -> None:
    """`at_step`: each sum of 4 bytes a parameter waits; in shared memory too."""
    for transport in ("ipc", "shm"):
        shape = job(update="at_step", transport=transport)
        found = estimate(shape, plan(sums_bytes=P), FLOORS)
        assert use(found, "spilled sums") == (3, 3)
        assert use(found, "pulls for forward") == (0, 0)  # handed out: the disk is slower
        assert found.disk_space_bytes["spilled sums"] == 4 * P
    streaming = estimate(job(transport="shm"), plan(sums_bytes=P), FLOORS)
    assert use(streaming, "spilled sums") == (0, 0)


def test_bfloat16_halves_links_not_the_store() -> None:
    layout = layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK, dtype="bfloat16")
    found = estimate(job(layout=layout, prefetch_units=0), plan(), FLOORS)
    assert use(found, "updates") == (12, 12)
    worker = next(each for each in found.links if each.role == "worker")
    assert (worker.into_bytes, worker.out_of_bytes) == (4 * P, 2 * P)


def test_a_frozen_unit_is_pulled_and_never_updated() -> None:
    layout = layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK, frozen_units=[3])
    found = estimate(job(layout=layout, prefetch_units=0), plan(), FLOORS)
    assert use(found, "updates") == (9, 9)
    assert use(found, "pulls for forward") == (4, 0)


def test_the_step_of_a_disk_that_binds() -> None:
    """Goal: forward reads, then backward reads and updates, each beside its compute.
    Method: by hand; 24 B a parameter at the mixed rate, 8 at that of pulls, and the manifest."""
    found = estimate(job(prefetch_units=0, durability="process"), plan(), FLOORS)
    manifest = next(each.written_bytes for each in found.disk if each.name == "manifest")
    seconds = 24 * P / 8e8 + 8 * P / 4e8 + manifest / 5e8
    assert floor_seconds(found, "disk") == pytest.approx(seconds)
    assert floor_seconds(found, "exchange") == pytest.approx((3 + 1) * 4 * P * 2 * 1e-9, rel=0.3)
    assert floor_seconds(found, "update") == pytest.approx(P / 1e9)
    assert floor_seconds(found, "compute") == pytest.approx(6 * P * 64 / 1e11)
    assert floor_seconds(found, "flush") == 0
    assert found.binding == "disk"
    assert found.step_seconds == pytest.approx(seconds)
    assert found.written_bytes_per_day is not None
    assert found.endurance_days == pytest.approx(600e12 / found.written_bytes_per_day)


def test_a_step_that_computes_is_bound_by_it() -> None:
    floors = dataclasses.replace(FLOORS, matmul_flops_per_s=1e7)
    found = estimate(job(), plan(), floors)
    assert found.binding == "compute"
    assert found.step_seconds is not None
    assert found.step_seconds >= 6 * P * 64 / 1e7


def test_reads_wait_for_copies_where_few_weights_may_be_on_their_way() -> None:
    """Goal: the forward of a job in shared memory reads, then copies; else it does both at once.
    Method: by hand; 4 B a parameter are read at the rate of pulls, and each of two workers reads
    and writes them once more at the copy rate."""
    shape = job(transport="shm", durability="process", prefetch_units=0)
    slow = dataclasses.replace(FLOORS, copy_bytes_per_s=16e8)
    few = estimate(shape, dataclasses.replace(plan(), outgoing_bytes=2 * CHUNK), slow)
    many = estimate(shape, dataclasses.replace(plan(), outgoing_bytes=8 * CHUNK), slow)
    copies = 2 * 2 * 4 * P / 16e8
    passes = (12 * 2 + 28) * P / 16e8
    assert floor_seconds(few, "exchange") == pytest.approx(passes + 2 * copies)
    assert few.step_seconds is not None
    assert many.step_seconds is not None
    compute = 6 * P * 64 / 1e11 / 3
    together = max(4 * P / 4e8, copies + compute)
    assert few.step_seconds - many.step_seconds == pytest.approx(4 * P / 4e8 + copies - together)


def test_a_measured_model_counts_for_more_than_its_products() -> None:
    found = estimate(job(), plan(), dataclasses.replace(FLOORS, compute_s=7.0))
    assert floor_seconds(found, "compute") == 7.0
    assert found.binding == "compute"
    assert next(each.label for each in found.floors if each.name == "compute") == "measured"


def test_flushes_hide_behind_a_forward_that_is_longer() -> None:
    slow = dataclasses.replace(DISK, flush_s=10.0)
    found = estimate(job(), plan(), dataclasses.replace(FLOORS, disk=slow))
    assert found.binding == "flush"
    assert found.step_seconds is not None
    assert 30 <= found.step_seconds < 31
    none = estimate(
        job(durability="process"), plan(), dataclasses.replace(FLOORS, disk=slow)
    )  # fmt: skip
    assert none.step_seconds is not None
    assert none.step_seconds < 1


def test_nothing_measured_is_no_step_time() -> None:
    found = estimate(job(), plan(), Floors(cores_count=2))
    assert found.step_seconds is found.binding is found.written_bytes_per_day is None
    assert short_lines(found)


def test_what_does_not_fit_is_refused_with_the_number_that_would() -> None:
    small = plan_node(budget_bytes=4 * MIB, chunk_bytes=CHUNK, world_size=2, has_switch=True)
    shape = job(is_in_ram=True, durability="none")
    with pytest.raises(ConfigError, match="two sides of the state") as caught:
        estimate(shape, small, FLOORS)
    enough = re.search(r"give (\d+)KiB", str(caught.value))
    assert enough is not None
    larger = plan_node(
        budget_bytes=int(enough[1]) * KIB, chunk_bytes=CHUNK, world_size=2, has_switch=True
    )
    estimate(shape, larger, FLOORS)
    full = dataclasses.replace(DISK, free_bytes=P)
    with pytest.raises(ConfigError, match="are free; name a directory"):
        estimate(job(), plan(), dataclasses.replace(FLOORS, disk=full))


def test_a_document_is_json_and_labelled() -> None:
    document = estimate(job(), plan(), FLOORS).document()
    json.dumps(document, allow_nan=False)
    assert document["label"] == "predicted"
    assert all(row["label"] in ("measured", "assumed") for row in document["floors"])
    assert document["disk_uses"][0]["written_bytes_per_parameter"] == 12
    assert document["endurance"]["label"] == "assumed"


def test_the_job_is_stored_as_the_node_stores_it() -> None:
    shape = job()
    described = Description(layout=shape.layout, optimizer="adamw", state_fields=("m", "v"))
    assert shape.store.state_bytes == store_config(described).state_bytes == 12 * P + 32 * 64


# ---------------------------------------------------------------------- what was measured


def test_floors_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    """Every floor of a tiny sample is a positive number; the temporary file is gone."""
    found = measure_floors(
        directory=tmp_path / "not" / "yet", page_bytes=12 * KIB, page_elems=1024,
        threads_count=2, pulls_count=1, workers_count=2, dtype="bfloat16", transport="tcp",
        samples=Samples(copy_bytes=MIB, disk_bytes=MIB, seconds=0.0),
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert found.disk is not None
    rates = [
        value
        for each in (found, found.disk)
        for name in (field.name for field in dataclasses.fields(each))
        if name.endswith("_per_s") and (value := getattr(each, name)) is not None
    ]
    assert len(rates) >= 6
    assert min(rates) > 0
    assert found.disk.file_bytes <= MIB
    assert (found.disk.pulls_count, found.disk.pull_request_bytes) == (1, 4 * KIB)
    assert found.update_kernel in ("compiled", "portable")
    json.dumps(found.document(), allow_nan=False)


def test_pages_that_one_request_takes_are_measured_so(tmp_path: Path) -> None:
    """Goal: requests are as long as those of the job; pulls are of one page, and so is the CPU."""
    asked: Any = {
        "page_bytes": 12 * KIB, "threads_count": 1, "pulls_count": 1,
        "samples": Samples(copy_bytes=MIB, disk_bytes=MIB, seconds=0.0),
    }  # fmt: skip
    found = disk_floors(tmp_path, pages_together=8, **asked)
    assert found is not None
    assert (found.request_bytes, found.pull_request_bytes) == (96 * KIB, 4 * KIB)


def test_a_pull_is_no_longer_than_the_file(tmp_path: Path) -> None:
    """A page of which a third is longer than the file that three threads divide in whole blocks."""
    samples = Samples(copy_bytes=MIB, disk_bytes=MIB, seconds=0.0)
    found = disk_floors(
        tmp_path, page_bytes=48 * MIB, threads_count=3, pulls_count=2, samples=samples
    )
    assert found is not None
    assert found.pull_request_bytes == found.file_bytes < MIB


def test_a_disk_without_room_is_not_measured(tmp_path: Path) -> None:
    samples = Samples(copy_bytes=MIB, disk_bytes=1 << 60, seconds=0.0)
    assert disk_floors(tmp_path, page_bytes=MIB, threads_count=1, pulls_count=1,
                       samples=samples) is None  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_small_models_are_measured_and_large_ones_are_not() -> None:
    """Twice the layers or samples take longer; a block of width 2048 would take a GiB."""
    samples = Samples(copy_bytes=MIB, disk_bytes=MIB, seconds=0.0)
    small = GPTConfig(layers=2, width=32, heads=1, context=8)
    counts = {"workers": 2, "threads": 1, "cores": 2, "samples": samples}
    few = min(gpt_seconds(small, batch=1, **counts) for _ in range(3))  # type: ignore[arg-type,type-var]
    many = gpt_seconds(small, batch=128 * 16, **counts)  # type: ignore[arg-type]
    assert many is not None
    assert 0 < few < many
    large = dataclasses.replace(small, width=2048)
    assert gpt_seconds(large, batch=1, **counts) is None  # type: ignore[arg-type]


def test_what_takes_turns_has_its_mean() -> None:
    """Goal: at least two rounds, each thing once a round, in order."""
    done: list[str] = []
    works = [lambda: done.append("a"), lambda: done.append("b")]
    assert len(taking_turns(works, 0.0)) == 2
    assert done == ["a", "b"] * 2


# ---------------------------------------------------------------------- after a run


def test_busy_is_the_time_with_a_span_under_way(tmp_path: Path) -> None:
    """Reads and writes that overlap count once; waits of the slowest worker are no compute."""
    write(
        tmp_path,
        node=[
            clock(),
            span("read", 0, 100, step=0, chunk=0),
            span("write", 50, 150, step=0, chunk=1),
            span("update", 100, 110, step=0, chunk=0),
            span("prepare", 150, 170, step=0),
        ],
        worker_0=[
            clock(),
            span("forward", 0, 100, step=0, unit="a"),
            span("pull_wait", 0, 70, step=0, unit="a"),
        ],
        worker_1=[clock(), span("forward", 0, 40, step=0, unit="a")],
    )
    found = busy_seconds(tmp_path, 2)
    assert found is not None
    ns = {name: round(value * 2 * 1e9) for name, value in found.items()}
    assert ns == {"disk": 150, "update": 10, "flush": 20, "exchange": 0, "compute": 40}
    assert busy_seconds(tmp_path / "nowhere", 2) is None


def test_the_outcome_names_what_did_bind() -> None:
    busy = {"disk": 0.8, "compute": 0.3}
    planned = {"step_seconds": 0.75}
    said = outcome(planned, step_seconds=1.0, busy=busy, disk_bytes={"read": 1, "written": 1})
    assert (said["plan_error_ratio"], said["bound_by"]) == (0.25, "disk")
    in_ram = outcome(planned, step_seconds=0.5, busy=busy, disk_bytes={"read": 0, "written": 0})
    assert (in_ram["plan_error_ratio"], in_ram["bound_by"]) == (0.5, "compute")
    assert "disk" not in in_ram["busy_seconds"]
    assert bound_by(busy, 10.0) == "waiting"
    assert error_ratio(1.0, None) is None
    none = outcome(None, step_seconds=1.0, busy=None, disk_bytes=None)
    assert set(none.values()) == {None}


# ---------------------------------------------------------------------- the command


def test_the_command_prints_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--layers", "2", "--width", "64", "--memory-budget", "1MiB"]
    assert main(["estimate", *small, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    planned = found["estimate"]
    assert planned["parameters"] == 136_960
    assert found["chunk_bytes"] == 32 * KIB
    assert planned["binding"] in {row["name"] for row in planned["floors"]}
    assert planned["disk_uses"][0]["written_bytes_per_parameter"] == pytest.approx(12, rel=0.05)
    assert list(tmp_path.iterdir()) == []  # it plans, and leaves nothing


def test_the_command_prints_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--layers", "1", "--width", "32"]
    assert main(["estimate", *small, "--transport", "ipc", "--no-switch"]) == 0
    text = capsys.readouterr().out
    for said in ("bound by", "a parameter", "assumed", "measured", "predicted", "cores here"):
        assert said in text


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("--memory-budget 1KiB", "give at least"),
        ("--durability none --memory-budget 2MiB", "two sides of the state"),
        ("--nonsense", "no flag --nonsense"),
        ("--json /no/such/directory/x", "no directory"),
    ],
)
def test_the_command_refuses_what_cannot_work(
    tokens: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *tokens.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.feature("the accuracy of the disk prediction")
@pytest.mark.parametrize(("ratio", "lines_count"), [(0.1, 3), (0.92, 4), (None, 3)])
def test_what_of_a_prediction_may_be_believed(ratio: float | None, lines_count: int) -> None:
    """Goal: a prediction that is far off comes with the number to believe, and why."""
    document = {
        "step_seconds": [1.0], "step_seconds_median": 1.0, "busy_seconds": {"disk": 0.5},
        "bound_by": "disk", "disk_seconds_predicted": 0.04, "disk_error_ratio": ratio,
    }  # fmt: skip
    lines = steps_lines(document)
    assert len(lines) == lines_count, lines
    assert ("believe the" in lines[-1]) is (lines_count == 4)

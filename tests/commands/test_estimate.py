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
from luwu.estimate.disk import DiskRates, Samples, disk_rates, taking_turns
from luwu.estimate.outcome import bound_by, busy_seconds, outcome
from luwu.estimate.plan import Estimate, estimate
from luwu.estimate.shape import JobShape
from luwu.estimate.text import disk_text, estimate_text, short_lines
from luwu.wire.description import Description
from switch_emu.node.pages import store_config
from switch_emu.node.plan import NodePlan, plan_node
from tests.helpers.unit_layouts import layout_of_units
from tests.report.test_timeline import clock, span, write

KIB, MIB, GIB = 1024, 1024**2, 1024**3
CHUNK = 64 * KIB
ELEMS = CHUNK // 4
UNITS = 4
P = UNITS * 8 * ELEMS
"""Parameters: four units of eight whole chunks."""

DISK = DiskRates(
    read_bytes_per_s=1e9, write_bytes_per_s=5e8, mixed_bytes_per_s=8e8, pull_bytes_per_s=4e8,
    flush_s=0.001, requests_count=4, request_bytes=3 * CHUNK, pulls_count=2,
    pull_request_bytes=CHUNK, file_bytes=GIB, reason="by hand", free_bytes=10**12,
)  # fmt: skip


def job(*, cache_bytes: int = 0, **changes: object) -> JobShape:
    """A job, whose switch caches so many bytes of weights."""
    values: dict[str, object] = {
        "layout": layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK),
        "workers": 2,
        "transport": "ipc",
    }
    shape = JobShape(**{**values, **changes})  # type: ignore[arg-type]
    return dataclasses.replace(
        shape, switch=dataclasses.replace(shape.switch_plan, cache_bytes=cache_bytes)
    )


def plan(*, resident_bytes: int = 0, sums_bytes: int = 1 << 40) -> NodePlan:
    found = plan_node(budget_bytes=GIB, chunk_bytes=CHUNK, world_size=2, has_switch=True)
    return dataclasses.replace(found, resident_bytes=resident_bytes, sums_bytes=sums_bytes)


def use(found: Estimate, name: str) -> tuple[float, float]:
    """Bytes a parameter, read and written."""
    each = next(each for each in found.disk if each.name == name)
    return each.read_bytes / P, each.written_bytes / P


def test_out_of_core_reads_and_writes_12_bytes_a_parameter() -> None:
    """Nothing is resident: all of a record is read and written, and weights again by each pull."""
    found = estimate(job(prefetch_units=0), plan(), DISK)
    assert use(found, "updates") == (12, 12)
    assert use(found, "pulls for forward") == (4, 0)
    assert use(found, "pulls for backward") == (4, 0)
    assert use(found, "spilled sums") == (0, 0)
    assert found.disk_read_bytes == 20 * P
    assert 12 * P < found.disk_written_bytes < 12 * P + 64 * KIB  # the manifest
    assert 24 * P < sum(found.disk_space_bytes.values()) < 24 * P + 2 * MIB


def test_without_resharding_weights_are_pulled_once() -> None:
    found = estimate(job(prefetch_units=0, stays=frozenset(range(UNITS))), plan(), DISK)
    assert use(found, "pulls for forward") == (4, 0)
    assert use(found, "pulls for backward") == (0, 0)
    assert {each.role: (each.into_bytes, each.out_of_bytes) for each in found.links} == {
        "worker": (4 * P, 4 * P),
        "switch": (3 * 4 * P, 3 * 4 * P),
        "node": (4 * P, 4 * P),
    }


def test_what_is_asked_for_ahead_is_handed_out_by_the_update() -> None:
    """A streaming step whose updates are late: its first units come without a read."""
    found = estimate(job(prefetch_units=2), plan(), DISK)
    assert use(found, "pulls for forward") == (2, 0)


def test_resident_pages_are_written_and_never_read() -> None:
    found = estimate(job(), plan(resident_bytes=GIB), DISK)
    assert found.resident_pages_ratio == 1
    assert use(found, "updates") == (0, 12)
    assert found.disk_read_bytes == 0
    half = estimate(job(prefetch_units=0), plan(resident_bytes=16 * (12 * ELEMS + 64)), DISK)
    assert half.resident_pages_ratio == 0.5
    assert use(half, "updates") == (6, 12)
    assert use(half, "pulls for backward") == (2, 0)


def test_weights_that_the_switch_caches_are_read_once() -> None:
    """Goal: of what is cached only updates read, and it leaves the node once. Method: by hand; all
    of the weights, then half of them: the last two units, beside pages of the first that stay."""
    every = estimate(job(cache_bytes=4 * P, prefetch_units=0), plan(), DISK)
    assert every.cached_ratio == 1
    assert use(every, "updates") == (12, 12)
    assert use(every, "pulls for forward") == use(every, "pulls for backward") == (0, 0)
    assert {each.role: (each.into_bytes, each.out_of_bytes) for each in every.links} == {
        "worker": (8 * P, 4 * P),
        "switch": (2 * 4 * P + 4 * P, 4 * P + 2 * 8 * P),
        "node": (4 * P, 4 * P),
    }
    shape = job(cache_bytes=2 * P, prefetch_units=0)
    half = estimate(shape, plan(resident_bytes=8 * (12 * ELEMS + 64)), DISK)
    assert half.cached_ratio == 0.5
    assert use(half, "pulls for forward") == (1, 0), "the second unit alone"
    assert use(half, "pulls for backward") == (1, 0)
    assert "weights are sent, 50% by the switch alone" in estimate_text(half, shape, plan(), DISK)
    shared = job(cache_bytes=4 * P, transport="shm")
    in_place = estimate(shared, plan(resident_bytes=16 * P), DISK)
    assert in_place.weights_in_place
    assert in_place.cached_ratio == 0


def test_a_state_in_ram_has_no_disk() -> None:
    shape = job(is_in_ram=True, durability="none", transport="shm")
    found = estimate(shape, plan(resident_bytes=GIB))
    assert (found.disk_read_bytes, found.disk_written_bytes) == (0, 0)
    assert found.disk_space_bytes == {}
    assert found.disk_s == 0
    assert disk_text(found) == "a step waits for no disk"


def test_weights_in_shared_memory_are_not_read_from_disk() -> None:
    """Two places of 4 bytes fit half of what pages may take: the tier gets the other half."""
    found = estimate(job(transport="shm"), plan(resident_bytes=16 * P), DISK)
    assert found.weights_in_place
    assert found.resident_pages_ratio < 1
    assert use(found, "updates")[0] > 0
    assert use(found, "pulls for forward") == use(found, "pulls for backward") == (0, 0)
    assert next(each.into_bytes for each in found.links if each.role == "worker") == 4 * P


def test_sums_beyond_the_plan_are_spilled() -> None:
    """`at_step`: each sum of 4 bytes a parameter waits; in shared memory too."""
    for transport in ("ipc", "shm"):
        shape = job(update="at_step", transport=transport)
        found = estimate(shape, plan(sums_bytes=P), DISK)
        assert use(found, "spilled sums") == (3, 3)
        assert use(found, "pulls for forward") == (0, 0)  # handed out: the disk is slower
        assert found.disk_space_bytes["spilled sums"] == 4 * P
    streaming = estimate(job(transport="shm"), plan(sums_bytes=P), DISK)
    assert use(streaming, "spilled sums") == (0, 0)


def test_bfloat16_halves_links_not_the_store() -> None:
    layout = layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK, dtype="bfloat16")
    found = estimate(job(layout=layout, prefetch_units=0), plan(), DISK)
    assert use(found, "updates") == (12, 12)
    worker = next(each for each in found.links if each.role == "worker")
    assert (worker.into_bytes, worker.out_of_bytes) == (4 * P, 2 * P)


def test_a_frozen_unit_is_pulled_and_never_updated() -> None:
    layout = layout_of_units([8 * ELEMS] * UNITS, chunk_bytes=CHUNK, frozen_units=[3])
    found = estimate(job(layout=layout, prefetch_units=0), plan(), DISK)
    assert use(found, "updates") == (9, 9)
    assert use(found, "pulls for forward") == (4, 0)


def test_the_least_time_of_a_step_is_that_of_its_disk() -> None:
    """Goal: by hand; 24 B a parameter at the mixed rate, 8 at that of pulls, and the manifest; with
    `--durability step` three flushes at least; a disk that was not measured has no time."""
    shape = job(prefetch_units=0, durability="process")
    found = estimate(shape, plan(), DISK)
    manifest = next(each.written_bytes for each in found.disk if each.name == "manifest")
    assert found.disk_s == pytest.approx(24 * P / 8e8 + 8 * P / 4e8 + manifest / 5e8)
    assert disk_text(found).startswith("a step takes at least ")
    slow = dataclasses.replace(DISK, flush_s=10.0)
    assert estimate(shape, plan(), slow).disk_s == found.disk_s
    assert estimate(job(prefetch_units=0), plan(), slow).disk_s == 30.0
    unknown = estimate(shape, plan())
    assert unknown.disk_s is None
    assert "not measured" in short_lines(unknown)[-1]


def test_what_does_not_fit_is_refused_with_the_number_that_would() -> None:
    small = plan_node(budget_bytes=4 * MIB, chunk_bytes=CHUNK, world_size=2, has_switch=True)
    shape = job(is_in_ram=True, durability="none")
    with pytest.raises(ConfigError, match="two sides of the state") as caught:
        estimate(shape, small, DISK)
    enough = re.search(r"give (\d+)KiB", str(caught.value))
    assert enough is not None
    larger = plan_node(
        budget_bytes=int(enough[1]) * KIB, chunk_bytes=CHUNK, world_size=2, has_switch=True
    )
    estimate(shape, larger, DISK)
    full = dataclasses.replace(DISK, free_bytes=P)
    with pytest.raises(ConfigError, match="are free; name a directory"):
        estimate(job(), plan(), full)


def test_a_document_is_json_and_labelled() -> None:
    document = estimate(job(), plan(), DISK).document()
    json.dumps(document, allow_nan=False)
    assert document["label"] == "predicted"
    assert document["disk_uses"][0]["written_bytes_per_parameter"] == 12


def test_the_job_is_stored_as_the_node_stores_it() -> None:
    shape = job()
    described = Description(layout=shape.layout, optimizer="adamw", state_fields=("m", "v"))
    assert shape.store.state_bytes == store_config(described).state_bytes == 12 * P + 32 * 64


# ---------------------------------------------------------------------- what was measured


def test_the_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    """Every rate of a tiny sample is a positive number; the temporary file is gone."""
    found = disk_rates(
        tmp_path / "not" / "yet", page_bytes=12 * KIB, threads_count=2, pulls_count=1,
        samples=Samples(disk_bytes=MIB, seconds=0.0),
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert found is not None
    names = [field.name for field in dataclasses.fields(found)]
    rates = [getattr(found, name) for name in names if name.endswith("_per_s")]
    assert len(rates) == 4
    assert min(rates) > 0
    assert found.file_bytes <= MIB
    assert (found.pulls_count, found.pull_request_bytes) == (1, 4 * KIB)
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_pages_that_one_request_takes_are_measured_so(tmp_path: Path) -> None:
    """Goal: requests are as long as those of the job; pulls are of one page, and so is the CPU."""
    asked: Any = {
        "page_bytes": 12 * KIB, "threads_count": 1, "pulls_count": 1,
        "samples": Samples(disk_bytes=MIB, seconds=0.0),
    }  # fmt: skip
    found = disk_rates(tmp_path, pages_together=8, **asked)
    assert found is not None
    assert (found.request_bytes, found.pull_request_bytes) == (96 * KIB, 4 * KIB)


def test_a_pull_is_no_longer_than_the_file(tmp_path: Path) -> None:
    """A page of which a third is longer than the file that three threads divide in whole blocks."""
    samples = Samples(disk_bytes=MIB, seconds=0.0)
    found = disk_rates(
        tmp_path, page_bytes=48 * MIB, threads_count=3, pulls_count=2, samples=samples
    )
    assert found is not None
    assert found.pull_request_bytes == found.file_bytes < MIB


def test_a_disk_without_room_is_not_measured(tmp_path: Path) -> None:
    samples = Samples(disk_bytes=1 << 60, seconds=0.0)
    assert disk_rates(tmp_path, page_bytes=MIB, threads_count=1, pulls_count=1,
                       samples=samples) is None  # fmt: skip
    assert list(tmp_path.iterdir()) == []


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
    said = outcome(step_seconds=1.0, busy=busy, disk_bytes={"read": 1, "written": 1})
    assert said == {"busy_seconds": busy, "bound_by": "disk"}
    in_ram = outcome(step_seconds=0.5, busy=busy, disk_bytes={"read": 0, "written": 0})
    assert in_ram == {"busy_seconds": {"compute": 0.3}, "bound_by": "compute"}
    assert bound_by(busy, 10.0) == "waiting"
    none = outcome(step_seconds=1.0, busy=None, disk_bytes=None)
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
    assert planned["disk_s"] > 0
    assert planned["disk_uses"][0]["written_bytes_per_parameter"] == pytest.approx(12, rel=0.05)
    assert list(tmp_path.iterdir()) == []  # it plans, and leaves nothing


def test_the_command_prints_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--layers", "1", "--width", "32"]
    assert main(["estimate", *small, "--transport", "ipc", "--no-switch"]) == 0
    text = capsys.readouterr().out
    for said in ("at least", "a parameter", "assumed", "measured", "predicted"):
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

"""The benchmarks run, check their answers, and leave nothing; the numbers are not looked at."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import harness, planned_step
from benchmarks.crew import SOURCE, Crew
from benchmarks.exchange_claims import MEANINGS, claims
from benchmarks.exchange_model import LR, Job, check_weights, floor_bytes
from luwu.base.errors import ConfigError, LuwuError, WorkerFailed
from luwu.launch.hosts.namespaces import Namespaces
from luwu.measure.disk_floors import DiskFloors
from luwu.measure.floors import Floors

LIMIT_S = 250.0
ENVIRONMENT = {
    "cpu",
    "cores",
    "memory_bytes",
    "kernel",
    "python",
    "torch",
    "numpy",
    "pyzmq",
    "date",
}


def run_smoke(
    tmp_path: Path, benchmark: str, *flags: str, label: str | None = "measured"
) -> dict[str, Any]:
    """A benchmark's document; nothing may be left where it keeps its temporary files."""
    temporary, result = tmp_path / "temporary", tmp_path / "result.json"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--smoke", "--json", str(result), *flags],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=SOURCE, env=environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(temporary.glob("luwu-*")) == []  # torch makes folders of its own
    document: dict[str, Any] = json.loads(result.read_text())
    assert document["schema"] == harness.SCHEMA
    assert document["benchmark"] == benchmark
    assert set(document["environment"]) >= ENVIRONMENT
    for row in document["rows"]:
        assert row["seconds_median"] > 0
        assert label is None or row["label"] == label
    return document


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "flags"),
    [
        ("luwu-ipc", ()),
        ("luwu-tcp", ("--dtype", "bfloat16", "--chunk", "64KiB")),
        ("fsdp-gloo,ddp-gloo", ("--dtype", "bfloat16")),
        ("hub-ipc,raw-zmq-pair-tcp,page-update,memory-floor", ()),
    ],
)
def test_exchange_runs(tmp_path: Path, arms: str, flags: tuple[str, ...]) -> None:
    """Goal: every arm exchanges the model and ends with the reference's weights.
    Method: smoke sizes; LuWu's arms, the hub and the page update must have the same bits."""
    document = run_smoke(tmp_path, "exchange", "--arms", arms, *flags)
    assert {row["arm"] for row in document["rows"]} == set(arms.split(","))
    for row in document["rows"]:
        expected = {"fsdp-gloo": "bound", "ddp-gloo": "bound", "memory-floor": None}
        if row["weights_equal"] != "bits":
            assert row["weights_equal"] == expected[row["arm"]]
        if row["arm"].startswith("luwu"):
            assert row["read_seconds_median"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["luwu budget 1/8", "luwu budget 1/2 step", "compute-only"])
def test_step_runs(tmp_path: Path, arm: str) -> None:
    """Goal: whole training runs, out of core and without any exchange."""
    document = run_smoke(tmp_path, "step", "--arms", arm, "--cases", "exchange-bound")
    (row,) = document["rows"]
    assert (row["disk_bytes"] is not None) == arm.startswith("luwu")


@pytest.mark.slow
def test_diloco_runs(tmp_path: Path) -> None:
    """Goal: both ways are measured; one seed has one digest, which the benchmark itself checks."""
    document = run_smoke(tmp_path, "diloco", label="emulated")
    assert [row["arm"] for row in document["rows"]] == ["diloco", "luwu"]
    assert document["claims"]["bytes_over_exact_per_round"] <= 1.05


def test_keys_runs(tmp_path: Path) -> None:
    """Goal: both arms are measured in each case, what was sent arrived, and ratios are of them."""
    document = run_smoke(tmp_path, "keys")
    cases = {(row["case"], row["arm"]) for row in document["rows"]}
    streams = [f"stream {size}KiB" for size in (64, 1024, 4096)]
    expected = {(c, a) for c in (*streams, "round", "connect") for a in ("keys", "open")}
    has_sodium = document["curve_library"] == "libsodium"
    assert cases == (expected | {("cipher", "cipher")} if has_sodium else expected)
    left_out = set() if has_sodium else {"stream_of_cipher_ratio"}
    assert set(document["claims"]) == set(document["claims_meaning"]) - left_out
    assert document["curve_library"] in ("libsodium", "libzmq's own (tweetnacl)")


def test_frames_runs(tmp_path: Path) -> None:
    """Goal: push and pull are counted over both transports, with and without a switch, and the way
    of a gradient leads from the NIC to the store. Weights are compared in the benchmark itself."""
    document = run_smoke(tmp_path, "frames")
    cases = [(row["case"], row["arm"], row["switch"]) for row in document["counted"]]
    assert cases == [
        ("push", "tcp", True), ("pull", "tcp", True), ("push", "shm", False), ("pull", "shm", False)
    ]  # fmt: skip
    for row in document["counted"]:
        assert sum(row["packages"].values()) == pytest.approx(row["frames"], rel=0.05)
        assert row["files"] < row["functions"]
        # Frames are of one chunk more, functions of one extent: the other way with several chunks.
        assert (row["functions"] < row["frames"]) == (row["extent_chunks"] == 1)
        if row["case"] == "push":
            assert row["way"][0].startswith("  luwu/nic/shell.py: Nic.push")
            assert any(line.startswith("  switch_emu/store/file.py") for line in row["way"])


def test_messages_runs(tmp_path: Path) -> None:
    """Goal: a step is counted with single chunks and with the extent that auto gives: as many
    messages as the estimate says, fewer by the chunks of an extent, and the same payload. Weights
    and what was sent and received are compared in the benchmark itself."""
    document = run_smoke(tmp_path, "messages", "--transport", "ipc")
    rows = {(row["case"], row["arm"]): row for row in document["rows"]}
    cases = list(dict.fromkeys(case for case, _ in rows))
    assert len(rows) == 2 * len(cases) == 4
    for case in cases:
        one, auto = rows[case, "one"], rows[case, "auto"]
        assert one["extents"] == one["chunks"] == auto["chunks"]
        for role, counted in auto["roles"].items():
            before = one["roles"][role]
            assert counted["ends"] == counted["ends_predicted"]
            assert before["ends"] == before["ends_predicted"]
            for way in ("sent", "received"):
                assert counted[f"payload_bytes_{way}"] == before[f"payload_bytes_{way}"]
                messages = sum(kind.get(f"messages_{way}", 0) for kind in counted["kinds"].values())
                assert messages == counted[f"messages_{way}"]
        ratio = document["claims"][f"{case}: messages"]
        assert ratio == pytest.approx(one["chunks"] / auto["extents"], rel=0.05)
    assert auto["extent_chunks"] > 1
    assert document["claims"][f"{case}: messages"] > 1.5


def test_link_runs(tmp_path: Path) -> None:
    """Goal: every rate, delay and loss is measured, and no link is no wrapper."""
    document = run_smoke(tmp_path, "link")
    assert {row["arm"] for row in document["rows"]} == {"rate", "delay", "loss"}
    assert set(document["claims"]) == set(document["claims_meaning"])
    assert document["claims"]["off_is_same_object"] is True


@pytest.mark.slow
def test_dilation_runs(tmp_path: Path) -> None:
    """Goal: runs that are slowed down as a whole end with the weights of a plain run."""
    document = run_smoke(tmp_path, "dilation", label="emulated")
    assert [row["dilation"] for row in document["rows"]] == [2.0, 4.0]
    for row in document["rows"]:
        assert row["seconds_median"] > row["compute_seconds"] > 0
    assert set(document["claims"]) == set(document["claims_meaning"])


@pytest.mark.slow
def test_offload_activations_runs(tmp_path: Path) -> None:
    """Goal: all arms have the same losses; one of them puts the inputs of blocks on disk."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    document = run_smoke(tmp_path, "offload_activations", "--dir", str(directory))
    rows = {row["arm"]: row for row in document["rows"]}
    assert set(rows) == {"none", "checkpoint", "offload"}
    assert rows["offload"]["written_bytes"] >= rows["offload"]["inputs_bytes"]
    assert rows["none"]["written_bytes"] == rows["checkpoint"]["written_bytes"] == 0
    assert set(document["claims"]) == set(document["claims_meaning"])
    assert list(directory.iterdir()) == []


@pytest.mark.slow
def test_a_planned_step_runs(tmp_path: Path) -> None:
    """Goal: a plan, a run out of core, and floors before and after it, in one row."""
    document = run_smoke(tmp_path, "step", "--case", "1b")
    (row,) = document["rows"]
    assert row["case"] == "1b"
    assert row["measured_count"] == 2  # of four steps: not the first, not the last
    assert document["claims"] == {"plan_error_ratio": row["plan_error_ratio"]}
    assert set(document["claims"]) <= set(document["claims_meaning"])
    assert isinstance(row["plan_void"], bool)
    for name in ("planned_seconds", "planned_seconds_after", "planned_seconds_mean"):
        assert row[name] > 0
    assert row["plan_error_ratio_after"] >= 0
    assert row["bytes_per_parameter_and_step"]["written"]["planned"] >= 12
    assert row["floors_before"]["disk"]["file_bytes"] <= 1024 * 1024


def test_floors_are_set_beside_each_other() -> None:
    """Goal: what the binding resource uses, as a share of the floor before; the mean of both."""
    disk = DiskFloors(
        read_bytes_per_s=4e9, write_bytes_per_s=1e9, mixed_bytes_per_s=2e9, pull_bytes_per_s=1e9,
        flush_s=1e-4, page_cpu_s=0.0, pull_cpu_s=0.0, requests_count=4, request_bytes=4096,
        pulls_count=2, pull_request_bytes=4096, file_bytes=8192,
        reason="by hand", total_bytes=10**12, free_bytes=10**12,
    )  # fmt: skip
    before = Floors(cores_count=2, disk=disk, copy_bytes_per_s=1e9)
    after = dataclasses.replace(
        before, disk=dataclasses.replace(disk, read_bytes_per_s=3e9, mixed_bytes_per_s=2.2e9)
    )
    assert planned_step.drift(before, after, "disk") == pytest.approx({
        "disk.read_bytes_per_s": 0.25, "disk.mixed_bytes_per_s": 0.1, "disk.pull_bytes_per_s": 0.0,
    })  # fmt: skip
    assert planned_step.drift(before, after, "exchange") == {"copy_bytes_per_s": 0.0}
    gone = dataclasses.replace(after, disk=None)
    assert set(planned_step.drift(before, gone, "disk").values()) == {None}
    mean = planned_step.mean_floors(before, after)
    assert mean.disk is not None
    assert (mean.disk.read_bytes_per_s, mean.disk.requests_count) == (3.5e9, 4)
    assert planned_step.mean_floors(before, gone).disk == disk


def test_an_unknown_case_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.step", "--smoke", "--case", "2b"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=SOURCE, check=False
    )
    assert done.returncode == 2
    assert "no case '2b'" in done.stderr


@pytest.mark.slow
def test_scale_runs(tmp_path: Path) -> None:
    """Goal: a second worker adds no byte at the node, since the switch sums and multicasts."""
    document = run_smoke(tmp_path, "scale")
    assert document["claims"]["node_bytes_spread"] == 0
    slopes = document["rows"][-1]["memory_slope_bytes_per_100_steps"]
    assert set(slopes) == {"node", "switch", "worker-0", "worker-1"}


def test_an_unknown_arm_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.exchange", "--smoke", "--arms", "luwu-carrier"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=SOURCE, check=False
    )
    assert done.returncode == 2
    assert "luwu-carrier" in done.stderr


def test_a_member_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew, pytest.raises(WorkerFailed, match="KeyError"):
        crew.add("broken", 1, {"do": "open"})


def test_interleave_takes_turns() -> None:
    """Goal: all arms of a round are measured before the next, every other round backwards."""
    order: list[str] = []

    def arm(name: str, seconds: float | list[float]) -> Any:
        def run() -> float | list[float]:
            order.append(name)
            return seconds

        return run

    found = harness.interleave({"a": arm("a", 1.0), "b": arm("b", [2.0, 3.0])}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1.0] * 3, "b": [2.0, 3.0] * 3}


def test_median_and_spread() -> None:
    assert harness.median([3.0, 1.0, 2.0]) == 2.0
    assert harness.median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert harness.spread([3.0, 1.0, 2.0]) == 1.0


@pytest.mark.parametrize(("text", "count"), [("25M", 25_000_000), ("1.5k", 1500), ("64", 64)])
def test_counts_are_decimal(text: str, count: int) -> None:
    assert harness.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1", "0", "1.5", "nan", "2X"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a count"):
        harness.parse_count(text)


@pytest.mark.parametrize("params", [200_000, 25_000_000, 100_000_000])
def test_units_cover_the_model(params: int) -> None:
    job = Job(params=params, workers=2)
    assert params <= job.elems < params + 64
    layout = job.layout(1024 * 1024)
    assert layout.unit_elems == job.unit_elems
    assert all(elems % 64 == 0 for elems in job.unit_elems)


@pytest.mark.parametrize(("dtype", "per_param"), [("float32", 12 * 4 + 28), ("bfloat16", 50)])
def test_floor_is_as_stated(dtype: str, per_param: int) -> None:
    job = Job(params=6400, workers=4, dtype=dtype)
    assert floor_bytes(job) == 6400 * per_param


def test_wrong_weights_are_found() -> None:
    """Goal: fast and wrong is not fast: a hundredth of the elements off by an update is refused."""
    job = Job(params=6400, workers=2)
    assert check_weights(job, 2, lambda unit: job.expected(unit, 2), bound=False) == "bits"

    def off(unit: int) -> torch.Tensor:
        weights = job.expected(unit, 2)
        weights[::100] += LR
        return weights

    with pytest.raises(LuwuError, match="weights after 2 steps are wrong"):
        check_weights(job, 2, off, bound=True)


def test_claims_take_the_worst_size() -> None:
    """Goal: a claim is the worst of the sizes, and in its own dtype has the plain name."""

    def row(case: str, arm: str, seconds: float, *, switch: bool | None = None) -> harness.Row:
        made = harness.row(case, arm, [seconds], workers=4, dtype="float32", switch=switch)
        return made | {"job_workers": 4}

    rows = [
        row("25M", "luwu-shm", 2.0, switch=True), row("25M", "fsdp-gloo", 8.0),
        row("25M", "memory-floor", 1.0),
        row("100M", "luwu-shm", 6.0, switch=True), row("100M", "fsdp-gloo", 18.0),
        row("100M", "memory-floor", 4.0),
        row("25M", "luwu-ipc", 4.0, switch=False), row("25M", "hub-ipc", 1.0),
        row("25M", "page-update", 2.0),
    ]  # fmt: skip
    found = claims(rows)
    assert found["shm_over_fsdp"] == 3.0
    assert found["shm_of_floor"] == 2.0
    assert found["ipc_of_hub"] == 0.75
    assert found["ipc_over_fsdp_no_switch_float32"] == 2.0
    assert {"shm_over_fsdp", "shm_of_floor", "ipc_of_hub"} <= set(MEANINGS)


@pytest.mark.slow
def test_hosts_run(tmp_path: Path) -> None:
    """Goal: a run on shaped links beside its bound, and a picture of the table.
    Method: smoke sizes, LuWu alone; `test_hosts.py` runs every arm there."""
    try:
        with Namespaces(1, 125e6, log=tmp_path / "log", run_id="test"):
            pass
    except ConfigError as error:
        pytest.skip(str(error))
    picture = tmp_path / "hosts.svg"
    document = run_smoke(
        tmp_path, "hosts", "--arms", "luwu", "--plot", str(picture), label="emulated"
    )
    assert [row["arm"] for row in document["rows"]] == ["luwu"]
    for row in document["rows"]:
        assert set(row["link_bytes_per_step"]) == {
            f"{link} {way}" for link in ("node", "host-0", "host-1") for way in ("up", "down")
        }
        assert row["bound_seconds"] == max(row["links_seconds"], row["compute_seconds"])
        assert row["over_bound"] == pytest.approx(row["seconds_median"] / row["bound_seconds"])
    assert set(document["claims"]) == set(document["claims_meaning"])
    assert picture.read_text().count("<rect") == 1


@pytest.mark.slow
def test_faults_runs(tmp_path: Path) -> None:
    """I3. Goal: networks that lose, repeat and reorder end with the weights of one that does not.
    The program itself compares them."""
    document = run_smoke(tmp_path, "faults", label="emulated")
    kinds = {row["faults"]: row for row in document["rows"]}
    assert set(kinds) == {"none", "loss 1 %", "loss 10 %", "repeated and reordered"}
    assert kinds["loss 10 %"]["dropped_count"] > 0
    assert kinds["repeated and reordered"]["repeated_count"] > 0
    assert kinds["none"]["dropped_count"] == kinds["none"]["repeated_count"] == 0
    assert set(document["claims"]) == set(document["claims_meaning"])

"""The benchmarks run, check their answers, and leave nothing; the numbers are not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.crew import SOURCE
from benchmarks.namespaces import NoNamespaces, hosts

LIMIT_S = 250.0
ENVIRONMENT = {
    "cpu", "cores", "memory_bytes", "kernel", "python", "torch", "numpy", "pyzmq", "date",
}  # fmt: skip


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
@pytest.mark.parametrize(
    ("case", "arm"),
    [
        ("exchange-bound", "luwu budget 1/8"), ("exchange-bound", "luwu budget 1/2 step"),
        ("exchange-bound", "compute-only"), ("clipped", "luwu streaming; always; budget 1/8"),
    ],
)  # fmt: skip
def test_step_runs(tmp_path: Path, case: str, arm: str) -> None:
    """Goal: whole training runs, out of core and without any exchange."""
    document = run_smoke(tmp_path, "step", "--arms", arm, "--cases", case)
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
    """Goal: a step is counted with single chunks and with the extent that auto gives: fewer
    messages by the chunks of an extent, and the same payload. Weights and what was sent and
    received are compared in the benchmark itself."""
    document = run_smoke(tmp_path, "messages", "--transport", "ipc")
    rows = {(row["case"], row["arm"]): row for row in document["rows"]}
    cases = list(dict.fromkeys(case for case, _ in rows))
    assert len(rows) == 2 * len(cases) == 4
    for case in cases:
        one, auto = rows[case, "one"], rows[case, "auto"]
        assert one["extents"] == one["chunks"] == auto["chunks"]
        for role, counted in auto["roles"].items():
            before = one["roles"][role]
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
def test_scale_runs(tmp_path: Path) -> None:
    """Goal: a second worker adds no byte at the node, since the switch sums and multicasts."""
    document = run_smoke(tmp_path, "scale")
    assert document["claims"]["node_bytes_spread"] == 0
    slopes = document["rows"][-1]["memory_slope_bytes_per_100_steps"]
    assert set(slopes) == {"node", "switch", "worker-0", "worker-1"}


@pytest.mark.slow
def test_hosts_run(tmp_path: Path) -> None:
    """Goal: a run on shaped links beside its bound, and a picture of the table.
    Method: smoke sizes, LuWu and DDP."""
    try:
        with hosts(1, 125e6):
            pass
    except NoNamespaces as error:
        pytest.skip(f"needs network namespaces: {error}")
    picture = tmp_path / "hosts.svg"
    document = run_smoke(
        tmp_path, "hosts", "--arms", "luwu,ddp", "--plot", str(picture), label="emulated"
    )
    assert [row["arm"] for row in document["rows"]] == ["luwu", "ddp"]
    assert len({row["weights_digest"] for row in document["rows"]}) == 1
    for row in document["rows"]:
        assert set(row["link_bytes_per_step"]) == {
            f"{link} {way}" for link in ("node", "host-0", "host-1") for way in ("up", "down")
        }
        assert row["bound_seconds"] == max(row["links_seconds"], row["compute_seconds"])
        assert row["over_bound"] == pytest.approx(row["seconds_median"] / row["bound_seconds"])
    assert set(document["claims"]) == set(document["claims_meaning"])
    assert picture.read_text().count("<rect") == 2


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


def test_disk_runs(tmp_path: Path) -> None:
    """Goal: both arms run at both levels; the program checks the weights."""
    document = run_smoke(tmp_path, "disk")
    rows = document["rows"]
    assert {(row["case"], row["arm"]) for row in rows} == {
        (f"{chunk} {durability}", arm)
        for chunk in ("64.00 KiB", "256.00 KiB")
        for durability in ("process", "step")
        for arm in ("raw", "pipeline")
    }
    for row in rows:
        assert row["bytes_per_s"] > 0
        assert row["pages_in_flight"] >= 2
    assert document["claims"]["of_raw"] > 0


@pytest.mark.slow
def test_predict_runs(tmp_path: Path) -> None:
    """Goal: every arm answers. That every repeat gives the same document, and the cores the closed
    form's step, the benchmark itself checks."""
    document = run_smoke(tmp_path, "predict")
    rows = {(row["case"], row["arm"]): row for row in document["rows"]}
    arms = ("process", "call", "floor of a process", "floor of a call")
    assert set(rows) == {(case, arm) for case in ("closed form", "cores", "plan") for arm in arms}
    assert document["claims"]["configurations"] > 100
    assert rows["plan", "process"]["goal_seconds"] == 30
    assert rows["plan", "call"]["configurations_per_s"] > 0


@pytest.mark.slow
def test_restart_runs(tmp_path: Path) -> None:
    """Goal: a node restarts on states of two sizes, pages are counted, and every level trains to
    the same weights, which the program checks."""
    document = run_smoke(tmp_path, "restart", label=None)
    found = {(row["case"], row["arm"]): row for row in document["rows"]}
    assert set(found) == {
        *(("restart", arm) for arm in ("torch", "100k", "200k")),
        *(("written", arm) for arm in ("16KiB", "1MiB")),
        *(("durability", arm) for arm in ("none", "process", "step")),
    }
    assert {row["label"] for (case, _), row in found.items() if case != "durability"} == {
        "measured"
    }
    assert found["durability", "step"]["label"] == "emulated"
    assert set(document["claims"]) == set(document["claims_meaning"])
    for arm in ("16KiB", "1MiB"):
        assert found["written", arm]["written_ratio"] > 0.9

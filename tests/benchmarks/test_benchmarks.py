"""The benchmarks run, check their answers, and leave nothing; the numbers are not looked at."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
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


ARMS = {
    "link": {"rate", "delay", "loss"}, "disk": {"raw", "pipeline"},
    "restart": {"torch", "100k", "200k", "16KiB", "1MiB", "none", "process", "step"},
}  # fmt: skip
"""All that are measured, where that depends on no flag and no library."""
LAWS: dict[str, Callable[[Any], bool]] = {
    "exchange": lambda found: all(  # what is no arm of ours is within a bound, or has no weights
        row["weights_equal"] == "bits"
        for row in found["rows"]
        if row["arm"].startswith(("luwu", "hub", "raw", "page"))
    ),
    "link": lambda found: found["claims"]["off_is_same_object"] is True,
    # One more unit may be pulled ahead; without a switch each worker would add as much again.
    "scale": lambda found: found["claims"]["node_bytes_spread"] < 0.2,
    "faults": lambda found: {
        row["faults"] for row in found["rows"] if row["dropped_count"] + row["repeated_count"]
    } == {"loss 1 %", "loss 10 %", "repeated and reordered"},
}  # fmt: skip
"""Claims of a benchmark that hold on a machine of any speed."""


@pytest.mark.parametrize(
    ("benchmark", "flags", "label"),
    [
        ("keys", "", "measured"), ("link", "", "measured"), ("disk", "", "measured"),
        *(
            pytest.param(*run, marks=pytest.mark.slow)
            for run in (
                ("exchange", "--arms luwu-ipc", "measured"),
                ("exchange", "--arms luwu-tcp --dtype bfloat16 --chunk 64KiB", "measured"),
                ("exchange", "--arms fsdp-gloo,ddp-gloo --dtype bfloat16", "measured"),
                ("exchange", "--arms hub-ipc,raw-zmq-pair-tcp,page-update,memory-floor",
                 "measured"),
                ("step", "--arms 'luwu budget 1/8' --cases exchange-bound", "measured"),
                ("step", "--arms 'luwu budget 1/2 step' --cases exchange-bound", "measured"),
                ("step", "--arms compute-only --cases exchange-bound", "measured"),
                ("step", "--arms 'luwu streaming; always; budget 1/8' --cases clipped",
                 "measured"),
                ("dilation", "", "emulated"),
                ("scale", "", "measured"), ("faults", "", "emulated"), ("restart", "", None),
            )
        ),
    ],
)  # fmt: skip
def test_a_benchmark_runs(benchmark: str, flags: str, label: str | None, tmp_path: Path) -> None:
    """I3. Goal: every arm that is asked for is measured, and each claim says what it means. Weights
    and documents are compared in the benchmarks themselves. Method: smoke sizes."""
    given = shlex.split(flags)
    document = run_smoke(tmp_path, benchmark, *given, label=label)
    arms = {row["arm"] for row in document["rows"]}
    assert arms == (set(given[1].split(",")) if given else ARMS.get(benchmark, arms)) != set()
    assert set(document["claims"]) <= set(document.get("claims_meaning", document["claims"]))
    assert LAWS.get(benchmark, bool)(document), document["claims"]


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
        # Both of the steps whose bytes were counted: these are some of all.
        counted_s = row["over_bound"] * row["bound_seconds"]
        assert row["busy_ratio"] == pytest.approx(row["links_seconds"] / counted_s)
    assert set(document["claims"]) == set(document["claims_meaning"])
    assert picture.read_text().count("<rect") == 2

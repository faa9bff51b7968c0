"""DeepSpeed's arms in real processes; where DeepSpeed is not installed they are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import ARMS, LOSS_OFF_MAX
from luwu.base.config import INFINITY
from tests.processes.commands import terminal
from tests.processes.jobs import text_file
from tests.unit.test_benchmarks import run_smoke

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.timeout(3600)]

COMPILING_S = 3000.0
"""The first run compiles DeepSpeed's libraries."""
STEPS = 3
MODEL = ("--layers", "2", "--width", "512", "--context", "16", "--batch", "2")
"""DeepSpeed leaves tensors below 1 MiB in memory; here most matrices are larger."""


@pytest.mark.feature("DeepSpeed's ZeRO-3 offload and ZeRO-Infinity beside luwu")
def test_deepspeed_trains_what_luwu_does(tmp_path: Path) -> None:
    """I4, I8. Goal: the same losses and norm; ZeRO-Infinity writes its state to disk
    in every step; its files, its libraries and its processes are gone at the end."""
    with terminal(tmp_path) as shell:
        done = shell.start(
            "compare", "--arms", "luwu,zero3-offload,zero-infinity", "--steps", str(STEPS), *MODEL,
            "--max-grad-norm", "0.5", "--workers", "2", "--data", str(text_file(shell.directory)),
            "--run-dir", "run", "--json", "found.json",
        )  # fmt: skip
        assert done.wait(limit_s=COMPILING_S) == 0, done.err
        document = json.loads((tmp_path / "found.json").read_text())
        assert shell.leftovers() == []
    luwu, offload, infinity = document["arms"]
    state = 12 * document["job"]["parameters"]
    for arm in (offload, infinity):
        assert arm["loss"] == pytest.approx(luwu["loss"], abs=LOSS_OFF_MAX)
        assert len(arm["weights_digest"]) == len(luwu["weights_digest"])
    assert 2 * offload["worker_optimizer_bytes"] == pytest.approx(state * 2 / 3, rel=0.01)
    assert offload["disk_bytes_kernel"] is None
    moved: dict[str, Any] = infinity["disk_bytes_kernel"]
    assert moved["written"] > 0.9 * STEPS * state
    norms = [_norms(tmp_path, arm["name"]) for arm in document["arms"]]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert norms[2] == pytest.approx(norms[0], rel=1e-4)
    run = tmp_path / "run"
    assert not (run / INFINITY).exists()
    assert not (run / "deepspeed").exists()


def test_peers_run(tmp_path: Path) -> None:
    """Goal: every arm is measured; losses are compared in the benchmark itself."""
    document = run_smoke(tmp_path, "peers")
    assert [row["arm"] for row in document["rows"]] == list(ARMS)
    names = {name.partition(": ")[2] for name in document["claims"]}
    assert names == set(document["claims_meaning"])


def _norms(directory: Path, arm: str) -> list[float]:
    record = json.loads((directory / "run" / "results" / f"{arm}.rank0.json").read_text())
    return list(record["grad_norm"].values())

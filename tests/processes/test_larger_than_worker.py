"""A model that no worker could hold: it trains all the same, within a few units of memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster, clean_environ
from tests.processes.jobs import DEADLINE_S, ON_THE_CPU, Outside, text_file

HEADROOM_BYTES = 78 * 1024 * 1024
LAYERS, WIDTH, STEPS = 104, 256, 2
"""82 million parameters in units of 3.2 MB. Step 0 pulls what it meets, step 1 ahead of use."""


def script(directory: Path, arm: str) -> list[str]:
    options = {
        "arm": arm, "steps": STEPS, "layers": LAYERS, "width": WIDTH, "context": 2, "batch": 1,
        "data": text_file(directory), "result": directory / f"{arm}.json",
    }  # fmt: skip
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return ["-m", "tests.processes.limited_train", str(HEADROOM_BYTES), *flags]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_larger_than_worker(transport: str, tmp_path: Path) -> None:
    """I5. Goal: workers hold the prefetch window, one unit and the root, and no optimizer state,
    by their own count and by the kernel's.
    Method: a limit on memory (`limited_train.py`) whose headroom is a quarter of the model."""
    outside = Outside(tmp_path / "outside")
    flags = ["--memory-budget", "64MiB", "--chunk", "1MiB", "--durability", "process"]
    flags += ["--transport", transport]
    state = tmp_path / "state"
    try:
        with Cluster.run(
            tmp_path, *script(tmp_path, "luwu"), environ={**outside.environ, "LUWU_PRELOAD": "1"},
            flags=["--workers", "2", "--state", str(state), *flags],
        ) as cluster:  # fmt: skip
            assert cluster.wait(2 * DEADLINE_S) == 0, cluster.output
            assert cluster.leftovers() == outside.leftovers() == []
        check_export(state, tmp_path)
    finally:
        shutil.rmtree(state, ignore_errors=True)  # 1.6 GB
    for rank in range(2):
        found = json.loads((tmp_path / f"luwu.rank{rank}.json").read_text())
        assert 4 * found["parameters_count"] >= 4 * HEADROOM_BYTES
        units = found["prefetch_units"] + 2
        assert found["worker_parameter_bytes_peak"] <= units * found["unit_bytes_max"]
        assert found["worker_parameter_bytes_peak"] > 2 * found["unit_bytes_max"]
        assert found["worker_optimizer_bytes"] == 0
        assert len(found["loss"]) == STEPS


def check_export(state: Path, directory: Path) -> None:
    """The state is exported within a limit that does not hold the model either."""
    limited = (
        "import resource, sys; from luwu.commands.main import main; "
        f"resource.setrlimit(resource.RLIMIT_DATA, 2 * ({3 * HEADROOM_BYTES},)); "
        "sys.exit(main(sys.argv[1:]))"
    )
    out = directory / "out"
    ended = subprocess.run(
        [sys.executable, "-c", limited, "export", str(state), str(out), "--no-optimizer",
         "--memory-budget", "32MiB", "--json"],
        env={**clean_environ(), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    try:
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["step"] == STEPS
        assert found["bytes"] > 4 * HEADROOM_BYTES
    finally:
        shutil.rmtree(out, ignore_errors=True)


def test_not_larger_than_worker_alone(tmp_path: Path) -> None:
    """Goal: the limit of the test above is one. Method: the same model, held by one process."""
    environ = {**clean_environ(), **ON_THE_CPU, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *script(tmp_path, "single")]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "beyond the limit: RuntimeError" in ended.stderr
    assert "can't allocate memory" in ended.stderr

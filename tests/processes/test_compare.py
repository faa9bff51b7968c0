"""`luwu compare` against the path a user would otherwise take, and against one process alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.helpers.schemas import check
from tests.processes.jobs import SMALL, Comparison, compare

STEPS = 12


class Compared(NamedTuple):
    """A comparison of three arms, out of core."""

    done: Comparison
    run: Path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    directory = tmp_path_factory.mktemp("compared")
    flags = ["--workers", "2", "--steps", str(STEPS), "--dtype", "float32", "--seed", "3", *SMALL]
    flags += ["--memory-budget", "1MiB"]
    done = compare(directory, *flags, arms="luwu,fsdp,single", threads=None)
    return Compared(done, directory / "run")


def test_luwu_is_as_close_to_fsdp_as_fsdp_is_to_one_process(compared: Compared) -> None:
    """I4. Goal: the same losses from all arms, and one document with all that was measured.
    Method: compare the losses of every step; 1e-5 is what the order of a sum may cost. The one
    process has the compute threads of all workers, so its rounding differs."""
    done, run = compared
    luwu, fsdp, single = (np.array(done.arm(name)["loss"]) for name in ("luwu", "fsdp", "single"))

    assert luwu.shape == fsdp.shape == single.shape == (STEPS,)
    assert np.isfinite(single).all()
    assert single[-1] < single[0]  # it learns, so losses depend on the updates
    assert len(set(single.tolist())) == STEPS
    np.testing.assert_allclose(luwu, single, rtol=0, atol=1e-5)
    assert np.abs(luwu - fsdp).max() <= 2 * np.abs(fsdp - single).max()

    log = (run / "logs" / "launcher.log").read_text()
    assert "durability step: every decided step survives power loss" in log
    document = done.document
    assert document["schema"] == 5
    check("compare", document)
    job = document["job"]
    assert (job["workers"], job["steps"], job["seed"]) == (2, STEPS, 3)
    assert (job["parameters"], job["dtype"]) == (133_888, "float32")
    assert job["tokens_per_step"] == 2 * 2 * 16
    for arm in document["arms"]:
        assert len(arm["step_seconds"]) == STEPS
        assert math.isclose(
            arm["tokens_per_second"], job["tokens_per_step"] / arm["step_seconds_median"]
        )
        assert len(arm["worker_peak_rss_bytes"]) == (1 if arm["name"] == "single" else 2)
        assert min(arm["worker_peak_rss_bytes"]) > 100e6
        assert len(arm["weights_digest"]) == 64

    measured = done.arm("luwu")
    assert measured["network_bytes"]["push"] == 2 * STEPS * 4 * job["parameters"]
    assert measured["network_bytes"]["into_node"] == STEPS * 4 * job["parameters"]
    state_bytes = 12 * job["parameters"]
    assert state_bytes <= measured["node_state_bytes"] <= 1.05 * state_bytes
    assert measured["disk_space_bytes"] >= 2 * measured["node_state_bytes"]
    for name in ("fsdp", "single"):
        baseline = done.arm(name)
        assert baseline["network_bytes"] is baseline["node_state_bytes"] is None
    assert done.arm("single")["worker_optimizer_bytes"] >= 8 * job["parameters"]
    assert measured["worker_optimizer_bytes"] == 0


def test_a_comparison_says_what_it_planned(compared: Compared) -> None:
    """Goal: results and report hold the estimate and what did bind; the bytes are right.
    Method: out of core in shared memory, where no sum is spilled, so that writes are exact: each
    page once a step, and once when the first weights are loaded."""
    done, run = compared
    arm, single = done.arm(), done.arm("single")
    planned = arm["estimate"]
    assert planned["parameters"] == done.document["job"]["parameters"]
    assert arm["bound_by"] in ("compute", "sum", "update", "disk", "wait")
    assert single["estimate"] is single["bound_by"] is None

    pages = planned["disk_uses"][0]["written_bytes"] * (STEPS + 1)
    assert pages <= arm["disk_bytes"]["written"] - arm["spill_bytes"]["written"] <= 1.2 * pages
    updates = planned["disk_uses"][0]["read_bytes"] * STEPS
    read = arm["disk_bytes"]["read"] - arm["spill_bytes"]["read"]
    assert 0 < updates <= read
    assert abs(sum(planned["disk_space_bytes"].values()) - arm["disk_space_bytes"]) < 256 * 1024

    page = (run / "report.html").read_text()
    assert "bound by" in page

"""I5: the memory of node, switch and workers is what was planned, whatever the state takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.processes.jobs import compare, plain_digest

STEPS = 5
IMPORTS_BYTES_MAX = 350_000_000
"""Python, torch, numpy and pyzmq, before anything is allocated for a job."""


@pytest.mark.feature("weights in the memory of the switch")
@pytest.mark.usefixtures("on_the_cpu")
def test_state_of_eight_budgets_is_trained_within_one(tmp_path: Path) -> None:
    """I3, I4, I5. Goal: a state eight times larger than the budget passes through the node, each
    page read and written once a step, and the node's memory does not grow with it; weights that are
    pulled twice a step leave it once, and are read before the first step alone. At the end they
    have the bits of plain torch."""
    sizes = ("--layers", "4", "--width", "128", "--context", "16", "--batch", "2")
    flags = ("--workers", "1", "--steps", str(STEPS), "--transport", "tcp", *sizes)
    budget = ("--memory-budget", "1260KiB", "--durability", "process")
    done = compare(tmp_path, *flags, *budget)
    arm, parameters = done.arm(), done.document["job"]["parameters"]

    assert arm["memory_budget_bytes"] == 1260 * 1024
    assert arm["node_state_bytes"] >= 8 * arm["memory_budget_bytes"]
    assert arm["node_peak_rss_bytes"] <= arm["memory_budget_bytes"] + IMPORTS_BYTES_MAX
    # An update reads and writes 12 bytes a parameter. A sum that waits for the decision of the step
    # before may find no room: 4 more, written and read back. The switch caches all weights; of the
    # next step some may be pulled after their update: these are read, a tenth at most.
    steps_bytes, sums_bytes = STEPS * 12 * parameters, STEPS * 4 * parameters
    initial_bytes, weights_bytes = 12 * parameters, 4 * parameters
    read, written = arm["disk_bytes"]["read"], arm["disk_bytes"]["written"] - initial_bytes
    assert steps_bytes <= written <= 1.02 * (steps_bytes + sums_bytes)
    pulled_bytes = weights_bytes + 0.1 * STEPS * weights_bytes
    assert 0.85 * steps_bytes <= read <= 1.02 * (steps_bytes + sums_bytes + pulled_bytes)
    assert arm["network_bytes"]["out_of_node"] <= 1.02 * (STEPS + 1) * weights_bytes
    assert arm["weights_digest"] == plain_digest(STEPS, workers=1, sizes=sizes)


ROLES = ("worker", "switch", "node")
KEPT_BYTES = 16 << 20
"""What forward and backward of a worker take for so few tokens, which is not planned."""
OF_ROLE = {"arenas": "worker", "weights in place": "node"}
"""Whose shared memory it is."""


def peaks(arm: dict[str, Any]) -> dict[str, int]:
    """The most that a process of each role took, and all of them at one instant."""
    found = {"all": arm["memory_peak_bytes"], "node": arm["node_peak_rss_bytes"]}
    for role in ("worker", "switch"):
        found[role] = max(arm[f"{role}_peak_rss_bytes"])
    return found


def planned(arm: dict[str, Any]) -> dict[str, int]:
    """The same by the plan, without Python and torch."""
    found = dict.fromkeys((*ROLES, "all"), 0)
    for use in arm["estimate"]["memory"]:
        nbytes = use["nbytes"] - use["base_bytes"]
        found[OF_ROLE.get(use["role"], use["role"])] += nbytes
        found["all"] += use["processes_count"] * nbytes
    return found


@pytest.mark.feature("the memory of all processes, counting each page once")
@pytest.mark.parametrize(
    ("wanted", "small_mib", "large_mib"),
    [
        ("--transport shm --durability process", 1, 64),
        ("--transport shm --durability none --max-grad-norm 1", 4, 224),
        pytest.param("--transport ipc --durability process", 1, 64, marks=pytest.mark.slow),
    ],
    ids=["shm", "shm-ram", "ipc"],
)
def test_no_process_takes_more_than_was_planned(
    tmp_path: Path, wanted: str, small_mib: int, large_mib: int
) -> None:  # fmt: skip
    """I5. Goal: node, switch and workers stay within the plan, a tenth more, and what Python and
    torch take. Method: that is what they take for a job of next to nothing, measured in the same
    way; then one of 7 M parameters, with a budget that all of its gradients do not fit in, or with
    its state in RAM: weights, two moments and sums, 16 bytes a parameter, are there once; and so
    few tokens that a forward keeps next to nothing, which is not planned."""
    flags = ["--workers", "2", *wanted.split()]
    small = ["--layers", "1", "--width", "32", "--batch", "1", "--context", "16", "--steps", "2"]
    budgets = ["--memory-budget", f"{small_mib}MiB"]
    nothing = compare(tmp_path, *flags, *small, *budgets, name="small").arm()
    large = ["--layers", "4", "--width", "384", "--batch", "1", "--context", "16", "--steps", "4"]
    budgets = ["--memory-budget", f"{large_mib}MiB", "--switch-memory-budget", "24MiB"]
    done = compare(tmp_path, *flags, *large, *budgets, name="large")
    arm = done.arm()

    assert arm["switch_memory_budget_bytes"] == 24 << 20
    constant, plan = peaks(nothing), planned(arm)
    plan["worker"] += KEPT_BYTES
    plan["all"] += 2 * KEPT_BYTES
    for name, peak in peaks(arm).items():
        told = f"{name}: {peak} of {plan[name]}, beside {constant[name]} of Python and torch"
        assert peak <= 1.1 * plan[name] + constant[name], told
        assert peak > constant[name], told
    assert arm["memory_peak_bytes"] <= sum(
        [arm["node_peak_rss_bytes"], *arm["switch_peak_rss_bytes"], *arm["worker_peak_rss_bytes"]]
    )
    if "none" in wanted:
        parameters = done.document["job"]["parameters"]
        assert arm["node_peak_rss_bytes"] - constant["node"] <= 18 * parameters
        assert plan["node"] <= arm["memory_budget_bytes"]
        return
    page_bytes = 3 * arm["chunk_bytes"]
    assert 0 <= arm["memory_budget_bytes"] - plan["node"] <= 2 * page_bytes

"""I5: the node's memory is what it was given, whatever the state takes."""

from __future__ import annotations

from pathlib import Path

from tests.processes.jobs import compare

STEPS = 5
IMPORTS_BYTES_MAX = 350_000_000
"""Python, torch, numpy and pyzmq, before anything is allocated for a job."""


def test_state_of_eight_budgets_is_trained_within_one(tmp_path: Path) -> None:
    """I5. Goal: a state eight times larger than the budget passes through the node, each page
    read and written once a step, and the node's memory does not grow with it."""
    flags = ["--layers", "4", "--width", "128", "--context", "16", "--batch", "2"]
    budget = ["--memory-budget", "1260KiB", "--durability", "process"]
    done = compare(tmp_path, "--workers", "1", "--steps", str(STEPS), *flags, *budget)
    arm, parameters = done.arm(), done.document["job"]["parameters"]

    assert arm["memory_budget_bytes"] == 1260 * 1024
    assert arm["node_state_bytes"] >= 8 * arm["memory_budget_bytes"]
    assert arm["node_peak_rss_bytes"] <= arm["memory_budget_bytes"] + IMPORTS_BYTES_MAX
    # An update reads and writes 12 bytes a parameter. A sum that waits for the decision of the step
    # before may find no room: 4 more, written and read back. Weights that are pulled are read too.
    steps_bytes, sums_bytes = STEPS * 12 * parameters, STEPS * 4 * parameters
    initial_bytes, pulled_bytes = 12 * parameters, arm["network_bytes"]["out_of_node"]
    read, written = arm["disk_bytes"]["read"], arm["disk_bytes"]["written"] - initial_bytes
    assert steps_bytes <= written <= 1.02 * (steps_bytes + sums_bytes)
    assert 0.85 * steps_bytes <= read <= 1.02 * (steps_bytes + sums_bytes + pulled_bytes)

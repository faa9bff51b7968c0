"""What a switch is for: the node's links carry one gradient and one copy of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import SMALL, compare

STEPS = 20
ROOMY, SMALLER = "1GiB", "256MiB"
"""Memory of a switch of up to 3 workers that also caches all weights, and of one that caches none:
what gradients may take is planned first."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "budget"), [("shm", ROOMY), ("ipc", ROOMY), ("tcp", ROOMY), ("tcp", SMALLER)]
)
def test_bytes_of_the_node_do_not_depend_on_the_number_of_workers(
    transport: str, budget: str, tmp_path: Path
) -> None:
    """Goal: into the node goes one gradient a step, out of it the weights of each step once, for 1
    and for 3 workers, however often these pull them; where the switch has no memory to cache them,
    the pulls of one worker. Method: count payloads at both ends, of the workers and of the node."""
    per_step = {}
    for workers in (1, 3):
        flags = ["--workers", str(workers), "--transport", transport, "--steps", str(STEPS), *SMALL]
        done = compare(tmp_path, *flags, "--switch-memory-budget", budget, name=f"run{workers}")
        found, parameters = done.arm()["network_bytes"], done.document["job"]["parameters"]
        gradient_bytes = weights_bytes = 4 * parameters
        assert found["push"] == workers * STEPS * gradient_bytes
        assert found["into_node"] == pytest.approx(STEPS * gradient_bytes, rel=0.01)
        pulled = found["pull"] / workers
        once = (STEPS + 1) * weights_bytes  # the first weights, and those after each step
        # Over sockets all units but the root are pulled for backward too; shared memory keeps them.
        assert pulled >= (1.0 if transport == "shm" else 1.5) * once
        expected = once if budget == ROOMY else pulled
        assert found["out_of_node"] == pytest.approx(expected, rel=0.01)
        per_step[workers] = [found[way] / STEPS for way in ("into_node", "out_of_node")]
    assert per_step[1] == pytest.approx(per_step[3], rel=0.01)

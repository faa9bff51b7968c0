"""What a switch is for: the node's links carry one gradient and one copy of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import SMALL, compare

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "ipc", "tcp"])
def test_bytes_of_the_node_do_not_depend_on_the_number_of_workers(
    transport: str, tmp_path: Path
) -> None:
    """Goal: into the node goes one gradient a step, out of it the pulls of one worker, for 1 and
    for 3 workers. Method: count payloads at both ends, of the workers and of the node."""
    per_step = {}
    for workers in (1, 3):
        flags = ["--workers", str(workers), "--transport", transport, "--steps", str(STEPS), *SMALL]
        done = compare(tmp_path, *flags, name=f"run{workers}")
        found, parameters = done.arm()["network_bytes"], done.document["job"]["parameters"]
        gradient_bytes = 4 * parameters
        assert found["push"] == workers * STEPS * gradient_bytes
        assert found["into_node"] == pytest.approx(STEPS * gradient_bytes, rel=0.01)
        assert found["out_of_node"] == pytest.approx(found["pull"] / workers, rel=0.01)
        per_step[workers] = [found[way] / STEPS for way in ("into_node", "out_of_node")]
    assert per_step[1] == pytest.approx(per_step[3], rel=0.01)

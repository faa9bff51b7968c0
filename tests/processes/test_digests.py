"""I3, I4 with real processes and torch: the weights at the end are those of plain torch.

Every way to run, in one process: `tests/evidence/digests.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import compare, plain_digest

STEPS = 20
SIZES = ("--layers", "2", "--width", "96", "--context", "16", "--batch", "2")
PARAMETERS = 274_560
STATE_BYTES = 12 * PARAMETERS

pytestmark = pytest.mark.usefixtures("on_the_cpu")


def test_a_state_on_disk_gives_the_digest_of_plain_torch(tmp_path: Path) -> None:
    """I3, I4. Goal: the bits of plain torch after 20 steps, over tcp and through a switch. Method:
    chunks of 4 MiB and the least that a node accepts for them, so that no page stays in RAM: what
    the node read from disk shows it."""
    done = compare(
        tmp_path, "--steps", str(STEPS), *SIZES, "--transport", "tcp", "--chunk", "4MiB",
        "--memory-budget", "56MiB", "--durability", "process",
    )  # fmt: skip
    assert done.document["job"]["parameters"] == PARAMETERS
    arm = done.arm()
    assert arm["disk_bytes"]["read"] / (STEPS * STATE_BYTES) > 0.85
    assert arm["weights_digest"] == plain_digest(STEPS, sizes=SIZES)

"""Train as `workers.train` does, but stop before some steps until a file is there.

    python -m tests.processes.gated_train DIRECTORY STEP,STEP,... OPTIONS OF workers.train ...

Before each of these steps `DIRECTORY/at-STEP` is written, once the step before is decided, and
`DIRECTORY/go-STEP` waited for. A worker that is started again waits for `DIRECTORY/go-again` first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import luwu
from luwu.base.clock import SYSTEM_CLOCK, sleep
from workers import train
from workers.data import Batches

POLL_S = 0.01
LIMIT_S = 90.0


class GatedBatches(Batches):
    """Batches of which some must wait."""

    directory: Path
    steps: frozenset[int]

    def batch(self, step: int, **which: Any) -> Any:
        """One rank's samples of a step."""
        if step in self.steps:
            decided = luwu.session().last_result
            if decided is not None:  # else this worker has been started again
                decided.wait()
            (self.directory / f"at-{step}").touch()
            wait_for(self.directory / f"go-{step}")
        return super().batch(step, **which)


def wait_for(gate: Path) -> None:
    """Wait until somebody has opened it."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
    while not gate.exists():
        assert SYSTEM_CLOCK.now_ns() < end_ns, f"nobody opened {gate}"
        sleep(POLL_S)


def main(arguments: Sequence[str]) -> int:
    """Train; the exit code."""
    GatedBatches.directory = Path(arguments[0])
    GatedBatches.steps = frozenset(int(step) for step in arguments[1].split(","))
    train.Batches = GatedBatches
    started = GatedBatches.directory / f"started-{os.environ['RANK']}"
    if started.exists():
        wait_for(GatedBatches.directory / "go-again")
    started.touch()
    return train.main(arguments[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

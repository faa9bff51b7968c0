"""The job of a script that starts, or of one that another process runs until it would join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.estimate.job import job_of
from luwu.estimate.plan import Estimate, estimate
from luwu.join.connection import PREFETCH_UNITS
from luwu.join.job_file import JOB_FILE, ScriptJob, read_job
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.sizes import Sizes

STDERR: Final = 2
ALONE: Final = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
}  # fmt: skip
"""The environment of a process group of one, where a script makes one."""


def script_job(script: Sequence[str], config: RunConfig, sizes: Sizes) -> ScriptJob:
    """Run a script up to its first forward, without weights. Raises ConfigError."""
    settings = {
        "world_size": config.workers, "chunk_bytes": sizes.chunk_bytes,
        "extent_chunks": sizes.extent_chunks, "prefetch_units": PREFETCH_UNITS,
        "reshard_after_forward": config.reshard_after_forward,
    }  # fmt: skip
    name = script[1] if script[0] == "-m" else script[0]
    with tempfile.TemporaryDirectory(prefix="luwu-estimate-") as folder:
        file = Path(folder) / "job.json"
        done = subprocess.run(
            [sys.executable, "-m", "luwu.estimate.describe", json.dumps(settings), *script],
            check=False, stdout=STDERR, env={**os.environ, **ALONE, JOB_FILE: str(file)},
        )  # fmt: skip
        found = read_job(file, sizes.extent_chunks)
    if found is None and done.returncode != 0:
        raise ConfigError(
            f"{name} failed before its first forward (exit code {done.returncode}), so its job is "
            "not known; its message is above. It ran in one process, with parameters that have "
            "no values"
        )
    if found is None:
        raise ConfigError(
            f"{name} ended before its first forward, so its job is not known; give the arguments "
            "with which it trains a model of luwu.fully_shard"
        )
    return found


class StartedJob:
    """Follows the start of a run; `look` is called often, and reports the estimate once. A job of
    several optimizer nodes has none, and nor has one that its node refuses."""

    def __init__(
        self, run: RunDirectory, config: RunConfig, sizes: Sizes, state: Path | None, *,
        say: Callable[[str], object], detail: Callable[[str], object],
    ) -> None:  # fmt: skip
        """`say` gets the line of the estimate, `detail` the rest."""
        self.estimate: Estimate | None = None
        self._run, self._config, self._sizes, self._state = run, config, sizes, state
        self._say, self._detail = say, detail
        self._is_done = config.optimizer_nodes > 1

    def look(self) -> None:
        """Report the estimate, once rank 0 has written its job."""
        if self._is_done:
            return
        try:
            script = read_job(_file(self._run), self._sizes.extent_chunks)
            if script is None:
                return
            found = estimate(job_of(self._config, self._sizes, script, self._state))
        except LuwuError:
            self._is_done = True  # the node refuses it, and has the reason
            return
        self._is_done, self.estimate = True, found
        self._say(found.line)
        for line in found.details:
            self._detail(line)


def job_environ(run: RunDirectory) -> dict[str, str]:
    """The variable of workers that start, by which rank 0 writes its job into the run."""
    _file(run).unlink(missing_ok=True)
    return {JOB_FILE: str(_file(run))}


def _file(run: RunDirectory) -> Path:
    return run.role("job.json")

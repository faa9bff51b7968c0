"""The job of a script that does not run: another process runs it until it would join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.join.connection import PREFETCH_UNITS
from luwu.join.job_file import JOB_FILE, ScriptJob, read_job
from luwu.launch.serving import Sizes

STDERR: Final = 2
ALONE: Final = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
}  # fmt: skip
"""The environment of a process group of one, where a script makes one."""


def script_job(script: Sequence[str], config: RunConfig, sizes: Sizes) -> ScriptJob:
    """Run a script up to its first forward, without weights. Raises ConfigError."""
    settings = {
        "workers": config.workers, "chunk_bytes": sizes.chunk_bytes,
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

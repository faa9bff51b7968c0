"""The estimate of a job that starts, from what its rank 0 joins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from luwu.base.config import RunConfig
from luwu.base.errors import LuwuError
from luwu.estimate.job import job_of
from luwu.estimate.plan import Estimate, estimate
from luwu.join.job_file import JOB_FILE, read_job
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import Sizes


class StartedJob:
    """Follows the start of a run; `look` is called often, and reports the estimate once.

    A job of several optimizer nodes has none, and nor has one that its node refuses.
    """

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

"""What Ray makes an actor of: one command on one host, its output, and its end.

An actor is told command lines and texts, and answers with texts and numbers: Ray pickles what it
carries (I7; design note 0023). Nothing of the training goes this way: workers, switch and node talk
over LuWu's own connections.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from luwu.launch.processes.children import Child, kill_marked, stop_all
from luwu.launch.processes.console import LogFollower
from luwu.launch.processes.guard import MARK_SUFFIX
from luwu.launch.processes.run_directory import RunDirectory

STOP_PATIENCE_S = 1.2


class Runner:
    """One process under our guard, and a run directory of its own, removed at the end."""

    def __init__(self, work_directory: str) -> None:
        os.chdir(work_directory)  # as if it had been started there
        self._run = RunDirectory.create(Path(tempfile.mkdtemp(prefix="luwu-ray-")) / "run")
        self._run_id = f"ray-{os.getpid()}-{self._run.path.parent.name}"
        self._child: Child | None = None
        self._follower: LogFollower | None = None

    def folder(self) -> str:
        """The run directory, on this host."""
        return str(self._run.path)

    def start(
        self, name: str, module: str, arguments: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        """Start `python -m module arguments` under the guard; its output is that of `name`."""
        log = self._run.log(name)
        self._follower = LogFollower(log)
        guard = [sys.executable, "-m", "luwu.launch.processes.guard", self._run_id]
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("LUWU_")}
        self._child = Child(
            name,
            [*guard, sys.executable, "-m", module, *arguments],
            log=log,
            environ={**inherited, "PYTHONUNBUFFERED": "1", **environ},
        )

    def look(self) -> tuple[int | None, list[str]]:
        """Its exit code, None while it runs, and its new lines."""
        assert self._child is not None
        assert self._follower is not None
        code = self._child.poll()
        return code, self._follower.lines(is_last=code is not None)

    def read(self, name: str) -> str | None:
        """A file of the run directory."""
        try:
            return (self._run.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def stop(self) -> None:
        """End what still runs, and remove what it left."""
        if self._child is not None:
            stop_all([self._child], patience_s=STOP_PATIENCE_S)
        kill_marked(self._run_id + MARK_SUFFIX)
        shutil.rmtree(self._run.path.parent, ignore_errors=True)

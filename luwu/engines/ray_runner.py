"""The class of a Ray actor: one command on one host, its output, and its end.

An actor receives command lines and texts, and answers with texts and numbers: Ray pickles what it
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
from luwu.launch.processes.guard import MARK_SUFFIX
from luwu.launch.processes.relay import Relay
from luwu.launch.processes.run_directory import RunDirectory

STOP_PATIENCE_S = 1.2


class Runner:
    """One process under our guard, and a run directory of its own, removed at the end."""

    def __init__(self, work_directory: str) -> None:
        os.chdir(work_directory)  # as if it had been started there
        self._run = RunDirectory.create(Path(tempfile.mkdtemp(prefix="luwu-ray-")) / "run")
        self._run_id = f"ray-{os.getpid()}-{self._run.path.parent.name}"
        self._child: Child | None = None
        self._log: Path | None = None
        self._log_offset = 0
        self._relay: Relay | None = None
        self._streams: list[tuple[bytes, bool]] = []

    def folder(self) -> str:
        """The run directory, on this host."""
        return str(self._run.path)

    def start(
        self, name: str, module: str, arguments: Sequence[str], environ: Mapping[str, str],
        *, with_streams: bool = False,
    ) -> None:  # fmt: skip
        """Start `python -m module arguments` under the guard; its output is that of `name`.

        `with_streams`: standard output and standard error are also kept apart, for `look`.
        """
        self._log = log = self._run.log(name)
        if with_streams:
            self._relay = Relay(self._run, name, lambda *part: self._streams.append(part))
        guard = [sys.executable, "-m", "luwu.launch.processes.guard", self._run_id]
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("LUWU_")}
        self._child = Child(
            name,
            [*guard, sys.executable, "-m", module, *arguments],
            log=log,
            environ={**inherited, "PYTHONUNBUFFERED": "1", **environ},
        )

    def look(self) -> tuple[int | None, bytes, list[tuple[bytes, bool]]]:
        """Its exit code (None while it runs), what is new in its log, and in its streams.

        Each part of the streams says whether it is of standard error.
        """
        assert self._child is not None
        assert self._log is not None
        code = self._child.poll()
        if self._relay is not None:
            self._relay.look()
        with self._log.open("rb") as log:
            log.seek(self._log_offset)
            new = log.read()
        self._log_offset += len(new)
        streams, self._streams = self._streams, []
        return code, new, streams

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

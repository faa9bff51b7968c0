"""One folder for all that a run leaves behind: what to read, and what to attach to an issue.

    luwu-runs/latest -> 20260314-120003-7f3a/
      resolved.json     every key, its value and who set it
      connect.json      where to join; mode 0600
      processes.json    the processes alive now; rewritten whole at each change
      memory.json       what each process takes and took at most; rewritten every second
      outcome.json      how it ended: exit code and reason
      report.html       the report of the run, once it has ended
      trace.json        the timeline, where luwu trace was asked for it
      logs/             launcher.log (what the command decided and printed), node.log, switch.log,
                        worker-0.log, workers.log; switch-NAME.log in a tree
      events/           node.jsonl, switch.jsonl, worker-0.jsonl
      counters/         node.json, switch.json: messages, bytes and what is held, every second
      errors/           worker-1.json: the traceback of what failed
      roles/            what the processes of the switch and the node were started with; job.json,
                        what rank 0 joined with
      results/          what workers, switches and node measured

Every JSON file is written beside its place and renamed: a reader sees the old one or the new one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import utc_text
from luwu.base.directories import RUNS_DIRECTORY
from luwu.base.errors import ConfigError
from luwu.base.expendable import Expendable
from luwu.base.json_file import read_json, write_json

LATEST: Final = "latest"

RUNNING: Final = ".running"
"""End of the name of a file beside `roles/worker-r.json`, there while the script of r runs: a
worker that ends in its middle leaves it. It is removed at the end, which a full disk allows."""

_FOLDERS = ("logs", "events", "counters", "errors", "roles", "results")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """A process of the run, alive."""

    role: str
    """`worker`, `switch` (in a tree `switch-NAME`) or `node`."""
    rank: int
    pid: int
    started: str
    """UTC."""

    @property
    def name(self) -> str:
        """Its name in logs and events."""
        return f"worker-{self.rank}" if self.role == "worker" else self.role


class RunDirectory:
    """Paths of a run, and its small records."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()  # its name is the mark of the processes, by whatever link
        self._is_named_by_us = False
        self._expendable = Expendable()

    @classmethod
    def create(cls, path: Path | None = None, *, is_shared: bool = False) -> RunDirectory:
        """Make the directory of a new run; `luwu-runs/<time>-<id>` unless one is named.

        `is_shared`: several commands (`luwu up --role ...`) may use the same one. Raises
        ConfigError if it holds a run already. It is the latest from `begin` on.
        """
        if path is None:
            run = cls(RUNS_DIRECTORY / _new_name())
            run._make_folders()
            run._is_named_by_us = True
            return run
        run = cls(path)
        if not is_shared and run.file("resolved.json").exists():
            started = (read_json(run.file("resolved.json")) or {}).get("started", "unknown")
            raise ConfigError(
                f"run_dir: {path} holds the run of {started}; name a new directory, or leave "
                "--run-dir out",
                code="E202",
            )
        run._make_folders()
        return run

    def begin(self) -> None:
        """The run has begun: switch and node listen. Now it is the latest, unless it was named."""
        if self._is_named_by_us:
            _point_latest(self.path)

    @classmethod
    def find(cls, path: Path | None = None) -> RunDirectory:
        """An existing run; the latest unless one is named. Raises ConfigError."""
        wanted = RUNS_DIRECTORY / LATEST if path is None else path
        if not wanted.is_dir():
            hint = (
                "start one with luwu compare, or name its directory"
                if path is None
                else (f"look into {RUNS_DIRECTORY}/")
            )
            raise ConfigError(f"no run in {wanted}; {hint}", code="E202")
        return cls(wanted.resolve())

    def file(self, name: str) -> Path:
        """A file directly in the run directory."""
        return self.path / name

    @property
    def connect_file(self) -> Path:
        """The file by which workers join the run."""
        return self.path / "connect.json"

    def log(self, process: str) -> Path:
        """Output of a process, such as `worker-0`."""
        return self.path / "logs" / f"{process}.log"

    def events(self, process: str) -> Path:
        """Events and spans of a process."""
        return self.path / "events" / f"{process}.jsonl"

    def counters(self, process: str) -> Path:
        """The file with the counters of a switch or node (`switch_emu.process.counting`)."""
        return self.path / "counters" / f"{process}.json"

    def error(self, process: str) -> Path:
        """The file with the error that ended a process."""
        return self.path / "errors" / f"{process}.json"

    def role(self, name: str) -> Path:
        """A file of the switch's or the node's process."""
        return self.path / "roles" / name

    def result(self, name: str) -> Path:
        """A file of measurements."""
        return self.path / "results" / name

    def write_processes(
        self, entries: Sequence[ProcessEntry], name: str = "processes.json"
    ) -> None:
        """Replace `processes.json`, or the one of a role that runs on its own."""
        document = {"schema": 1, "processes": [asdict(entry) for entry in entries]}
        self.keep(self.file(name), document)

    def keep(self, path: Path, document: object) -> None:
        """Write a record that the run can do without; a warning, if that cannot be."""
        with self._expendable.writing(path):
            write_json(path, document)

    def read_processes(self) -> list[ProcessEntry]:
        """The processes last written, of all roles; none if nothing was."""
        files = sorted(self.path.glob("processes*.json"))
        documents = [read_json(file) or {"processes": []} for file in files]
        return [ProcessEntry(**row) for each in documents for row in each["processes"]]

    def _make_folders(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)  # logs and events are nobody else's
            for folder in _FOLDERS:
                (self.path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            raise ConfigError(
                f"cannot make the run directory {self.path}: {exc.strerror}; "
                "name another with --run-dir, or LUWU_RUN_DIR"
            ) from exc


def _new_name() -> str:
    digits = utc_text().translate(str.maketrans("T", "-", "-:Z"))
    return f"{digits}-{secrets.token_hex(2)}"


def _point_latest(path: Path) -> None:
    partial = path.with_name(f".{LATEST}.{secrets.token_hex(4)}")
    partial.symlink_to(path.name)
    os.replace(partial, path.with_name(LATEST))

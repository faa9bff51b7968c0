"""The processes that start workers for a session of pytest (`starter.py`), and what they started.

A worker must find what its test has changed: variables (`monkeypatch.setenv`), limits, processors.
A forked process inherits these from its starter, so there is one starter for each set of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from luwu.base.closing import Closing
from luwu.base.config import ENVIRONMENT_PREFIX
from luwu.base.json_file import read_json
from luwu.launch.processes.children import MARK, Child, exit_text, stop_all, wait_for_end
from luwu.launch.processes.forked import NO_MARK
from luwu.launch.processes.run_directory import RunDirectory

STARTERS_MAX: Final = 3
"""Kept at most for workers to come, each with torch in its memory."""
_OF_A_WORKER: Final = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTEST_CURRENT_TEST",
)  # fmt: skip
"""Variables that differ between workers, or between tests. Like our own, no import reads them."""
_LIMITS: Final = tuple(
    getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")
)


class Starters(Closing):
    """Starters by the circumstances that their workers find."""

    def __init__(self, directory: Path) -> None:
        """`directory`: for their logs."""
        self._directory = directory
        self._count = 0
        self._starters: dict[object, Child] = {}
        """The one that was used last is the last."""
        self._leaving: list[Child] = []

    def start(
        self, run: RunDirectory, name: str, mark: str, entry: Sequence[str],
        environ: Mapping[str, str],
    ) -> Started:  # fmt: skip
        """Start a guard of that name and its worker, which runs the entry with these arguments."""
        log = run.log(name)
        started = Started(self._starter(environ), run.role(f"{name}.ended"))
        started.ask(
            mark=mark, entry=list(entry), environ=dict(environ), directory=os.getcwd(), log=str(log)
        )
        return started

    def close(self) -> None:
        """End them, and with them what they started."""
        stop_all([*self._starters.values(), *self._leaving], patience_s=0)

    def _starter(self, environ: Mapping[str, str]) -> Child:
        kept = {
            name: value
            for name, value in environ.items()
            if not name.startswith(ENVIRONMENT_PREFIX) and name not in _OF_A_WORKER
        }
        circumstances = (tuple(sorted(kept.items())), _inherited())
        found = self._starters.pop(circumstances, None)
        if found is None or found.poll() is not None:
            if len(self._starters) == STARTERS_MAX:
                self._leaving.append(self._starters.pop(next(iter(self._starters))))
                _ask(self._leaving[-1], {})
            self._count += 1
            found = Child(
                "starter", [sys.executable, "-m", "luwu.testing.starter"],
                log=self._directory / f"starter-{self._count}.log", environ={**kept, MARK: NO_MARK},
            )  # fmt: skip
        self._starters[circumstances] = found
        return found


class Started:
    """A guard that a starter has begun, or will when it can; used as a `Child`."""

    def __init__(self, starter: Child, ended: Path) -> None:
        self._starter, self._ended = starter, ended
        self._code: int | None = None
        self.loss: str | None = None
        """Why it has ended, if the starter was lost."""

    def ask(self, **request: object) -> None:
        """Send the starter a request for this guard."""
        _ask(self._starter, {**request, "ended": str(self._ended)})

    def poll(self) -> int | None:
        """The guard's exit code; None while it runs. It ends with the starter, and as that does."""
        if self._code is None:
            starter = self._starter.poll()
            found = read_json(self._ended)
            if found is not None:
                self._code = found["code"]
            elif starter is not None:
                self._code = starter
                self.loss = (
                    f"the process that starts workers (pid {self._starter.pid}) ended with "
                    f"{exit_text(starter)}, and they with it; log {self._starter.log}"
                )
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            self.ask(signal=number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None if it still runs after `timeout_s`."""
        return wait_for_end(self.poll, timeout_s)


def _ask(starter: Child, request: Mapping[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, as those who wait will see
        starter.send_line(json.dumps(request))


def _inherited() -> tuple[object, ...]:
    """All that a child process inherits, apart from its environment and its directory."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    mask = next(line for line in status if line.startswith("Umask:"))
    return (
        mask, tuple(sorted(os.sched_getaffinity(0))), os.nice(0),
        *(resource.getrlimit(each) for each in _LIMITS),
    )  # fmt: skip

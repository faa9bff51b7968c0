"""Starts the workers of `luwu_run`, each below a guard of its own.

    python -m luwu.testing.starter          a line of JSON on standard input is a request

A session of pytest keeps this process for all tests whose workers find the same circumstances
(`starters.py`). Guards and workers are forked, and are there in milliseconds. Once a worker has
imported torch, it is imported here while nothing runs, and those that come need no 1.3 s for it:
their own import finds what it would have found, or they begin as programs (`torch_import.py`).
A request's fields:

    ended       the file to be written when a guard has ended, with its `code`
    mark, entry, environ, directory, log
                a guard to start; its marked worker runs the entry with these arguments, in this
                environment and directory, and what the guard says goes to the log
    signal      or a signal, for the guard that was asked for with this `ended`

An empty object says that no request will come: this process ends when no guard is left. When
standard input ends, it ends at once, and so do the guards.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from luwu.base.json_file import read_json, write_json
from luwu.base.torch_import import starts_by_user_code
from luwu.launch import entry
from luwu.launch.prepared import PreparedEntry
from luwu.launch.processes.forked import Forked, MarkedMemory
from luwu.launch.processes.guard import MARK_SUFFIX, stand_over
from luwu.launch.processes.run_directory import RunDirectory

_POLL_MS: Final = 10


class _Guard(NamedTuple):
    process: Forked
    worker_ended: Path
    """The file that its worker writes when it ends."""


class Starter:
    """See the module."""

    def __init__(self) -> None:
        self._memory = MarkedMemory()
        self._run_entry = PreparedEntry().run if starts_by_user_code() else entry.main
        self._is_torch_used = False
        self._guards: dict[str, _Guard] = {}
        self._is_last = False
        self._lifeline, self._alive = os.pipe()
        """Guards read the one, which ends when the other is closed: with this process."""

    def run(self) -> None:
        """Serve requests until standard input ends, or no request and no guard is left."""
        requests = select.poll()
        requests.register(0, select.POLLIN)
        rest = b""
        while self._guards or not self._is_last:
            if requests.poll(_POLL_MS if self._guards else None):
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
            self._look()
            if self._is_torch_used and self._run_entry is entry.main and not self._guards:
                self._run_entry = PreparedEntry().run

    def _handle(self, request: dict[str, Any]) -> None:
        if not request:
            self._is_last = True
            return
        ended = request["ended"]
        if "signal" not in request:
            process = Forked(functools.partial(self._guard, request), {})
            worker = RunDirectory(Path(request["entry"][0])).role(
                f"worker-{request['environ']['RANK']}.ended"
            )
            self._guards[ended] = _Guard(process, worker)
        elif ended in self._guards:
            self._guards[ended].process.send_signal(signal.Signals(request["signal"]))

    def _look(self) -> None:
        """Tell of guards that have ended."""
        for ended, guard in list(self._guards.items()):
            if (code := guard.process.poll()) is not None:
                del self._guards[ended]
                said = read_json(guard.worker_ended)
                self._is_torch_used |= said is not None and said["torch"]
                with contextlib.suppress(FileNotFoundError):  # the test has removed its directory
                    write_json(Path(ended), {"code": code})

    def _guard(self, request: dict[str, Any]) -> None:
        """In a guard: start its worker and stand over it."""
        os.setsid()
        os.close(self._alive)
        os.dup2(self._lifeline, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.chdir(request["directory"])
        os.environ.clear()
        mark = request["mark"] + MARK_SUFFIX
        worker = Forked(functools.partial(self._work, mark, request["entry"]), request["environ"])
        code = stand_over(worker, mark)
        sys.stderr.flush()
        os._exit(code)  # the end of Python, and of torch, would take a third of a second

    def _work(self, mark: str, arguments: list[str]) -> None:
        """In a worker: run the entry."""
        self._memory.write(mark)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        self._run_entry(arguments)


if __name__ == "__main__":
    Starter().run()

"""Runs a command so that none of its processes outlives the launcher.

    python -m luwu.launch.processes.guard RUN_ID COMMAND ...

What workers start may have a session of its own, so no signal to a group reaches all. The guard
finds them by the mark in their environment, and kills them when it is asked to stop, when the
launcher is gone, and when the command has ended and left some behind; what was left, it reports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import STOP_SIGNALS
from luwu.base.expendable import print_if_possible
from luwu.base.lifeline import watch
from luwu.launch.processes.children import MARK, command_of, kill_marked, marked_processes

MARK_SUFFIX: Final = ".workers"
"""Workers bear the run's mark with this at its end, so that stopping them spares the roles."""
PATIENCE_S: Final = 0.6
_POLL_S: Final = 0.02
LEFT: Final = "left behind: "
"""Begins a line of our log that names what the command left."""


def guarded(run_id: str, command: Sequence[str]) -> list[str]:
    """A command under the guard of a run."""
    return [sys.executable, "-m", "luwu.launch.processes.guard", run_id, *command]


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code, 128 + N for signal N."""
    mark = arguments[0] + MARK_SUFFIX
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in STOP_SIGNALS:
        signal.signal(number, stop)

    def orphaned() -> None:
        kill_marked(mark)
        os._exit(1)

    watch(orphaned)
    environ = {**os.environ, MARK: mark}
    process = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL, env=environ)
    while process.poll() is None and not stopping.is_set():
        sleep(_POLL_S)
    if stopping.is_set():
        _ask_to_stop(mark)
    else:
        _report_leftovers(mark)
    kill_marked(mark)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _report_leftovers(mark: str) -> None:
    """The command has ended; processes of its own that are about to end are no news."""
    _wait_for_end(mark)
    for pid in marked_processes(mark):
        print_if_possible(f"{LEFT}process {pid} ({command_of(pid)})")


def _ask_to_stop(mark: str) -> None:
    for pid in marked_processes(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    _wait_for_end(mark)


def _wait_for_end(mark: str) -> None:
    end_ns = SYSTEM_CLOCK.now_ns() + int(PATIENCE_S * 1e9)
    while marked_processes(mark) and SYSTEM_CLOCK.now_ns() < end_ns:
        sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

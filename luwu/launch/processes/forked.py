"""A child that goes on where this process is, in the middle of a call; used as `subprocess.Popen`.

It has all that was imported here, and begins in milliseconds. The kernel shows its environment as
that of the program that was started last; `MarkedMemory` changes the mark of a run in it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Final

from luwu.base.libc import variable_address, write_bytes
from luwu.launch.processes.children import MARK, wait_for_end

NO_MARK: Final = "-" * 320
"""The mark of a program that writes it later: longer than any."""


class MarkedMemory:
    """Where the kernel reads the mark of this process: in the memory it was started with."""

    def __init__(self) -> None:
        assert os.environ[MARK] == NO_MARK, "started without a place for its mark"
        self._address = variable_address(MARK)

    def write(self, run_id: str) -> None:
        """Change the mark, and that of children to come."""
        mark = run_id.encode()
        assert len(mark) <= len(NO_MARK), run_id
        os.environ[MARK] = run_id
        write_bytes(self._address, mark.ljust(len(NO_MARK), b"\0"))


class Forked:
    """A child process that calls `work`, with `environ` beside our variables, and ends with it."""

    def __init__(self, work: Callable[[], None], environ: Mapping[str, str]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self._code: int | None = None
        if self.pid == 0:
            os.environ.update(environ)
            work()
            sys.exit()  # through our callers, so that Python ends as always

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None if it still runs after `timeout_s`."""
        return wait_for_end(self.poll, timeout_s)

    def kill(self) -> None:
        """End it, and return when it has ended."""
        self.send_signal(signal.SIGKILL)
        if self._code is None:
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)

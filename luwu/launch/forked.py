"""Workers that an agent forks where it is, in the middle of a call; torch is imported once for all.

A forked worker begins in milliseconds, and its own import of torch finds what it would have found,
or it begins as a program of its own (`torch_import.py`).
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from luwu.base.torch_import import import_for_children
from luwu.launch import entry
from luwu.launch.processes.children import wait_for_end


class PreparedEntry:
    """Imports torch when it is made, or finds out that children must do so themselves."""

    def __init__(self) -> None:
        self._torch = import_for_children()

    def run(self, arguments: Sequence[str]) -> None:
        """In a child: run the entry, or begin as a program of its own that does."""
        start_program = functools.partial(_start_program, arguments)
        if self._torch is None:
            start_program()
        else:
            offer = functools.partial(self._torch.offer, otherwise=start_program)
            entry.main(arguments, before_script=offer)


def _start_program(arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", entry.__name__, *arguments])


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

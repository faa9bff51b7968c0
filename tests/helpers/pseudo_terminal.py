"""A program in a pseudo-terminal: what it shows a person, and what a person types."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing

POLL_S = 0.2


class PseudoTerminal(Closing):
    """A program whose standard input, output and error are one terminal of 80 columns."""

    def __init__(self, command: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> None:
        self.shown = ""
        """All that it has printed, with its control characters."""
        self._end, theirs = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=theirs, stderr=theirs,
            cwd=cwd, env={"COLUMNS": "80", **environ},
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        """Type a text, with its control characters."""
        os.write(self._end, text.encode())

    def wait_for(self, pattern: str, *, limit_s: float = 60.0) -> str:
        """What it printed until the pattern matched; later calls begin after it. Fails at the end
        of the program, or of the time."""
        limit_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        new, is_open = "", True
        while not re.search(pattern, new, re.DOTALL):
            assert is_open, f"{pattern!r} is not in {new!r}, and the program has ended"
            assert SYSTEM_CLOCK.now_ns() < limit_ns, f"{pattern!r} is not in {new!r}"
            data, is_open = self._read()
            new += data
        return new

    def end(self, *, limit_s: float = 60.0) -> int:
        """Read to the end; its exit code."""
        limit_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while self._read()[1]:
            assert SYSTEM_CLOCK.now_ns() < limit_ns, f"it has not ended: {self.shown!r}"
        return self._process.wait(timeout=limit_s)

    def close(self) -> None:
        """Kill it if it runs."""
        self._process.kill()
        self._process.wait()
        os.close(self._end)

    def _read(self) -> tuple[str, bool]:
        """What is new, after a while, and whether more may come."""
        if not select.select([self._end], [], [], POLL_S)[0]:
            return "", True
        try:
            data = os.read(self._end, 65536).decode(errors="replace")
        except OSError:  # nobody has the other end any more
            data = ""
        self.shown += data
        return data, bool(data)

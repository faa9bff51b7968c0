"""strace at work on a process that runs: which calls touch the state, and one of them refused.

A *call* is known by the thread that makes it, its name, and its number among the calls of that
name by that thread: strace counts so. SIGKILL at a call's entry ends the process before the call is
made; SIGABRT, whose action is to die with a core, ends it when the call has been made and before
the process sees a result. An error is the kernel's own: the call is not made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from luwu.launch.processes.children import is_alive
from tests.syscalls.story import wait_until

Fault = Literal["kill before", "kill after", "EIO", "ENOSPC"]

WRITES = (
    "fallocate", "fdatasync", "fsync", "ftruncate", "mkdir", "mkdirat", "pwrite64", "pwritev",
    "pwritev2", "rename", "renameat", "renameat2", "unlink", "unlinkat", "write",
)  # fmt: skip
READS = ("flock", "openat", "pread64", "preadv", "preadv2", "read")

_LINE = re.compile(r"^(\d+) +(\w+)\((.*)")
_PATH = re.compile(r'[<"](/[^<>"]*)[>"]')
_FOR_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT")


def is_installed() -> bool:
    """Whether there is a strace, and it may trace here."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-o", "/dev/null", "true"], capture_output=True, check=False, timeout=30
    )
    return tried.returncode == 0


@dataclass(frozen=True)
class Call:
    """One system call of one run."""

    thread: int
    name: str
    number: int
    """Among those of this name by this thread, from 1."""
    path: str
    is_write: bool
    """It changes what is on the disk, or may."""

    def __str__(self) -> str:
        return f"{self.name} {self.number} on {Path(self.path).name}"


class Tracer:
    """strace on all threads of a process, from when this returns until the process ends."""

    def __init__(self, pid: int, flags: Sequence[str], log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", str(log), *flags, "-p", str(pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_until(lambda: self._is_attached(pid), "strace to attach")
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            raise OSError(f"strace: {self._process.stderr.read().decode(errors='replace')}")

    def _is_attached(self, pid: int) -> bool:
        """It has ended, or has all threads and nothing to do, so each was stopped for it once."""
        if self._process.poll() is not None:
            return True
        return _is_traced(pid) and _is_asleep(self._process.pid) and _is_traced(pid)

    def lines(self) -> list[str]:
        """What it has written down, when it has ended."""
        self._process.communicate(timeout=30)
        return self._log.read_text(errors="replace").splitlines()

    def end(self) -> None:
        """Stop it, whatever it does."""
        self._process.kill()
        self._process.communicate()


def watch(pid: int, log: Path) -> Tracer:
    """Write down every call that might touch a state."""
    names = ",".join(f"?{name}" for name in (*WRITES, *READS))
    return Tracer(pid, ["-y", "-s", "256", "-e", f"trace={names}", "-e", "signal=none"], log)


def inject(pid: int, log: Path, call: Call, fault: Fault, paths: Iterable[str]) -> Tracer:
    """Let one call fail; `paths` are those that are counted."""
    what = {"kill before": "signal=KILL", "kill after": "signal=ABRT"}.get(fault, f"error={fault}")
    flags = ["-e", f"trace={call.name}", "-e", "signal=none"]
    flags += ["-e", f"inject={call.name}:{what}:when={call.number}"]
    for path in paths:
        flags += ["-P", path]
    return Tracer(pid, flags, log)


def calls_in(lines: Iterable[str], is_counted: Callable[[str], bool]) -> list[Call]:
    """The calls on files whose path is counted, in the order in which they were made."""
    counts: Counter[tuple[int, str]] = Counter()
    calls = []
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:  # a signal, or the second half of a call
            continue
        thread, name, rest = int(matched[1]), matched[2], matched[3]
        paths = [path for path in _PATH.findall(rest) if is_counted(path)]
        if not paths or "(deleted)" in rest:
            continue
        counts[thread, name] += 1
        is_write = name in WRITES or (name == "openat" and bool(_FOR_WRITING.search(rest)))
        is_write &= " = -1 E" not in rest  # a directory that is there already, say
        calls.append(Call(thread, name, counts[thread, name], paths[0], is_write))
    return calls


def _is_traced(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        states = [Path(f"/proc/{pid}/task/{task}/status").read_text() for task in tasks]
    except OSError:
        return not is_alive(pid)  # else a thread has just ended
    return all("TracerPid:\t0\n" not in state for state in states)


def _is_asleep(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "S"

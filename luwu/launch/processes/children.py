"""Processes we start: each ends when we do, however we end, and nothing of it is left.

A child's standard input is a pipe whose other end we alone hold. When we are gone, even by SIGKILL,
it reads the end of the file and exits (`lifeline.py`). It has a session of its own, so Ctrl-C in
our terminal reaches us alone, and we stop the others in order.

The kernel's account of a process can be read until it is reaped, so an exited child is first
looked at (`waitid` with WNOWAIT), its bytes are noted, and only then is it collected.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep, utc_text
from luwu.base.errors import STOPPED_CODE, ConfigError, refusing
from luwu.base.process_memory import private_bytes

MARK: Final = "LUWU_RUN_ID"
"""The variable of the environment by which processes of a run are found."""
_POLL_S: Final = 0.01
_KILL_S: Final = 5.0
"""Time in which `kill_marked` finds no process any more."""


@dataclass(slots=True)
class DiskBytes:
    """The kernel's count of what a process read from and wrote to block devices."""

    read: int = 0
    written: int = 0


class Child:
    """One process, with its log."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str]
    ) -> None:
        self.name, self.log = name, log
        self.started = utc_text()
        self.disk = DiskBytes()
        with refusing(f"the log of {name}"), log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    list(command), stdin=subprocess.PIPE, stdout=output, stderr=output,
                    env=dict(environ), start_new_session=True,
                    bufsize=0,  # a line that is not read must not be written again at the end
                )  # fmt: skip
            except OSError as exc:
                raise ConfigError(f"cannot start {name} ({command[0]}): {exc}") from exc
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._process.returncode is None and self._has_exited():
            self.note_disk()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
        return self._process.returncode

    def note_disk(self) -> None:
        """Keep what the kernel has counted so far, where it says."""
        try:
            text = Path(f"/proc/{self.pid}/io").read_text(encoding="ascii")
        except OSError:
            return
        rows = dict(line.split(": ", 1) for line in text.splitlines())
        self.disk = DiskBytes(int(rows["read_bytes"]), int(rows["write_bytes"]))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def send_line(self, line: str) -> None:
        """Send a line to its standard input. Raises BrokenPipeError if it reads no more."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def _has_exited(self) -> bool:
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:
            return True


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

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def stop_all(children: Sequence[Child] | Sequence[Forked], *, patience_s: float) -> None:
    """Ask each to stop, wait a little for all, then kill."""
    for child in children:
        child.signal(signal.SIGTERM)
    end_ns = SYSTEM_CLOCK.now_ns() + int(patience_s * 1e9)
    for child in children:
        wait_for_end(child, max(0.0, (end_ns - SYSTEM_CLOCK.now_ns()) / 1e9))
    for child in children:
        child.signal(signal.SIGKILL)
    for child in children:
        wait_for_end(child, 5.0)


def wait_for_end(child: Child | Forked, timeout_s: float) -> int | None:
    """Its exit code, or None if it still runs after `timeout_s`."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(timeout_s * 1e9)
    while (code := child.poll()) is None and SYSTEM_CLOCK.now_ns() < end_ns:
        sleep(_POLL_S)
    return code


def exit_text(code: int) -> str:
    """`exit code 3`, or `signal SIGKILL`."""
    if code == STOPPED_CODE:
        return "a signal to stop, before the job was over"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def end_text(code: int) -> str:
    """How a worker was lost: as `exit_text`; with code 0, it ended in the middle of its script."""
    said = "exit code 0 in the middle of its script (os._exit?), without leaving the job"
    return exit_text(code) if code else said


# ---------------------------------------------------------------------- what /proc tells


def is_alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def is_of_run(pid: int, run_name: str) -> bool:
    """True if the process is alive and bears a run's mark: a number may be another's by now."""
    mark = f"{MARK}={run_name}-".encode()
    return is_alive(pid) and any(each.startswith(mark) for each in _variables(pid))


def _variables(pid: int) -> list[bytes]:
    """The environment of a process as it began; nothing if it is gone, or not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_of(pid: int) -> str:
    """The start of a process's command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def marked_processes(run_id: str) -> list[int]:
    """Processes whose environment carries the mark of a run; ourselves excepted."""
    mark = f"{MARK}={run_id}".encode()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    others = (pid for pid in pids if pid != os.getpid())
    return [pid for pid in others if mark in _variables(pid) and is_alive(pid)]


def kill_marked(run_id: str) -> int:
    """Kill every process that carries the mark; how many there were."""
    count = 0
    end_ns = SYSTEM_CLOCK.now_ns() + int(_KILL_S * 1e9)
    while SYSTEM_CLOCK.now_ns() < end_ns:  # one that forks while we look is found the next time
        pids = marked_processes(run_id)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += 1
        sleep(0.01)
    return count


# ---------------------------------------------------------------------- malloc of what is started

# GLIBC_TUNABLES; other systems ignore them. What is freed stays with the process, up to 256 MiB,
# for whichever thread asks next, and in huge pages where the system gives them; else it is given
# back to the kernel, and cleared page by page when it comes again. So a process keeps what it once
# needed, and never more than that.
#
# Workers free gradients and activations (weights are no part of the heap: `base/address_range.py`).
# A step of 25 M parameters in RAM, 4 workers of 32 tokens, 2 cores, twice in turn: 315 and 298 ms
# with the copies' setting alone, 315 and 297 with the thresholds, 294 and 279 with one arena too,
# 295 and 280 with huge pages too.
#
# Switch and node free messages: libzmq's I/O thread has taken the memory, our loop gives it back.
# Exchange of 25 M parameters in bfloat16 over ipc, 4 workers, three times in turn: 268, 278 and 251
# ms without any setting at the switch, 251, 258 and 244 with the thresholds, 248, 232 and 242 with
# one arena too. At the node 240, 262 and 213 ms without any setting, 216, 249 and 194 with all.
# What a process keeps it once held, which is what its budget counts.
#
# The launcher is not started by us and asks for one arena itself (`libc.keep_one_arena`).

_KEEPING = (
    "glibc.malloc.hugetlb=1",
    "glibc.malloc.mmap_threshold=33554432",
    "glibc.malloc.trim_threshold=268435456",
    "glibc.malloc.arena_max=1",
)

ROLE_TUNABLES: Final = ":".join(_KEEPING)

WORKER_TUNABLES: Final = ":".join(("glibc.cpu.x86_non_temporal_threshold=0x80000", *_KEEPING))
"""Setting of all workers of all arms. A copy from 512 KiB on bypasses the cache: its destination is
not read first (measured, two threads: 26 GB/s without, 35 to 45 with). glibc decides by the size of
the cache, which on virtual machines may be that of a whole host."""


SAMPLES_PER_S: Final = 10


class MemorySampler:
    """Samples the memory of given processes ten times a second, in a thread of its own: peaks of
    `private_bytes`, as memory.json has them.

        {"schema": 1, "peak_bytes": {"node": 60928000, "worker-0": ...},
         "now_bytes": {...}, "peak_bytes_of_all": 569405440}
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        """The largest sample of each name. What the thread finds replaces the whole."""
        self.peak_of_all = 0
        """The largest sum over all processes at one instant."""
        self._pids: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luwu-memory", daemon=True)
        self._thread.start()

    def watch(self, processes: Mapping[str, int]) -> None:
        """Sample these from now on, by name; a name keeps its peak over restarts."""
        self._pids = dict(processes)

    def document(self) -> dict[str, Any]:
        """The peaks, and the last sample of each process that is alive."""
        return {
            "schema": 1, "peak_bytes": self.peaks, "now_bytes": self._now,
            "peak_bytes_of_all": self.peak_of_all,
        }  # fmt: skip

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()
        self._now = {}

    def _run(self) -> None:
        while not self._stop.wait(1 / SAMPLES_PER_S):
            found = {name: private_bytes(pid) for name, pid in self._pids.items()}
            now = {name: count for name, count in found.items() if count is not None}
            peaks = {name: max(count, self.peaks.get(name, 0)) for name, count in now.items()}
            self._now, self.peaks = now, {**self.peaks, **peaks}
            self.peak_of_all = max(self.peak_of_all, sum(now.values()))

"""What a soak sees of each process, every five seconds, and what of it is growth.

Two numbers tell of memory. *Allocated* is what `malloc` has given and not got back, with all of
Python's objects among it; each process says it of itself (`soak_site/sitecustomize.py`). *Resident*
is what the kernel has given it, without files and shared memory.

A leak shows in what is allocated, as a slope. Processes are killed every few minutes, so it is that
of each process against its own mean, all lifetimes of a kind together: one slope with an intercept
for each lifetime.

What is resident goes up for minutes, by a page here and there of a heap that was larger than needed
for a moment: of that there is a limit for a lifetime (design note 0030).
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.testing.cluster import Cluster

SITE: Final = Path(__file__).resolve().parent / "soak_site"
SAMPLE_S: Final = 5.0
"""As often as a process says what it has allocated."""
WARM_S: Final = 60.0
"""Of a lifetime that is left out; from so long a one on, descriptors are compared."""
FILLED_S: Final = 120.0
"""Until the pages of a heap have been written: the same of what is resident; a worker takes 100."""
ENOUGH_S: Final = 900.0
"""Seconds of lifetimes of one kind from which on a slope can be called a violation."""
HOURLY: Final = 3600 / 2**20
"""MiB an hour of a byte a second."""
SLOPE_MAX: Final = 1 / HOURLY
"""Bytes allocated per second."""
RESIDENT_MAX_BYTES: Final = 2**20
"""By which what is resident may grow in a lifetime from then on."""
WINDOW: Final = 6
"""Samples at the end of a lifetime that count as its end, and the fewest that make a slope."""
EVENTS_ONCE: Final = 8
"""Events that may come late: pyzmq makes a context with 7 of them at the first send without a copy,
and keeps it."""


@dataclass
class Lifetime:
    """Samples of one process."""

    kind: str
    times_s: list[float] = field(default_factory=list)
    allocated_bytes: list[int] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    """Files, sockets, pipes and shared memory."""
    events: list[int] = field(default_factory=list)
    """Descriptors without a name: eventfd, epoll."""

    def first_after(self, age_s: float) -> int:
        """The first sample at such an age; the number of samples if there is none."""
        return bisect_left(self.times_s, self.times_s[0] + age_s)

    def text(self) -> str:
        """How long it lasted, and what was allocated when it was warm and at the end."""
        memory = [f"{nbytes / 2**20:.2f}" for nbytes in self.allocated_bytes]
        warm = self.first_after(WARM_S)
        first = f"{memory[warm]} to " if warm < len(memory) else ""
        return f"{self.times_s[-1] - self.times_s[0]:.0f} s {first}{memory[-1]} MiB"

    def growths(self) -> list[str]:
        """What became too much of it, other than what is allocated."""
        found = []
        resident = self.resident_bytes[self.first_after(FILLED_S) :]
        if len(resident) >= WINDOW:
            grown_bytes = min(resident[-WINDOW:]) - resident[0]
            if grown_bytes > RESIDENT_MAX_BYTES:
                found.append(
                    f"{grown_bytes / 2**20:.2f} MiB more are resident than at {FILLED_S:.0f} s"
                )
        if self.times_s[-1] - self.times_s[0] >= WARM_S:
            # In its first half each peer was there once, though one may be away when it begins.
            for name, counts, once in (
                ("descriptors", self.descriptors, 0), ("events", self.events, EVENTS_ONCE)
            ):  # fmt: skip
                first, last = max(counts[: len(counts) // 2]), min(counts[-WINDOW:])
                if last > first + once:
                    found.append(f"{last} {name} at its end, {first} at most in its first half")
        return [f"{self.kind}: {text}" for text in found]


@dataclass(frozen=True)
class Slope:
    """How what is allocated by one kind of process grows."""

    bytes_per_s: float
    error: float
    """Standard error."""
    seconds: float
    """Of lifetimes that were looked at."""

    @property
    def is_violation(self) -> bool:
        """Above the limit beyond doubt, and seen for long enough."""
        return self.seconds >= ENOUGH_S and self.bytes_per_s - 2 * self.error > SLOPE_MAX

    def __str__(self) -> str:
        hourly, error = self.bytes_per_s * HOURLY, self.error * HOURLY
        return f"{hourly:+.2f} MiB/h, standard error {error:.2f}, over {self.seconds:.0f} s"


def slope_of(lifetimes: Sequence[Lifetime]) -> Slope | None:
    """One slope for all, with an intercept for each; None if there is too little to say."""
    xs, ys, seconds, intercepts = [], [], 0.0, 0
    for life in lifetimes:
        warm = life.first_after(WARM_S)
        times, memories = life.times_s[warm:], life.allocated_bytes[warm:]
        if len(times) < WINDOW:
            continue
        x_mean, y_mean = math.fsum(times) / len(times), math.fsum(memories) / len(times)
        xs += [time_s - x_mean for time_s in times]
        ys += [memory - y_mean for memory in memories]
        seconds += times[-1] - times[0]
        intercepts += 1
    spread = math.fsum(x * x for x in xs)
    freedom = len(xs) - intercepts - 1
    if not spread or freedom < 1:
        return None
    slope = math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / spread
    rest = math.fsum((y - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Slope(slope, math.sqrt(rest / freedom / spread), seconds)


class Sampler:
    """Looks at all processes of a run, every few seconds."""

    def __init__(self, cluster: Cluster, said: Path) -> None:
        """`said`: where processes say what they have allocated, a file each."""
        self.lifetimes: dict[int, Lifetime] = {}
        self._cluster = cluster
        self._said = said
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> list[Lifetime]:
        """No more samples; what there is."""
        self._stopping.set()
        self._thread.join()
        return list(self.lifetimes.values())

    def _watch(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            self._sample(self._cluster.pid, "launcher")
            for entry in self._cluster.processes():
                self._sample(entry.pid, entry.role)

    def _sample(self, pid: int, kind: str) -> None:
        resident = _anonymous_bytes(pid)
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                targets = [_target(entry.path) for entry in entries]
            allocated = (self._said / str(pid)).read_text(encoding="ascii")
        except OSError:
            return  # it has just ended, or just begun
        if not resident or not allocated.endswith("\n"):  # the same, or it is writing
            return
        life = self.lifetimes.setdefault(pid, Lifetime(kind))
        life.times_s.append(SYSTEM_CLOCK.now_ns() / 1e9)
        life.allocated_bytes.append(int(allocated))
        life.resident_bytes.append(resident)
        events = sum(target.startswith("anon_inode:") for target in targets)
        life.descriptors.append(len(targets) - events)
        life.events.append(events)


def said_by_processes(said: Path) -> dict[str, str]:
    """The environment in which each Python says what it has allocated."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONMALLOC": "malloc", "SOAK_MEMORY": str(said)}


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _anonymous_bytes(pid: int) -> int | None:
    """Memory of a process that is neither a file's nor shared: RssAnon; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    lines = (line for line in text.splitlines() if line.startswith("RssAnon:"))
    return sum(int(line.split()[1]) * 1024 for line in lines)

"""Train for long with a fault every half minute, and see that nothing is lost and nothing grows.

    python -m tests.soak --minutes 30
    python -m tests.soak --minutes 2 --every 10s --seed 7

A soak is one run after the other, of about ten minutes each, with workers, transport and tree drawn
from the seed. Faults are those of `luwu chaos`: SIGKILL to node, switches and workers, stalls of a
second. Checked of each run:

- what `luwu chaos` checks: steps go on by one, after every fault, and the run ends well;
- the weights have the digest of a run of the same steps that nobody disturbed;
- no process, socket, segment or temporary file is left;
- descriptors of no process grow, nor do the files of the run and of its state;
- memory grows by less than 1 MiB an hour.

Processes are killed every few minutes, so memory is that of each process against its own mean, all
lifetimes of a kind together: one slope with an intercept for each lifetime, from its third minute
on. Half an hour of that is enough to call it a violation; before, the slope is only told.

What fills once and then stays is no growth (design note 0030). Huge pages are off: where an
allocator asks for them, memory grows by 2 MiB when the kernel makes one of a heap, early or late,
once, and in half an hour that looks like some MiB an hour.

A trial is a fault. The last line is the verdict; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import sys
import tempfile
import threading
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from luwu.base.quantities import parse_ns
from luwu.base.seeds import derive
from luwu.launch.chaos.job import cast_of, config_of, rules_of
from luwu.launch.chaos.outlook import outlooks
from luwu.launch.chaos.plan import Wish, draw
from luwu.launch.chaos.work import Chaos
from luwu.launch.children import private_bytes
from luwu.testing.cluster import Cluster
from tests.kill import TREE, TREE_WORKERS, check_clean
from tests.processes.jobs import SMALL, Outside, text_file

RUN_MINUTES: Final = 10.0
SAMPLE_S: Final = 1.0
WARM_S: Final = 120.0
"""Of a lifetime that is left out: caches fill, and the allocator finds its size, which takes a
worker of torch 100 s."""
SETTLED_S: Final = 60.0
"""From so long a lifetime on, descriptors are compared."""
ENOUGH_S: Final = 1800.0
"""Seconds of lifetimes of one kind from which on a slope can be called a violation."""
HOURLY: Final = 3600 / 2**20
"""MiB an hour of a byte a second."""
SLOPE_MAX: Final = 1 / HOURLY
"""Bytes per second."""
WINDOW: Final = 10
"""Samples at the end of a lifetime whose descriptors count, and the fewest that make a slope."""
EVENTS_ONCE: Final = 8
"""Events that may come late: pyzmq makes a context with 7 of them at the first send without a copy,
and keeps it."""
COMPUTE_MS: Final = 20.0
"""Makes a step last: what is disturbed is a run like a user's, not a loop at full speed."""
LEARNING_STEPS: Final = 40
RESTARTS: Final = 100_000
PR_SET_THP_DISABLE: Final = 41
"""<linux/prctl.h>"""


@dataclass
class Lifetime:
    """Samples of one process."""

    kind: str
    times_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    """Files, sockets, pipes and shared memory."""
    events: list[int] = field(default_factory=list)
    """Descriptors without a name: eventfd, epoll."""

    def text(self) -> str:
        """How long it lasted, and its memory when it was warm and at the end."""
        warm = bisect(self.times_s, self.times_s[0] + WARM_S)
        memory = [nbytes / 2**20 for nbytes in self.memory_bytes]
        first = f"{memory[warm]:.2f} to " if warm < len(memory) else ""
        return f"{self.times_s[-1] - self.times_s[0]:.0f} s {first}{memory[-1]:.2f} MiB"


@dataclass(frozen=True)
class Slope:
    """How memory of one kind of process grows."""

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
        rows = [
            (time_s, memory)
            for time_s, memory in zip(life.times_s, life.memory_bytes, strict=True)
            if time_s - life.times_s[0] >= WARM_S
        ]
        if len(rows) < WINDOW:
            continue
        times, memories = zip(*rows, strict=True)
        x_mean, y_mean = math.fsum(times) / len(rows), math.fsum(memories) / len(rows)
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


def grown_descriptors(life: Lifetime) -> str | None:
    """Why the descriptors of a process are too many at its end; None: they are not.

    In its first half each peer was there once, though one may be away when it begins.
    """
    for name, counts, once in (
        ("descriptors", life.descriptors, 0), ("events", life.events, EVENTS_ONCE)
    ):  # fmt: skip
        if len(counts) * SAMPLE_S < SETTLED_S:
            return None
        first, last = max(counts[: len(counts) // 2]), min(counts[-WINDOW:])
        if last > first + once:
            text = f"{last} {name} at the end of its life, {first} at most in its first half"
            return f"{life.kind}: {text}"
    return None


def without_huge_pages() -> None:
    """From now on, in this process and all that it starts. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


class Sampler:
    """Looks at all processes of a run, every second."""

    def __init__(self, cluster: Cluster) -> None:
        self.lifetimes: dict[int, Lifetime] = {}
        self._cluster = cluster
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
        memory = private_bytes(pid)
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                targets = [_target(entry.path) for entry in entries]
        except OSError:
            return
        if not memory:  # it has just ended
            return
        life = self.lifetimes.setdefault(pid, Lifetime(kind))
        life.times_s.append(SYSTEM_CLOCK.now_ns() / 1e9)
        life.memory_bytes.append(memory)
        events = sum(target.startswith("anon_inode:") for target in targets)
        life.descriptors.append(len(targets) - events)
        life.events.append(events)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


@dataclass(frozen=True)
class Shape:
    """What one run of a soak is like."""

    transport: str
    workers: int
    has_tree: bool

    @classmethod
    def drawn(cls, random: Random) -> Shape:
        """Any of them."""
        has_tree = random.random() < 0.3
        workers = TREE_WORKERS if has_tree else random.choice((2, 3))
        return cls(random.choice(("auto", "tcp", "ipc")), workers, has_tree)


def start(
    directory: Path, name: str, shape: Shape, *, steps: int, compute_ms: float, outside: Outside
) -> Cluster:
    """A run of the built-in job."""
    script = [
        "-m", "tests.soak_worker", "--arm", "luwu", "--steps", str(steps), "--log-every", "100",
        "--compute-ms", str(compute_ms), "--data", str(text_file(directory)), *SMALL,
    ]  # fmt: skip
    flags = [
        "--workers", str(shape.workers), "--transport", shape.transport, "--durability", "process",
        "--restarts", str(RESTARTS), "--worker-restarts", str(RESTARTS),
        "--state", str(directory / f"{name}.state"),
    ]  # fmt: skip
    if shape.has_tree:
        tree = directory / "tree.toml"
        tree.write_text(TREE)
        flags += ["--tree", str(tree)]
    return Cluster.run(directory, *script, flags=flags, name=name, environ=outside.environ)


@dataclass
class Soak:
    """What came of all runs so far."""

    faults: int = 0
    violations: list[str] = field(default_factory=list)
    lifetimes: dict[str, list[Lifetime]] = field(default_factory=lambda: defaultdict(list))

    def run(
        self, directory: Path, shape: Shape, minutes: float, every_ns: int, seed: int,
        steps: int | None = None,
    ) -> None:  # fmt: skip
        """One run with faults, and the same without. `steps`: how many, where that is known."""
        steps = steps or self._steps_in(directory, shape, minutes)
        print(f"run     {shape}, {steps} steps, a fault every {every_ns / 1e9:g} s", flush=True)
        outside = Outside(directory / "soak.tmp")
        with start(
            directory, "soak", shape, steps=steps, compute_ms=COMPUTE_MS, outside=outside
        ) as cluster:
            cluster.wait_for_steps(1, limit_s=120)
            sampler = Sampler(cluster)
            config = config_of(cluster.run_directory)
            kinds = ("node", "switch", "worker")
            wish = Wish(
                kill=kinds, stall=kinds, count=max(1, int(minutes * 60e9 / every_ns)),
                every_ns=every_ns, stall_ns=10**9, seed=seed,
            )  # fmt: skip
            faults = draw(wish, cast_of(config))
            files = FileGrowth(directory)
            verdict = Chaos(
                cluster.run_directory, faults, outlooks(faults, rules_of(config), expect=None),
                limit_s=120, exit_code=cluster.exit_code, say=files.note,
            ).work()  # fmt: skip
            self.violations += files.violations() + verdict.violations
            self.faults += len(verdict.taken)
            code = cluster.wait(limit_s=max(600, 120 * minutes))
            lifetimes = sampler.stop()
            if code:
                self.violations.append(f"the run ended with exit code {code}:\n{cluster.output}")
                return
            check_clean(cluster, outside)
            digest = cluster.results()["node.json"]["weights_digest"]
        for life in lifetimes:
            self.lifetimes[life.kind.partition("-")[0]].append(life)
        self.violations += filter(None, map(grown_descriptors, lifetimes))
        self._compare(directory, shape, steps, digest)

    def _compare(self, directory: Path, shape: Shape, steps: int, digest: str) -> None:
        outside = Outside(directory / "quiet.tmp")
        with start(
            directory, "quiet", shape, steps=steps, compute_ms=0, outside=outside
        ) as cluster:
            code = cluster.wait(limit_s=1800)
            quiet = (
                cluster.results()["node.json"]["weights_digest"] if code == 0 else cluster.output
            )
        if quiet != digest:
            self.violations.append(f"digest {digest[:12]}, but undisturbed {quiet:.400}")

    def _steps_in(self, directory: Path, shape: Shape, minutes: float) -> int:
        """How many steps a run makes in so many minutes: a short one tells."""
        outside = Outside(directory / "short.tmp")
        with start(
            directory, "short", shape, steps=LEARNING_STEPS, compute_ms=COMPUTE_MS, outside=outside
        ) as cluster:
            cluster.wait_for_steps(10, limit_s=120)
            start_ns = SYSTEM_CLOCK.now_ns()
            cluster.wait_for_steps(LEARNING_STEPS, limit_s=120)
            step_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9 / (LEARNING_STEPS - 10)
            if cluster.wait() != 0:
                raise LuwuError(f"the undisturbed short run failed:\n{cluster.output}")
        return max(LEARNING_STEPS, int(minutes * 60 / step_s))

    def tell(self) -> None:
        """Slopes, violations, and the verdict."""
        for kind, lifetimes in sorted(self.lifetimes.items()):
            slope = slope_of(lifetimes)
            print(f"memory  {kind}: {slope or 'no process lived long enough for a slope'}")
            if slope is not None and slope.is_violation:
                lives = ", ".join(life.text() for life in lifetimes)
                self.violations.append(f"memory of {kind}: {slope}\n{lives}")
        for text in self.violations:
            print(f"VIOLATION: {text}")
        print(f"{self.faults} trials, {len(self.violations)} violations")


class FileGrowth:
    """Counts files of a run and its state after each fault."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._counts: list[int] = []

    def note(self, text: str) -> None:
        """A fault was taken: say so, and count."""
        print(text, flush=True)
        found = [self._directory / "soak", self._directory / "soak.state"]
        self._counts.append(sum(len(files) for path in found for _, _, files in os.walk(path)))

    def violations(self) -> list[str]:
        """Files may come with the first faults of each kind; they may not go on coming."""
        half = len(self._counts) // 2
        if half < 5 or min(self._counts[half:]) <= max(self._counts[:half]):
            return []
        return [
            f"{min(self._counts[half:])} files after the later faults, at most "
            f"{max(self._counts[:half])} after the earlier"
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak as asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=30.0, help="of disturbed runs in all (30)")
    parser.add_argument("--every", default="30s", help="one fault in each such time (30s)")
    parser.add_argument("--seed", type=int, default=0, help="of runs and faults (0)")
    parser.add_argument("--steps", type=int, help="of each run; learned from a short one")
    asked = parser.parse_args(arguments)
    every_ns = parse_ns(asked.every, name="--every")
    without_huge_pages()
    runs = max(1, round(asked.minutes / RUN_MINUTES))
    soak = Soak()
    for number in range(runs):
        seed = derive(asked.seed, "soak", number)
        shape = Shape.drawn(Random(seed))
        with tempfile.TemporaryDirectory(prefix="luwu-soak-") as name:
            try:
                soak.run(Path(name), shape, asked.minutes / runs, every_ns, seed, asked.steps)
            except Exception as error:
                soak.violations.append(f"{shape}: {type(error).__name__}: {error}")
    soak.tell()
    return 1 if soak.violations or not soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Train for long with a fault every half minute, and see that nothing is lost and nothing grows.

    python -m tests.soak --minutes 30
    python -m tests.soak --minutes 2 --every 10s --seed 7
    python -m tests.soak --minutes 20 --every 29s --goodput          see `soak_goodput.py`

A soak is one run after the other, of about ten minutes each, with workers, transport and tree drawn
from the seed. Faults (`soak_faults.py`) are SIGKILL to node, switches and workers, and stalls of a
second. Checked of each run:

- steps go on by one, after every fault, and the run ends well;
- the weights have the digest of plain torch after the same steps;
- no process, socket, segment or temporary file is left;
- descriptors of no process grow, nor do the files of the run and of its state;
- what is allocated grows by less than 1 MiB an hour, from the second minute of a process on, and
  what is resident by less than 1 MiB in its life, from its third (`soak_samples.py`). A quarter of
  an hour is enough to call a slope a violation; before, it is only told.

Huge pages are off: where an allocator asks for them, 2 MiB more are resident when the kernel makes
one of a heap, early or late.

A trial is a fault. The last line is the verdict; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
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
from luwu.testing.cluster import Cluster
from tests import kill
from tests.kill import TREE, TREE_WORKERS, check_clean
from tests.processes.jobs import SMALL, Outside, light_digest, plain_digest, text_file
from tests.soak_faults import draw, strike
from tests.soak_goodput import goodput
from tests.soak_samples import Lifetime, Sampler, said_by_processes, slope_of

RUN_MINUTES: Final = 10.0
COMPUTE_MS: Final = 20.0
"""Makes a step last: what is disturbed is a run like a user's, not a loop at full speed."""
LEARNING_STEPS: Final = 40
RESTARTS: Final = 100_000
PR_SET_THP_DISABLE: Final = 41
"""<linux/prctl.h>"""


def without_huge_pages() -> None:
    """From now on, in this process and all that it starts. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


@dataclass(frozen=True)
class Shape:
    """What one run of a soak is like."""

    transport: str
    workers: int
    has_tree: bool
    is_light: bool = False
    """Workers without torch (`light_job.py`)."""

    @classmethod
    def drawn(cls, random: Random, *, is_light: bool = False) -> Shape:
        """Any of them."""
        has_tree = random.random() < 0.3
        workers = TREE_WORKERS if has_tree else random.choice((2, 3))
        return cls(random.choice(("auto", "tcp", "ipc")), workers, has_tree, is_light)


def start(directory: Path, name: str, shape: Shape, *, steps: int, outside: Outside) -> Cluster:
    """A run of the built-in job, or of the light one."""
    script = (
        "-m", "tests.soak_worker", "--arm", "luwu", "--steps", str(steps), "--log-every", "100",
        "--compute-ms", str(COMPUTE_MS), "--data", str(text_file(directory)), *SMALL,
    )  # fmt: skip
    tree = directory / "tree.toml"
    tree.write_text(TREE)
    said = directory / f"{name}.memory"
    said.mkdir()
    return kill.start(
        directory, name, steps=steps, restarts=RESTARTS, outside=outside, workers=shape.workers,
        transport=shape.transport, tree=tree if shape.has_tree else None, compute_ms=COMPUTE_MS,
        script=() if shape.is_light else script, environ=said_by_processes(said),
        more_flags=("--worker-restarts", str(RESTARTS)),
    )  # fmt: skip


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
        """One run with faults. `steps`: how many, where that is known."""
        steps = steps or self._steps_in(directory, shape, minutes)
        print(f"run     {shape}, {steps} steps, a fault every {every_ns / 1e9:g} s", flush=True)
        outside = Outside(directory / "soak.tmp")
        with start(directory, "soak", shape, steps=steps, outside=outside) as cluster:
            cluster.wait_for_steps(1, limit_s=120)
            sampler = Sampler(cluster, directory / "soak.memory")
            victims = [(each.role, each.rank) for each in cluster.processes()]
            faults = draw(seed, victims, max(1, int(minutes * 60e9 / every_ns)), every_ns)
            files = FileGrowth(directory)
            struck = strike(cluster, faults, files.note)
            self.violations += files.violations() + struck.violations
            self.faults += len(struck.hits)
            code = cluster.wait(limit_s=max(600, 120 * minutes))
            lifetimes = sampler.stop()
            if code:
                self.violations.append(f"the run ended with exit code {code}:\n{cluster.output}")
                return
            check_clean(cluster, outside)
            digest = cluster.results()["node.json"]["weights_digest"]
        for life in lifetimes:
            self.lifetimes[life.kind.partition("-")[0]].append(life)
            self.violations += life.growths()
        plain = (light_digest if shape.is_light else plain_digest)(steps, shape.workers)
        if plain != digest:
            self.violations.append(f"digest {digest[:12]}, but {plain[:12]} of plain torch")

    def _steps_in(self, directory: Path, shape: Shape, minutes: float) -> int:
        """How many steps a run makes in so many minutes: a short one tells."""
        outside = Outside(directory / "short.tmp")
        with start(directory, "short", shape, steps=LEARNING_STEPS, outside=outside) as cluster:
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
            print("        " + ", ".join(life.text() for life in lifetimes))
            if slope is not None and slope.is_violation:
                self.violations.append(f"memory of {kind}: {slope}")
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
    parser.add_argument("--light", action="store_true", help="workers without torch")
    parser.add_argument("--goodput", action="store_true", help="count the steps of one run")
    asked = parser.parse_args(arguments)
    every_ns = parse_ns(asked.every, name="--every")
    if asked.goodput:
        return goodput(asked.minutes, every_ns, asked.seed)
    without_huge_pages()
    runs = max(1, round(asked.minutes / RUN_MINUTES))
    soak = Soak()
    for number in range(runs):
        seed = derive(asked.seed, "soak", number)
        shape = Shape.drawn(Random(seed), is_light=asked.light)
        with tempfile.TemporaryDirectory(prefix="luwu-soak-") as name:
            try:
                soak.run(Path(name), shape, asked.minutes / runs, every_ns, seed, asked.steps)
            except Exception as error:
                soak.violations.append(f"{shape}: {type(error).__name__}: {error}")
    soak.tell()
    return 1 if soak.violations or not soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fuzz what reads bytes of others: headers, live switches and nodes, files to import.

    python -m tests.fuzz                              10 million headers, 100,000 of each other
    python -m tests.fuzz --headers 200000             only headers
    python -m tests.fuzz --minutes 2                  as much of all as fits
    python -m tests.fuzz --headers 1 --first 4711     one case again, as a violation names it

headers    through `decode`: a message that is itself when it is encoded again, or
           RemoteProtocolError, within a second (`headers.py`)
live       to a switch and a node on real sockets while a job trains on, undisturbed (`live.py`)
files      anything in the place of a file, before each reader of one: a sentence; of an export that
           is imported no trace, or the whole state (`files.py`)

And of every process: it does not die, it does not stand still, and it does not grow by 64 MiB.
Two processes at a time do the work. A case depends on the seed and its index alone. The last line
is the verdict; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.launch.processes.children import exit_text

PARTS: Final = ("headers", "live", "files")
FULL: Final = {"headers": 10_000_000, "live": 100_000, "files": 200_000}
SLICES: Final = {"headers": 500_000, "live": 10_000, "files": 10_000}
"""What one process does; the next one begins where it ended."""
PROCESSES_MAX: Final = 2
SHOWN_MAX: Final = 20


@dataclass(frozen=True)
class Slice:
    """The cases of one process."""

    part: str
    first: int
    count: int


@dataclass
class Tally:
    """What a part has come to."""

    trials: int = 0
    violations: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0


def work_off(slices: list[Slice], asked: argparse.Namespace) -> dict[str, Tally]:
    """Do all slices, two at a time; what came of each part."""
    tallies = {work.part: Tally() for work in slices}
    with ThreadPoolExecutor(PROCESSES_MAX) as pool:
        found = pool.map(lambda work: _run(work, asked), slices)
        for work, (trials, violations, seconds, grown_bytes) in zip(slices, found, strict=True):
            tally = tallies[work.part]
            tally.trials += trials
            tally.violations += violations
            tally.seconds += seconds
            tally.grown_bytes = max(tally.grown_bytes, grown_bytes)
    return tallies


def _run(work: Slice, asked: argparse.Namespace) -> tuple[int, int, float, int]:
    """Trials, violations, seconds and growth of a slice; nothing once the time is over."""
    started_ns = SYSTEM_CLOCK.now_ns()
    if asked.end_ns and started_ns > asked.end_ns:
        return 0, 0, 0.0, 0
    command = [
        sys.executable, "-m", "tests.fuzz.slice", work.part, str(asked.seed), str(work.first),
        str(work.count), str(asked.end_ns or 0),
    ]  # fmt: skip
    if asked.directory is not None:
        command.append(str(asked.directory))
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True,
        errors="replace",
    )  # fmt: skip
    lines = done.stdout.splitlines()
    found = [json.loads(line[1:]) for line in lines if line.startswith("!")]
    accounts = [json.loads(line[1:]) for line in lines if line.startswith("=")]
    if not accounts:  # it died before
        rest = "\n".join(line for line in lines[-40:] if not line.startswith("!"))
        found.append(
            f"the process at {work.part} {work.first} to {work.first + work.count} ended with "
            f"{exit_text(done.returncode)}\n{rest}"
        )
    for text in found[:SHOWN_MAX]:
        print(f"VIOLATION: {text}", flush=True)
    account = accounts[0] if accounts else {"trials": 0, "grown_bytes": 0}
    seconds = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
    return account["trials"], len(found), seconds, account["grown_bytes"]


def slices_of(asked: argparse.Namespace) -> list[Slice]:
    """All that is to be done; parts take turns, so that a limit of time meets all alike."""
    named = [part for part in PARTS if getattr(asked, part) is not None]
    counts = {part: getattr(asked, part) for part in named} if named else FULL
    queues = []
    for part, count in counts.items():
        starts = range(asked.first, asked.first + count, SLICES[part])
        queues.append(
            [Slice(part, start, min(SLICES[part], asked.first + count - start)) for start in starts]
        )
    longest = max(map(len, queues), default=0)
    return [queue[at] for at in range(longest) for queue in queues if at < len(queue)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz as asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", allow_abbrev=False)
    for part in PARTS:
        parser.add_argument(f"--{part}", type=int, metavar="N", help=f"cases ({FULL[part]})")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (0)")
    parser.add_argument("--first", type=int, default=0, help="index of the first case (0)")
    parser.add_argument("--minutes", type=float, help="begin no more cases after so long")
    parser.add_argument("--directory", type=Path, help="for files; one in RAM is faster")
    asked = parser.parse_args(arguments)
    asked.end_ns = None
    if asked.minutes is not None:
        asked.end_ns = SYSTEM_CLOCK.now_ns() + int(asked.minutes * 60e9)
    tallies = work_off(slices_of(asked), asked)
    for part, tally in tallies.items():
        rate = tally.trials / max(tally.seconds, 1e-9)
        print(
            f"{part:<8} {tally.trials} trials, {tally.violations} violations, "
            f"{rate:.0f}/s in a process, which grew by {tally.grown_bytes / 2**20:.1f} MiB"
        )
    trials = sum(tally.trials for tally in tallies.values())
    violations = sum(tally.violations for tally in tallies.values())
    print(f"{trials} trials, {violations} violations")
    return 1 if violations or not trials else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fuzz what reads bytes of others: headers, live switches and nodes, files to import.

    python -m tests.fuzz                              10 million headers, 100,000 of each other
    python -m tests.fuzz --headers 200000             only headers
    python -m tests.fuzz --minutes 2                  as much of all as fits
    python -m tests.fuzz --headers 1 --first 4711     one case again, as a violation names it

headers    through `decode`: a message that is itself when it is encoded again, or
           RemoteProtocolError, within a second (`headers.py`)
live       to a switch and a node on real sockets while a job trains on, undisturbed (`live.py`)
tensors    exports through the importer: an error and no trace, or the whole state (`tensors.py`)
files      anything in the place of a file, before each reader of one: a sentence (`files.py`)

And of every process: it does not die, it does not stand still, and it does not grow by 64 MiB.
Two processes at a time do the work. A case depends on the seed and its index alone. The last line
is the verdict; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.launch.processes.children import exit_text

PARTS: Final = ("headers", "live", "tensors", "files")
FULL: Final = {"headers": 10_000_000, "live": 100_000, "tensors": 100_000, "files": 100_000}
SLICES: Final = {"headers": 500_000, "live": 10_000, "tensors": 10_000, "files": 10_000}
"""What one process does; the next one begins where it ended."""
PROCESSES_MAX: Final = 2
SHOWN_MAX: Final = 20
POLL_S: Final = 0.05


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


class Running:
    """A process at its slice."""

    def __init__(self, work: Slice, asked: argparse.Namespace) -> None:
        self.work = work
        self.started_ns = SYSTEM_CLOCK.now_ns()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        command = [
            sys.executable, "-m", "tests.fuzz.slice", work.part, str(asked.seed), str(work.first),
            str(work.count), str(asked.end_ns or 0),
        ]  # fmt: skip
        if asked.directory is not None:
            command.append(str(asked.directory))
        self.process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def read(self) -> tuple[dict[str, int] | None, list[str]]:
        """Its account, None if it died before; and what it found."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        self._output.close()
        found = [json.loads(line[1:]) for line in lines if line.startswith("!")]
        account = next((json.loads(line[1:]) for line in lines if line.startswith("=")), None)
        if account is None:
            code = exit_text(self.process.returncode)
            rest = "\n".join(line for line in lines[-40:] if not line.startswith("!"))
            found.append(
                f"the process at {self.work.part} {self.work.first} to "
                f"{self.work.first + self.work.count} ended with {code}\n{rest}"
            )
        return account, found


def work_off(slices: list[Slice], asked: argparse.Namespace) -> dict[str, Tally]:
    """Do all slices, two at a time; what came of each part."""
    waiting, running = deque(slices), list[Running]()
    tallies = {work.part: Tally() for work in slices}
    try:
        while waiting or running:
            while waiting and len(running) < PROCESSES_MAX:
                running.append(Running(waiting.popleft(), asked))
            for each in [one for one in running if one.process.poll() is not None]:
                running.remove(each)
                _count(each, tallies[each.work.part])
                if asked.end_ns and SYSTEM_CLOCK.now_ns() > asked.end_ns:
                    waiting.clear()
            sleep(POLL_S)
    finally:
        for each in running:
            each.process.kill()
            each.process.wait()
    return tallies


def _count(ended: Running, tally: Tally) -> None:
    account, found = ended.read()
    tally.seconds += (SYSTEM_CLOCK.now_ns() - ended.started_ns) / 1e9
    tally.violations += len(found)
    if account is not None:
        tally.trials += account["trials"]
        tally.grown_bytes = max(tally.grown_bytes, account["grown_bytes"])
    for text in found[:SHOWN_MAX]:
        print(f"VIOLATION: {text}", flush=True)


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

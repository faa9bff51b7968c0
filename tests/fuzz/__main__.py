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
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from tests.fuzz.slice import Account, Slice, do_slice

PARTS: Final = ("headers", "live", "files")
FULL: Final = {"headers": 10_000_000, "live": 100_000, "files": 200_000}
SLICES: Final = {"headers": 500_000, "live": 10_000, "files": 10_000}
"""What one process does; the next one begins where it ended."""
PROCESSES_MAX: Final = 2


def in_a_process(work: Slice) -> Account:
    """Do a slice in a new process; nothing once the time is over."""
    if work.end_ns and SYSTEM_CLOCK.now_ns() > work.end_ns:
        return Account()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(do_slice, work).result()
        except BrokenProcessPool:
            account = Account()
            account.note(f"{work}: the process died; what it said is above")
            return account


def slices_of(asked: argparse.Namespace, end_ns: int | None) -> list[Slice]:
    """All that is to be done; parts take turns, so that a limit of time meets all alike."""
    named = [part for part in PARTS if getattr(asked, part) is not None]
    counts = {part: getattr(asked, part) for part in named} if named else FULL
    queues = []
    for part, count in counts.items():
        stop = asked.first + count
        queues.append([
            Slice(part, asked.seed, at, min(SLICES[part], stop - at), end_ns, asked.directory)
            for at in range(asked.first, stop, SLICES[part])
        ])  # fmt: skip
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
    minutes = asked.minutes
    end_ns = None if minutes is None else SYSTEM_CLOCK.now_ns() + int(minutes * 60e9)
    slices = slices_of(asked, end_ns)
    accounts = {work.part: Account() for work in slices}
    with ThreadPoolExecutor(PROCESSES_MAX) as pool:
        for work, account in zip(slices, pool.map(in_a_process, slices), strict=True):
            accounts[work.part].add(account)
    trials = violations = 0
    for part, found in accounts.items():
        trials, violations = trials + found.trials, violations + found.violations
        print(
            f"{part:<8} {found.trials} trials, {found.violations} violations, "
            f"{found.trials / max(found.seconds, 1e-9):.0f}/s in a process, which grew by "
            f"{found.grown_bytes / 2**20:.1f} MiB"
        )
    print(f"{trials} trials, {violations} violations")
    return 1 if violations or not trials else 0


if __name__ == "__main__":
    sys.exit(main())

"""Kill the node at every system call that touches its state, and refuse it every write and flush.

    python -m tests.syscalls                          all of it
    python -m tests.syscalls --stride 20              every 20th trial
    python -m tests.syscalls --kind eio --first 100   from trial 100 on

A real node process with two workers (`story.py` says what is left out) runs a small story once
under strace, which writes down its calls. Then each call is a trial for each fault: SIGKILL before
it, SIGABRT's sudden end after it, and, where it may write, EIO and ENOSPC in its place. After each
the node is started again; `trials.py` says what must hold. The numbers of trials are the same in
every run on one machine, so a campaign that was stopped goes on with --first.

The last line is `N trials, V violations`. Exit code 0; 1 if something did not hold; 2 without
strace.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.syscalls import tracing
from tests.syscalls.trials import Stage, Violated

KINDS = ("kill", "eio", "enospc")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that were asked for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.syscalls", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--stride", type=int, default=1, help="every N-th trial (1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial (0)")
    parser.add_argument("--kind", choices=KINDS, help="of these faults alone")
    asked = parser.parse_args(arguments)
    if not tracing.is_installed():
        print("strace is not installed, or may not trace here: no trial can be made")
        return 2
    with tempfile.TemporaryDirectory(prefix="luwu-sys-", dir="/tmp") as name:
        stage = Stage(Path(name))
        trials = stage.trials([asked.kind] if asked.kind else KINDS)
        chosen = range(asked.first, len(trials), asked.stride)
        print(
            f"{len(trials)} trials in all, {len(chosen)} of them from {asked.first} on", flush=True
        )
        violations = missed = 0
        for done, number in enumerate(chosen, start=1):
            trial = trials[number]
            try:
                missed += not stage.run(trial)
            except Violated as violated:
                violations += 1
                print(f"trial {number}, {trial}: {violated}", flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(chosen)}: trial {number}, {trial}", flush=True)
    if missed:
        print(f"{missed} calls were not made when their turn came: threads ran in another order")
    print(f"{len(chosen)} trials, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

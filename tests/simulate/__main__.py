"""Histories by the thousand: `python -m tests.simulate --seeds N [--first S] [--with FAULT]`.

Each is a pure function of its seed (`plan.py`, `history.py`). A seed that fails is printed with its
options, its faults and the command that replays it, and then made smaller: the smallest history
that still fails comes out as a test to be pasted. Last line: `N trials, V violations`; exit code 0
or 1. `--with LoseNode` leaves out histories in which no node is lost.
"""

from __future__ import annotations

import argparse
import functools
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice

from luwu.base.clock import SYSTEM_CLOCK
from tests.simulate import faults
from tests.simulate.history import run_history
from tests.simulate.plan import History, make_history
from tests.simulate.shrink import Shrinker

FAULTS = tuple(
    name for name, kind in vars(faults).items()
    if isinstance(kind, type) and "strike" in vars(kind) and kind is not faults.Fault
)  # fmt: skip
"""Kinds of faults, by name."""
SHRUNK_MAX = 3
"""Failing seeds that are made smaller; of more, only the seeds are of interest."""


@dataclass(frozen=True)
class Outcome:
    """How one history came out."""

    seed: int
    trace: str = ""
    """Empty if all went well."""
    faults: dict[str, int] = field(default_factory=dict)
    """Faults that struck, by kind."""
    virtual_s: float = 0.0


def run_one(seed: int, slot_count: int | None, *, own_switch: bool) -> Outcome:
    """Run the history of one seed."""
    try:
        simulation = run_history(make_history(seed, slot_count, own_switch=own_switch))
    except Exception:
        return Outcome(seed, traceback.format_exc())
    return Outcome(seed, "", simulation.counts, simulation.world.now_ns / 1e9)


def fails(history: History) -> bool:
    """Whether a history goes wrong, in whatever way."""
    try:
        run_history(history)
    except Exception:
        return True
    return False


def report(outcome: Outcome, slot_count: int | None, *, own_switch: bool, shrinks: bool) -> None:
    """Say what failed, how to see it again, and what is left of it."""
    more = "" if slot_count is None else f" --slots {slot_count}"
    more += " --no-switch" if own_switch else ""
    print(f"{outcome.trace}seed {outcome.seed} failed; to replay it:")
    print(f"    python -m tests.simulate --seeds 1 --first {outcome.seed}{more}", flush=True)
    history = make_history(outcome.seed, slot_count, own_switch=own_switch)
    print(f"\n{history.text()}\n", flush=True)
    if shrinks:
        smallest = Shrinker(fails).shrink(history)
        print(f"the smallest history found that still fails:\n\n{smallest.text()}\n", flush=True)


def seeds_with(fault: str, options: argparse.Namespace) -> list[int]:
    """As many seeds as asked for, in whose histories a fault of that kind is planned."""
    found = (
        seed
        for seed in count(options.first)
        for planned in [make_history(seed, options.slots, own_switch=options.no_switch).faults]
        if any(type(each).__name__ == fault for each in planned)
    )
    return list(islice(found, options.seeds))


def main() -> int:
    """The command; the exit code is 1 if any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--with", choices=FAULTS, dest="fault", help="those with such a fault")
    parser.add_argument("--processes", type=int, default=None, help="default: one a CPU")
    parser.add_argument("--slots", type=int, default=None, help="protocol fidelity, with so many")
    parser.add_argument("--no-switch", action="store_true", help="the node is its own switch")
    parser.add_argument("--no-shrink", action="store_true", help="print failing seeds as they are")
    parser.add_argument("--stop-at-first", action="store_true", help="end with the first failure")
    options = parser.parse_args()
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    if options.fault:
        seeds = seeds_with(options.fault, options)
    one = functools.partial(run_one, slot_count=options.slots, own_switch=options.no_switch)
    start_ns = SYSTEM_CLOCK.now_ns()
    done_count, failed_count, virtual_s = 0, 0, 0.0
    struck: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        for outcome in pool.map(one, seeds, chunksize=8):
            done_count += 1
            struck.update(outcome.faults)
            virtual_s += outcome.virtual_s
            if outcome.trace:
                failed_count += 1
                report(
                    outcome, options.slots, own_switch=options.no_switch,
                    shrinks=failed_count <= SHRUNK_MAX and not options.no_shrink,
                )  # fmt: skip
                if options.stop_at_first:
                    pool.shutdown(cancel_futures=True)
                    break
    elapsed_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    if struck:
        print("faults: " + ", ".join(f"{count} {kind}" for kind, count in struck.most_common()))
    print(
        f"{done_count} histories in {elapsed_s:.1f} s: {done_count / elapsed_s:.1f} per second, "
        f"{virtual_s:.0f} virtual s"
    )
    print(f"{done_count} trials, {failed_count} violations")
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main())

"""Chaotic histories by the thousand: `python -m tests.simulate --seeds N [--first S] [--slots N]`.

Each is a pure function of its seed. A seed that fails is printed with the command that replays it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor

from luwu.base.clock import SYSTEM_CLOCK
from tests.simulate.chaos import run_chaos


def run_one(seed: int, slot_count: int | None) -> tuple[int, str]:
    """Run one history; (seed, traceback), empty if all went well."""
    try:
        run_chaos(seed, slot_count)
    except Exception:
        return seed, traceback.format_exc()
    return seed, ""


def main() -> int:
    """The command; the exit code is 1 if any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="how many histories to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--processes", type=int, default=None, help="default: one a CPU")
    parser.add_argument("--slots", type=int, default=None, help="protocol fidelity, with so many")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    one = functools.partial(run_one, slot_count=options.slots)
    slots = "" if options.slots is None else f" --slots {options.slots}"
    start_ns = SYSTEM_CLOCK.now_ns()
    failed_count = 0
    with ProcessPoolExecutor(options.processes) as pool:
        for seed, trace in pool.map(one, seeds, chunksize=8):
            if trace:
                failed_count += 1
                print(f"{trace}seed {seed} failed; to replay it:")
                print(f"    python -m tests.simulate --seeds 1 --first {seed}{slots}", flush=True)
    elapsed_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    print(
        f"{len(seeds)} histories in {elapsed_s:.1f} s: {len(seeds) / elapsed_s:.1f} per second, "
        f"{failed_count} failed"
    )
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main())

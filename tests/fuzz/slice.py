"""One process of `tests.fuzz`: `-m tests.fuzz.slice PART SEED FIRST COUNT END_NS [DIRECTORY]`.

    !"header 4711: ..."                              a violation
    ={"trials": 500000, "grown_bytes": 1048576}      the account; without it, the process died

What stands still for two minutes is ended, with the stack of every thread.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK

STAND_STILL_S: Final = 120
GROWTH_BYTES_MAX: Final = 64 * 1024**2
WARM: Final = {"headers": 20_000, "live": 4_000, "files": 1_000}
"""Cases until every path was taken once, and memory is what it is."""


class Over(Exception):
    """The time is over."""


class Watch:
    """Called before each case: ends what stands still, and the slice when time is over."""

    def __init__(self, part: str, first: int, end_ns: int) -> None:
        self._part, self._first, self._end_ns = part, first, end_ns
        self._warm_bytes: int | None = None
        self._looked_ns = 0
        self.index = first

    def __call__(self, index: int) -> None:
        self.index = index
        now_ns = SYSTEM_CLOCK.now_ns()
        if now_ns - self._looked_ns > 10**9:
            self._looked_ns = now_ns
            faulthandler.dump_traceback_later(STAND_STILL_S, exit=True)
            if self._end_ns and now_ns > self._end_ns:
                raise Over
        if self._warm_bytes is None and index >= self._first + WARM[self._part]:
            self._warm_bytes = _memory_bytes("VmRSS")

    def grown_bytes(self) -> int:
        """What the process has grown by at most since it was warm."""
        if self._warm_bytes is None:
            return 0
        return max(0, _memory_bytes("VmHWM") - self._warm_bytes)


def main(part: str, seed: int, first: int, count: int, end_ns: int, directory: Path | None) -> int:
    """Do the slice; the exit code."""
    watch = Watch(part, first, end_ns)
    trials = count
    with tempfile.TemporaryDirectory(prefix="luwu-fuzz-", dir=directory) as name:
        try:
            for text in _found(part, seed, first, count, Path(name), watch):
                print("!" + json.dumps(text), flush=True)
        except Over:
            trials = watch.index - first
    faulthandler.cancel_dump_traceback_later()
    grown_bytes = watch.grown_bytes()
    if grown_bytes > GROWTH_BYTES_MAX:
        text = f"{part} {first} to {first + count}: grew by {grown_bytes / 2**20:.0f} MiB"
        print("!" + json.dumps(text))
    print("=" + json.dumps({"trials": trials, "grown_bytes": grown_bytes}))
    return 0


def _found(
    part: str, seed: int, first: int, count: int, directory: Path, watch: Watch
) -> Iterator[str]:
    if part == "headers":
        from tests.fuzz.headers import fuzz_headers

        return fuzz_headers(seed, first, count, look=watch)
    if part == "live":
        from tests.fuzz.live import fuzz_live

        return fuzz_live(seed, first, count, directory, look=watch)
    from tests.fuzz.files import fuzz_files

    return fuzz_files(seed, first, count, directory, look=watch)


def _memory_bytes(name: str) -> int:
    """VmRSS or VmHWM, the peak. (`ru_maxrss` begins with that of the parent process.)"""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name} in /proc/self/status")


if __name__ == "__main__":
    words = sys.argv[1:]
    where = Path(words[5]) if len(words) > 5 else None
    sys.exit(main(words[0], *map(int, words[1:5]), where))

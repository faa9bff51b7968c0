"""What one process of `tests.fuzz` does. What stands still for two minutes is ended, with the stack
of every thread.
"""

from __future__ import annotations

import faulthandler
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from tests.own_memory import memory_bytes

WARM: Final = {"headers": 20_000, "live": 4_000, "files": 1_000}
"""Cases until every path was taken once, and memory is what it is."""
SHOWN_MAX: Final = 20
STAND_STILL_S: Final = 120
GROWTH_BYTES_MAX: Final = 64 * 1024**2


@dataclass(frozen=True)
class Slice:
    """The cases of one process, to be begun before `end_ns`, if there is such a time."""

    part: str
    seed: int
    first: int
    count: int
    end_ns: int | None
    directory: Path | None

    def __str__(self) -> str:
        return f"{self.part} {self.first} to {self.first + self.count}"


@dataclass
class Account:
    """What a process has come to, or all of a part."""

    trials: int = 0
    violations: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0

    def note(self, text: str) -> None:
        """Print a violation, if there are not too many."""
        self.violations += 1
        if self.violations <= SHOWN_MAX:
            print(f"VIOLATION: {text}", flush=True)

    def add(self, other: Account) -> None:
        """Count a process of the same part."""
        self.trials += other.trials
        self.violations += other.violations
        self.seconds += other.seconds
        self.grown_bytes = max(self.grown_bytes, other.grown_bytes)


class Over(Exception):
    """The time is over."""


class Watch:
    """Called before each case: ends what stands still, and the slice when time is over."""

    def __init__(self, work: Slice) -> None:
        self._work = work
        self._warm_bytes: int | None = None
        self._looked_ns = 0
        self.index = work.first

    def __call__(self, index: int) -> None:
        self.index = index
        now_ns = SYSTEM_CLOCK.now_ns()
        if now_ns - self._looked_ns > 10**9:
            self._looked_ns = now_ns
            faulthandler.dump_traceback_later(STAND_STILL_S, exit=True)
            if self._work.end_ns and now_ns > self._work.end_ns:
                raise Over
        if self._warm_bytes is None and index >= self._work.first + WARM[self._work.part]:
            self._warm_bytes = memory_bytes("VmRSS")

    def grown_bytes(self) -> int:
        """What the process has grown by at most since it was warm."""
        if self._warm_bytes is None:
            return 0
        return max(0, memory_bytes("VmHWM") - self._warm_bytes)


def do_slice(work: Slice) -> Account:
    """Do a slice in this process."""
    account, watch, start_ns = Account(work.count), Watch(work), SYSTEM_CLOCK.now_ns()
    with tempfile.TemporaryDirectory(prefix="luwu-fuzz-", dir=work.directory) as name:
        try:
            for text in _found(work, Path(name), watch):
                account.note(text)
        except Over:
            account.trials = watch.index - work.first
    faulthandler.cancel_dump_traceback_later()
    account.grown_bytes = watch.grown_bytes()
    if account.grown_bytes > GROWTH_BYTES_MAX:
        account.note(f"{work}: grew by {account.grown_bytes / 2**20:.0f} MiB")
    account.seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    return account


def _found(work: Slice, directory: Path, look: Callable[[int], None]) -> Iterator[str]:
    if work.part == "headers":
        from tests.fuzz.headers import fuzz_headers

        return fuzz_headers(work.seed, work.first, work.count, look=look)
    if work.part == "live":
        from tests.fuzz.live import fuzz_live

        return fuzz_live(work.seed, work.first, work.count, directory, look=look)
    from tests.fuzz.files import fuzz_files

    return fuzz_files(work.seed, work.first, work.count, directory, look=look)

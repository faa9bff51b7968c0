"""Virtual time: what is due when, and processes that wait for it.

A process is a generator: it yields each event that it waits for, and continues when that is set.
Calls that are due at the same time are made in the order in which they were asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

Process: TypeAlias = "Iterator[Event]"


class Clock:
    """A heap of calls, by the time when they are due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def call_at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call it then."""
        heappush(self._calls, (time_s, next(self._numbers), call))

    def run(self) -> None:
        """Let time pass until nothing is due."""
        while self._calls:
            self.now_s, _, call = heappop(self._calls)
            call()

    def start(self, process: Process) -> None:
        """Run a process until it waits, and whenever what it waits for is set."""
        for event in process:
            if not event.is_set:
                event.calls.append(partial(self.start, process))
                return

    def at(self, time_s: float) -> Event:
        """An event that is set then."""
        event = Event(self)
        self.call_at(time_s, event.set_now)
        return event


class Event:
    """What processes wait for; once set, it remains so."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.is_set = clock, False
        self.calls: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set it after all calls that are due by now."""
        self._clock.call_at(self._clock.now_s, self.set_now)

    def set_now(self) -> None:
        """Set it, and continue what waits for it."""
        self.is_set, calls, self.calls = True, self.calls, []
        for call in calls:
            call()


class Semaphore:
    """So many may have it at once; others wait in the order in which they ask."""

    def __init__(self, clock: Clock, free: int = 1) -> None:
        self._clock, self._free, self._waiting = clock, free, deque[Event]()

    def acquire(self) -> Event:
        """An event that is set when the caller has it."""
        self._waiting.append(acquired := Event(self._clock))
        self._grant()
        return acquired

    def release(self) -> None:
        """Leave it to the next, after all calls that are due by now."""
        self._free += 1
        self._clock.call_at(self._clock.now_s, self._grant)

    def _grant(self) -> None:
        if self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()

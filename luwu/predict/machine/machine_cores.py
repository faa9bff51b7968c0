"""Threads that share the cores of one machine, played in virtual time.

    Q3  rate    a thread that has work runs at min(1, cores / threads with work) of a core: the
                scheduler gives all of them equal shares, and no core idles that has work
    Q4  thread  does its work in the order in which it came, one piece at a time
    Q5  device  serves requests in their order, on no core

So work is conserved: the work done is the work requested, and cores are busy for the time of all
work divided by their number, or by the number of threads if that is smaller.
Source: processor sharing (Kleinrock, Queueing Systems, vol. 2, ch. 4); derived.
"""

from __future__ import annotations

import heapq
from collections import deque

import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Process


class Cores:
    """The cores of a machine (Q3)."""

    def __init__(self, env: simpy.Environment, count: int) -> None:
        if count < 1:
            raise ConfigError(f"cores: {count} cannot work; give at least 1")
        self.count = count
        self.busy_s = 0.0
        """Core seconds that were worked."""
        self._env = env
        self._done = 0.0
        """Seconds of work that a thread has been given which had some all along."""
        self._since_s = 0.0
        self._running: list[tuple[float, int, simpy.Event]] = []
        self._number = 0
        self._plan = 0

    def work(self, seconds: float) -> simpy.Event:
        """So many seconds of a core for one thread; the event is when they are over."""
        over = self._env.event()
        if seconds <= 0:
            return over.succeed()
        self._advance()
        self._number += 1
        heapq.heappush(self._running, (self._done + seconds, self._number, over))
        self._plan_next()
        return over

    @property
    def _rate(self) -> float:
        return min(1.0, self.count / len(self._running)) if self._running else 0.0

    def _advance(self) -> None:
        passed = (self._env.now - self._since_s) * self._rate
        self.busy_s += passed * len(self._running)
        self._done += passed
        self._since_s = self._env.now

    def _plan_next(self) -> None:
        self._plan += 1
        if self._running:
            left = max(0.0, self._running[0][0] - self._done)
            self._env.process(self._end_first(left / self._rate, self._plan))

    def _end_first(self, seconds: float, plan: int) -> Process:
        yield self._env.timeout(seconds)
        if plan != self._plan:
            return  # others came or went meanwhile
        self._advance()
        end, _, over = heapq.heappop(self._running)
        self._done = end  # what rounding left
        over.succeed()
        self._plan_next()


Done = tuple[str, float, float]
"""A kind of work, and from when to when it was done, in seconds."""


class Thread:
    """A thread of a process (Q4). What it does is counted by kind."""

    def __init__(self, env: simpy.Environment, cores: Cores, work_s: dict[str, float]) -> None:
        self._env, self._cores, self._work_s = env, cores, work_s
        self._waiting: deque[tuple[str, float, simpy.Event]] = deque()
        self._is_busy = False
        self.done: list[Done] = []
        """All that it has done."""

    def do(self, kind: str, seconds: float) -> simpy.Event:
        """Work behind what it has to do already; the event is when it is done."""
        self._work_s[kind] = self._work_s.get(kind, 0.0) + seconds
        done = self._env.event()
        self._waiting.append((kind, seconds, done))
        if not self._is_busy:
            self._is_busy = True
            self._next()
        return done

    def _next(self) -> None:
        if not self._waiting:
            self._is_busy = False
            return
        kind, seconds, done = self._waiting.popleft()
        start_s = self._env.now

        def end(_: simpy.Event) -> None:
            self.done.append((kind, start_s, self._env.now))
            done.succeed()
            self._next()

        over = self._cores.work(seconds)
        assert over.callbacks is not None
        over.callbacks.append(end)


class Device:
    """A device that works beside the cores (Q5)."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._free_s = 0.0
        self.busy_s = 0.0
        self.done: list[Done] = []

    def do(self, kind: str, seconds: float) -> simpy.Event:
        """A request; the event is when it is served."""
        start_s = max(self._free_s, self._env.now)
        self._free_s = start_s + seconds
        self.busy_s += seconds
        self.done.append((kind, start_s, self._free_s))
        return self._env.timeout(self._free_s - self._env.now)

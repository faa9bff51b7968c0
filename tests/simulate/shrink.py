"""Make a failing history smaller: fewer faults, a simpler job; what is left is what matters.

Delta debugging (Zeller and Hildebrandt, 2002): cut the list of faults into parts, drop one part at
a time, keep what still fails, and cut finer when nothing can be dropped. Then the job: each option
is set to its simplest value, if the history still fails. Every step is a whole history, so a bound
on how many are tried is part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from tests.simulate.faults import Fault, Lasting, LoseNode
from tests.simulate.plan import History, Options

TRIES_MAX = 400
OF_LOST_NODES = ("loses", "optimizer_nodes", "replicas")
"""Options of a history in which a node is lost that stay: without them its pages are lost."""

Fails = Callable[[History], bool]


class Shrinker:
    """Makes one history smaller; `fails` runs one and says whether it still goes wrong."""

    def __init__(self, fails: Fails, tries_max: int = TRIES_MAX) -> None:
        self._fails, self._tries_left = fails, tries_max

    def shrink(self, history: History) -> History:
        """The smallest history found that fails; `history` itself does."""
        while self._tries_left > 0:
            smaller = self._simpler_job(self._fewer_faults(history))
            smaller = self._shorter_faults(smaller)
            if smaller == history:
                break
            history = smaller
        return history

    def _still_fails(self, history: History) -> bool:
        self._tries_left -= 1
        return self._tries_left >= 0 and self._fails(history)

    def _fewer_faults(self, history: History) -> History:
        parts = 2
        while history.faults:
            size = -(-len(history.faults) // parts)
            for start in range(0, len(history.faults), size):
                rest = history.faults[:start] + history.faults[start + size :]
                smaller = replace(history, faults=rest)
                if self._still_fails(smaller):
                    history, parts = smaller, max(2, parts - 1)
                    break
            else:
                if size == 1:
                    break
                parts = min(2 * parts, len(history.faults))
        return history

    def _simpler_job(self, history: History) -> History:
        plain = Options()
        for each in fields(Options):
            simplest = getattr(plain, each.name)
            values = [simplest]
            if each.name in ("world_size", "steps"):  # the default is not the least of these
                values = list(range(1, getattr(history.options, each.name)))
            for value in values:
                smaller = self._with(history, each.name, value)
                if smaller is not None and self._still_fails(smaller):
                    history = smaller
                    break
        return history

    @staticmethod
    def _with(history: History, name: str, value: object) -> History | None:
        if getattr(history.options, name) == value:
            return None
        if name in OF_LOST_NODES and any(isinstance(each, LoseNode) for each in history.faults):
            return None
        return replace(history, options=replace(history.options, **{name: value}))  # type: ignore[arg-type]

    def _shorter_faults(self, history: History) -> History:
        for index, fault in enumerate(history.faults):
            if isinstance(fault, Lasting) and fault.for_ms > 50:
                shorter: Fault = replace(fault, for_ms=fault.for_ms // 4)
                faults = (*history.faults[:index], shorter, *history.faults[index + 1 :])
                smaller = replace(history, faults=faults)
                if self._still_fails(smaller):
                    history = smaller
        return history

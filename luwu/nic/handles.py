"""Handles that the training thread waits for: of a push or pull, of a step; counters of the NIC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from luwu.base.clock import SYSTEM_CLOCK
from luwu.nic.incoming import IncomingWeights, SharedWeights

WaitUntil = Callable[[Callable[[], bool], str, int | None], None]
"""`Mailbox.wait_until`: block until a condition holds; its name, for people; its era."""


class Handle:
    """A push, pull or load under way; `done` is a cheap flag, `Nic.wait` blocks until it is set."""

    __slots__ = (
        "about", "asked_ns", "done", "era", "incoming", "name", "number", "shared", "step", "unit",
    )  # fmt: skip

    def __init__(self, name: str, step: int, unit: int, era: int) -> None:
        self.name, self.step, self.unit, self.era = name, step, unit, era
        self.about: dict[str, object] = {}
        """What its record says beside the step and the unit."""
        self.asked_ns = SYSTEM_CLOCK.now_ns()
        self.done = False
        self.number = 0
        """The core's number of this handle."""
        self.incoming: IncomingWeights | None = None
        """The extents of a pull, until it is done."""
        self.shared: SharedWeights | None = None
        """The weights of a finished pull that are used in place."""


class StepHandle:
    """A committed step: its verdict, and its decision."""

    def __init__(self, wait_until: WaitUntil, step: int, era: int) -> None:
        self._wait_until, self.step, self.era = wait_until, step, era
        self.outcome: tuple[bool, tuple[float, ...]] | None = None
        self.is_decided = False

    def verdict(self) -> tuple[bool, tuple[float, ...]]:
        """(applied, norms as in `Verdict`); blocks. Raises StepAborted if the step is lost."""
        self._wait_until(
            lambda: self.outcome is not None, f"the verdict of step {self.step}", self.era
        )
        assert self.outcome is not None
        return self.outcome

    def decision(self) -> tuple[bool, tuple[float, ...]]:
        """The verdict of a decided step; blocks. Raises StepAborted if the step is lost."""
        self._wait_until(lambda: self.is_decided, f"the decision of step {self.step}", self.era)
        assert self.outcome is not None
        return self.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounters:
    """Payload bytes of gradients and of weights, bytes of headers, and steps that were aborted."""

    push_bytes: int = 0
    pull_bytes: int = 0
    header_bytes: int = 0
    aborts_count: int = 0

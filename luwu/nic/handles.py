"""Handles that the training thread waits for: of a push or pull, of a step; counters of the NIC.

The weights of a pull are copied to memory of the worker's own, or used where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from luwu.base.address import address_of
from luwu.base.clock import SYSTEM_CLOCK
from luwu.transport.interface import Delivery


class SharedWeights:
    """One unit's weights in their sender's memory, which stays unchanged until `release`."""

    def __init__(self, address: int, nbytes: int, deliveries: list[Delivery]) -> None:
        self.address, self.nbytes = address, nbytes
        self.mapping = deliveries[0].buffers[0]
        """This reference leaves the memory mapped, after `release` too."""
        self._deliveries = deliveries

    def release(self) -> None:
        """The weights are not read any more; may be repeated."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.release()


class IncomingWeights:
    """The weights of one pull, extent by extent. Only the I/O thread uses it.

    A unit is used in place if its sender allows it and all its extents came in memory that is
    shared with the sender, one behind the other as in the unit's flat vector. Then nothing is
    copied, and the deliveries are released only when the weights are not used any more: their
    sender writes to that memory again only when all receivers have released it. Otherwise each
    extent is copied to memory of the worker's own, which is requested when the first byte is to be
    written.
    """

    def __init__(
        self, memory: Callable[[], memoryview], runs: dict[int, tuple[tuple[int, int], ...]], *,
        in_place: bool,
    ) -> None:  # fmt: skip
        """`runs`: extent -> (start, length) of its runs, in bytes of the unit's flat vector."""
        self._memory, self._runs, self._in_place = memory, runs, in_place
        self._into: memoryview | None = None
        self._shared: dict[int, Delivery] = {}
        """Deliveries that may be used where they are, by extent."""

    def add(self, extent: int, delivery: Delivery, *, in_place: bool) -> None:
        """Weights of an extent; a later delivery of the same extent replaces the earlier one.

        `in_place`: their sender lets them be used where they are.
        """
        before = self._shared.pop(extent, None)
        if before is not None:
            before.release()
        if in_place and self._in_place and delivery.is_shared:
            self._shared[extent] = delivery
        else:
            self._copy(extent, delivery)

    def finish(self) -> SharedWeights | None:
        """All extents are complete: the weights if they are used in place, or None if copied."""
        found = self._in_one_piece()
        if found is None:
            for extent, delivery in self._shared.items():
                self._copy(extent, delivery)
        self._shared = {}
        return found

    def release(self) -> None:
        """The weights are not needed any more."""
        for delivery in self._shared.values():
            delivery.release()
        self._shared = {}

    def _in_one_piece(self) -> SharedWeights | None:
        """All extents, if they are one behind the other in shared memory."""
        if not self._shared or len(self._shared) < len(self._runs):
            return None
        if any(len(runs) > 1 for runs in self._runs.values()):
            return None
        bases = {
            address_of(delivery.buffers[0]) - self._runs[extent][0][0]
            for extent, delivery in self._shared.items()
        }
        if len(bases) > 1:
            return None
        nbytes = max(sum(run) for runs in self._runs.values() for run in runs)
        return SharedWeights(bases.pop(), nbytes, list(self._shared.values()))

    def _copy(self, extent: int, delivery: Delivery) -> None:
        if self._into is None:
            self._into = self._memory()
        target, source = (
            np.frombuffer(each, np.uint8) for each in (self._into, delivery.buffers[0])
        )
        at = 0
        for start, length in self._runs[extent]:
            np.copyto(target[start : start + length], source[at : at + length])
            at += length
        delivery.release()


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

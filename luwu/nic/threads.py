"""What passes between the threads of a NIC, whose training thread never touches a socket.

    training thread    asks, and has a `Handle` of what is under way, a `StepHandle` of a step
    I/O thread         runs the core; reports by the `Mailbox`: joined, verdicts, aborts, errors
    copying thread     waits until a GPU has copied the gradients of a push (`Copies`)

The mailbox:

    I/O thread         `post` of the core's actions, `fail`, `notify`
    training thread    `wait_until`; `raise_if_aborted`, before each request

An abort increments the era. The training thread learns of it by one `StepAborted`; requests it made
before that belong to an older era, and are void.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    LuwuError,
    OlderStateError,
    StepAborted,
)
from luwu.base.events import Recorder
from luwu.nic.core import actions as nic
from luwu.nic.memory import IncomingWeights, SharedWeights, WaitUntil

REPORT_EVERY_S = 15.0
"""A wait that takes longer than this is reported in the log, and again as often."""
OVER_S = 10.0
"""A rank that was left out ends when its switch is gone for so long; one that is started again
listens earlier."""

Ready = Callable[[], object]
"""Returns when the gradients of a push are in their cells."""


@dataclass(eq=False, slots=True)
class Handle:
    """A push, pull or load under way; `done` is a cheap flag, `Nic.wait` blocks until it is set."""

    name: str
    step: int
    unit: int
    era: int
    about: dict[str, object] = field(default_factory=dict)
    """What its record says beside the step and the unit."""
    asked_ns: int = field(default_factory=SYSTEM_CLOCK.now_ns)
    done: bool = False
    incoming: IncomingWeights | None = None
    """The extents of a pull, until it is done."""
    shared: SharedWeights | None = None
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


class Mailbox:
    """The mailbox of one worker; see the module."""

    def __init__(
        self, *, rank: int, grace_s: float, recorder: Recorder, waits_for: Callable[[], str],
    ) -> None:  # fmt: skip
        """`waits_for` returns what the core waits for, for people."""
        self._rank, self._grace_s = rank, grace_s
        self._recorder, self._waits_for = recorder, waits_for
        self._changed = threading.Condition()
        self._awaited: list[Callable[[], bool]] = []
        """Conditions that a training thread waits for."""
        self._error: LuwuError | None = None
        self._abort: nic.Aborted | None = None
        self._aborted_step = 0
        self._steps: dict[int, StepHandle] = {}
        self.era = 0
        """The number of aborts posted."""
        self.known_era = 0
        """The number of aborts posted when the training thread raised the last one."""
        self.joined: nic.Joined | None = None
        self.has_left = False
        self.is_connected = False
        self.trouble = ""
        """The problem of the connection, as text; empty if there is none."""
        self.down_ns: int | None = None
        """Since when the connection is gone."""
        self._counts = True
        """False: this rank was left out, and waits to be admitted again."""

    # ---------------------------------------------------------------------- training thread

    def wait_until(
        self, condition: Callable[[], bool], what: str, era: int | None,
        *, limit_s: float | None = None,
    ) -> None:  # fmt: skip
        """Block until a condition holds; report a long wait, and end it at the deadline."""
        limit_s = self._grace_s if limit_s is None else limit_s
        start_ns = SYSTEM_CLOCK.now_ns()
        report_s = REPORT_EVERY_S
        with self._changed:
            while not condition():
                self.raise_if_aborted()
                if era is not None and era < self.era:
                    raise StepAborted(self._aborted_step, f"{what} was lost with its attempt")
                waited_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
                if waited_s > limit_s:
                    raise DeadlineError(self._deadline_text(what, waited_s))
                self._raise_if_over()
                if waited_s > report_s:
                    report_s += REPORT_EVERY_S
                    self._recorder.event(
                        "worker.waits", level="WARNING", rank=self._rank, what=what,
                        waited_s=waited_s, answer=self._waits_for(), trouble=self.trouble,
                    )  # fmt: skip
                self._awaited.append(condition)
                try:
                    self._changed.wait(timeout=1.0)
                finally:
                    self._awaited.remove(condition)

    def raise_if_aborted(self) -> None:
        """Raise StepAborted, once for each abort, or what the NIC failed with."""
        if self._error is None and self._abort is None:
            return
        with self._changed:
            if self._error is not None:
                raise self._error
            assert self._abort is not None, "this thread alone takes it"
            abort, self._abort = self._abort, None
            self.known_era = self.era
        raise StepAborted(abort.step, abort.text)

    def _raise_if_over(self) -> None:
        """Raise ConnectionFailed if this rank was left out and its switch is gone."""
        if self._counts or self.down_ns is None:
            return
        gone_s = (SYSTEM_CLOCK.now_ns() - self.down_ns) / 1e9
        if gone_s > OVER_S:
            raise ConnectionFailed(
                f"worker {self._rank} was left out, and the job has ended without it or is gone "
                f"({self.trouble}, for {gone_s:.0f} s); look into the log of the switch why it was "
                "left out, or allow more with --drop-after"
            )

    def new_step(self, step: int) -> StepHandle:
        """A handle for a step that is about to be committed."""
        handle = StepHandle(self.wait_until, step, self.known_era)
        with self._changed:
            self._steps[step] = handle
        return handle

    # ---------------------------------------------------------------------- I/O thread

    def post(self, action: Any) -> None:
        """An action of the core that is for the training thread."""
        with self._changed:
            match action:
                case nic.Joined():
                    self.joined = action
                case nic.Judged(step, applied, norms):
                    if step in self._steps:
                        self._steps[step].outcome = (applied, norms)
                case nic.StepDecided(step, applied, norms):
                    decided = self._steps.pop(step, None)
                    if decided is not None:
                        decided.outcome, decided.is_decided = (applied, norms), True
                case nic.Aborted(step, _, loaded, counts):
                    self.era += 1
                    self._counts = counts
                    self._abort, self._aborted_step = action, step
                    self.joined = nic.Joined(step, loaded)
                    # Those before were decided; the core asks the parent for their outcomes.
                    self._steps = {n: each for n, each in self._steps.items() if n < step}
                    for each in self._steps.values():
                        each.era = self.era
                case nic.Refused(text, is_older):
                    text = f"worker {self._rank} was rejected: {text}"
                    refused = OlderStateError(text) if is_older else ConfigError(text, code="E207")
                    self._error = self._error or refused
                case nic.Left():
                    self.has_left = True
                case _:
                    raise AssertionError(f"no case for {action!r}")
            self._changed.notify_all()

    def fail(self, error: LuwuError) -> None:
        """The NIC has ended with this error; the first one counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def notify(self) -> None:
        """Something that a condition depends on has changed: wake who waits for what now holds.

        A thread that is woken only to find that it must wait on costs far more than the question.
        """
        with self._changed:
            if any(condition() for condition in self._awaited):
                self._changed.notify_all()

    def _deadline_text(self, what: str, waited_s: float) -> str:
        return (
            f"worker {self._rank} waited {waited_s:.0f} s for {what} ({self._waits_for()})"
            + (f"; {self.trouble}" if self.trouble else "")
            + "; look into the logs of the other workers, the switch and the node, or allow more "
            "with --grace"
        )


class Copies:
    """See the module. The first push starts the thread."""

    def __init__(self, fail: Callable[[Exception], object]) -> None:
        """`fail` is called with the error of a copy; what was to be handed over then is not."""
        self._fail = fail
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Ready | None, Callable[[], object]]] = deque()
        """The first one is being done."""
        self._has_failed = False
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def add(self, ready: Ready | None, hand_over: Callable[[], object]) -> None:
        """Hand over once it is ready, and everything before it: at once, if nothing is copied."""
        if self._is_stopping or (ready is None and not self._jobs):
            if ready is not None:
                ready()
            hand_over()
            return
        with self._changed:
            self._jobs.append((ready, hand_over))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="luwu-copy", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Return when nothing is copied any more, or the condition holds after a copy.

        A GPU finishes copies whatever the network does, so this ends.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or until())

    def close(self) -> None:
        """Finish the copies and end the thread; may be repeated."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_stopping)
                if not self._jobs:
                    return
                ready, hand_over = self._jobs[0]
            try:
                if ready is not None:
                    ready()
                if not self._has_failed:
                    hand_over()
            except Exception as error:
                self._has_failed = True
                self._fail(error)
            with self._changed:
                self._jobs.popleft()
                del ready, hand_over  # what they hold must not live until the next push
                self._changed.notify_all()

"""What the I/O thread has told the training thread: members, verdicts, aborts, the end.

    I/O thread         `tell` of the core's actions, `fail`, `notify`
    training thread    `wait_until`; `raise_if_aborted`, before it asks for anything

An abort raises the era. The training thread learns of it by one `StepAborted`; what it asked for
before it knew belongs to an older era, and is void.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    LuwuError,
    OlderStateError,
    StepAborted,
    StepsLost,
)
from luwu.base.events import Recorder
from luwu.nic.core import actions as nic
from luwu.nic.handles import StepHandle

REPORT_EVERY_S = 15.0
"""A wait that takes longer than this says what it waits for, and again as often."""


class Told:
    """See the module."""

    def __init__(
        self, *, rank: int, grace_s: float, connect_timeout_s: float, recorder: Recorder,
        waits_for: Callable[[], str],
    ) -> None:  # fmt: skip
        """`waits_for` says what the core waits for, for people."""
        self._rank, self._grace_s = rank, grace_s
        self._connect_timeout_s = connect_timeout_s
        self._recorder, self._waits_for = recorder, waits_for
        self._changed = threading.Condition()
        self._error: LuwuError | None = None
        self._abort: nic.Aborted | None = None
        self._aborted_step = 0
        self._steps: dict[int, StepHandle] = {}
        self.era = 0
        """Aborts the I/O thread has seen."""
        self.known_era = 0
        """Aborts the training thread was told of."""
        self.joined: nic.Joined | None = None
        self.has_left = False
        self.is_connected = False
        self.trouble = ""
        """With the connection, for people; nothing while there is none."""
        self.down_ns: int | None = None
        """Since when the connection is gone."""
        self._counts = True

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
                if self._error is not None:
                    raise self._error
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
                self._changed.wait(timeout=1.0)

    def raise_if_aborted(self) -> None:
        """Raise StepAborted, once for each abort, or what the NIC failed with."""
        with self._changed:
            if self._error is not None:
                raise self._error
            abort = self._abort
            if abort is None:
                return
            self._abort = None
            self.known_era = self.era
        raise (StepsLost if abort.is_older else StepAborted)(abort.step, abort.text)

    def _raise_if_over(self) -> None:
        """A rank that was left out, and whose switch is gone, has nothing to wait for."""
        if self._counts or self.down_ns is None:
            return
        gone_s = (SYSTEM_CLOCK.now_ns() - self.down_ns) / 1e9
        if gone_s > self._connect_timeout_s:
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

    def tell(self, action: Any) -> None:
        """An action of the core that is for the training thread."""
        with self._changed:
            match action:
                case nic.Joined():
                    self.joined = action
                case nic.Judged(step, applied, grad_norm):
                    if step in self._steps:
                        self._steps[step].outcome = (applied, grad_norm)
                case nic.Settled(step, applied, grad_norm):
                    settled = self._steps.pop(step, None)
                    if settled is not None:
                        settled.outcome, settled.is_settled = (applied, grad_norm), True
                case nic.Aborted(step, _, loaded, counts, is_older):
                    self.era += 1
                    self._counts = counts
                    if self._abort is not None:  # not told yet: what it says is not to be missed
                        is_older |= self._abort.is_older
                    self._abort, self._aborted_step = replace(action, is_older=is_older), step
                    self.joined = nic.Joined(step, loaded)
                    # Those before were decided; how they came out is being asked for.
                    self._steps = {n: kept for n, kept in self._steps.items() if n < step}
                    for kept in self._steps.values():
                        kept.era = self.era
                case nic.Refused(text, is_older):
                    said = f"worker {self._rank} was refused: {text}"
                    refused = OlderStateError(said) if is_older else ConfigError(said, code="E207")
                    self._error = self._error or refused
                case nic.Left():
                    self.has_left = True
                case _:
                    raise AssertionError(f"nobody does {action!r}")
            self._changed.notify_all()

    def fail(self, error: LuwuError) -> None:
        """Nothing more will come; the first reason counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def notify(self) -> None:
        """Something that a wait looks at has changed."""
        with self._changed:
            self._changed.notify_all()

    def _deadline_text(self, what: str, waited_s: float) -> str:
        return (
            f"worker {self._rank} waited {waited_s:.0f} s for {what} ({self._waits_for()})"
            + (f"; {self.trouble}" if self.trouble else "")
            + "; look into the logs of the switch and the node, or allow more with --grace"
        )

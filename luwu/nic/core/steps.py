"""What a worker states of a step, each as soon as the parent can take it. Pure.

`Begin` waits for the verdict of the step before, which may open a new attempt. `Commit` waits for
the decision of the step before, and is then repeated until its own step is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire


class Statements:
    """Begins and commits of one worker; `stamped` makes a message of its speaker's."""

    def __init__(self, uplink: Uplink, stamped: Callable[..., Any], contributors: int) -> None:
        self._uplink, self._stamped, self._contributors = uplink, stamped, contributors
        self._begin: tuple[int, str, bytes] | None = None
        """A `Begin` that waits for the verdict of the step before."""
        self._commits: list[tuple[int, str, int, bytes, bool]] = []
        """Steps whose commit waits for the decision of the step before; the first is asked for."""

    @property
    def committed(self) -> int | None:
        """The step whose decision is asked for."""
        return self._commits[0][0] if self._commits else None

    def begin(self, now_ns: int, judged: int, step: int, hyper_hash: str, hyper: bytes) -> None:
        """State the hyper-parameters of a step, now or when the step before it is judged."""
        self._begin = (step, hyper_hash, hyper)
        self.judged(now_ns, judged)

    def commit(
        self, now_ns: int, step: int, hyper_hash: str, parts: int, hyper: bytes, *, skip: bool
    ) -> None:
        """State that a step is complete, now or when the step before it is decided."""
        self._commits.append((step, hyper_hash, parts, hyper, skip))
        if len(self._commits) == 1:
            self.ask(now_ns)

    def judged(self, now_ns: int, step: int) -> None:
        """The verdict of a step is known: the next may begin."""
        if self._begin is None or self._begin[0] > step + 1:
            return
        (number, hyper_hash, hyper), self._begin = self._begin, None
        begin = self._stamped(
            wire.Begin, step=number, contributors=self._contributors, hyper_hash=hyper_hash
        )
        self._uplink.ask(now_ns, ("begin", number), begin, hyper)

    def decided(self, now_ns: int) -> None:
        """The step that was asked for is decided: ask for the next."""
        self._commits.pop(0)
        self._uplink.answered("commit")
        self.ask(now_ns)

    def restart(self, now_ns: int, step: int) -> None:
        """`step` is the first undecided one. Of those before we were not told: ask again."""
        self._begin = None
        self._commits = [commit for commit in self._commits if commit[0] < step]
        self.ask(now_ns)

    def ask(self, now_ns: int) -> None:
        """Ask for the first decision, if one is wanted; also again, under a new attempt."""
        if self._commits:
            step, hyper_hash, parts, hyper, skip = self._commits[0]
            commit = self._stamped(
                wire.Commit, step=step, contributors=self._contributors, hyper_hash=hyper_hash,
                parts=parts, skip=skip,
            )  # fmt: skip
            self._uplink.ask(now_ns, "commit", commit, hyper)

"""The beginning and the commit of a worker's steps, each sent once the parent can take it. Pure.

`Begin` waits for the verdict of the step before, which may open a new attempt. `Commit` waits for
the decision of the step before, and is then repeated until its own step is decided.
"""

from __future__ import annotations

from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire


class Steps:
    """The steps of one worker that are begun or committed, and not decided."""

    def __init__(self, outbox: Outbox, uplink: Uplink) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors = 1 << outbox.rank
        self._begin: tuple[int, bytes] | None = None
        """A `Begin` that waits for the verdict of the step before."""
        self._commits: list[tuple[int, int, bytes, bool]] = []
        """Undecided steps in order; the commit of the first one is under way, the others wait."""

    @property
    def committed(self) -> int | None:
        """The step whose commit is under way, and whose decision is awaited."""
        return self._commits[0][0] if self._commits else None

    def begin(self, step: int, hyper: bytes, *, judged: int) -> None:
        """Send the hyper-parameters of a step, now or after the verdict of the step before it.

        `judged` is the last step whose verdict is known.
        """
        self._begin = (step, hyper)
        self.judged(judged)

    def begun(self, m: wire.Received) -> None:
        """The parent has the hyper-parameters of a step."""
        self._uplink.answered(("begin", m.step))

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool) -> None:
        """Send that a step is complete, now or after the decision of the step before it."""
        self._commits.append((step, parts, hyper, skip))
        if len(self._commits) == 1:
            self.repeat()

    def judged(self, step: int) -> None:
        """The verdict of a step is known: the next may begin."""
        if self._begin is None or self._begin[0] > step + 1:
            return
        (number, hyper), self._begin = self._begin, None
        begin = self._out.stamped(wire.Begin, step=number, contributors=self._contributors)
        self._uplink.ask(self._out.now_ns, ("begin", number), begin, hyper)

    def decided(self) -> None:
        """The committed step is decided: commit the next."""
        self._commits.pop(0)
        self._uplink.answered("commit")
        self.repeat()

    def restart(self, step: int) -> None:
        """Go back to `step`, the first undecided one; ask for the decisions of those before it."""
        self._begin = None
        self._commits = [commit for commit in self._commits if commit[0] < step]
        self.repeat()

    def repeat(self) -> None:
        """Send the first commit, if there is one; again under a new attempt."""
        if self._commits:
            step, parts, hyper, skip = self._commits[0]
            commit = self._out.stamped(
                wire.Commit, step=step, contributors=self._contributors, parts=parts, skip=skip
            )
            self._uplink.ask(self._out.now_ns, "commit", commit, hyper)

"""How steps came out, as far as it was announced: what is said again to whoever asks late. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.wire.messages import Decided, Message, Verdict


@dataclass(slots=True)
class Outcomes:
    """The last announcements of a parent."""

    verdict: Verdict | None = None
    decided: Decided | None = None
    skip: Verdict | None = None
    """The last verdict that skipped a step, ..."""
    skipped_attempt: int = -1
    """... and the attempt it ended: nothing of it is lost but weights that streamed ahead."""
    skips_count: int = 0
    """Steps that were skipped, since the process began, for a sum that is not finite."""

    def undo(self, step: int) -> None:
        """A new attempt goes on with this step: how it came out before does not count."""
        self.verdict = None
        if self.decided is not None and self.decided.step >= step:  # it is lost, and made again
            self.decided = None
        if self.skip is not None and self.skip.step >= step:
            self.skip, self.skipped_attempt = None, -1

    def skip_into(self, attempt: int) -> Verdict | None:
        """The verdict that opened this attempt, if one did."""
        return self.skip if attempt == self.skipped_attempt + 1 else None

    def of(self, step: int) -> list[Message]:
        """The outcome of a step."""
        return [m for m in (self.verdict, self.decided) if m is not None and m.step == step]

    def is_judged(self, step: int) -> bool:
        """True if the last verdict is that of this step."""
        return self.verdict is not None and self.verdict.step == step

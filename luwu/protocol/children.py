"""The children of a switch or a node, and what a child that is behind is answered.

    an unknown child               Rejoin
    a child of an older attempt    Abort; or the verdict that skipped a step, where that opened the
                                   new attempt; or, if it knows this start of the node, how its step
                                   came out, where it asks for that
    a child that cannot be one     Refuse

`members.py` knows who the children are. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.protocol.actions import Payload
from luwu.protocol.members import KnowsMoreError, Members, RefusedError, SupersededError
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
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


class Children:
    """The children of one parent; `children` are bitmaps of the ranks each speaks for."""

    def __init__(self, outbox: Outbox, children: Sequence[int], extent_chunks: int = 1) -> None:
        self._outbox = outbox
        self.members = Members(job=outbox.job, children=children, extent_chunks=extent_chunks)
        self.outcomes = Outcomes()
        self.loaded = False
        """The state has weights."""
        self.redoes = False
        """The operator lets the job make steps again that were decided and are lost."""

    def send_all(self, message: wire.Message, payload: Payload | bytes | None = None) -> None:
        """Send to all children that count and are connected."""
        self._outbox.send_all(self.members.peers, message, payload)

    def welcome(self, push_window_bytes: int) -> wire.Welcome:
        """The message that admits a child to the current attempt."""
        skip = self.outcomes.skip_into(self._outbox.attempt)
        return self._outbox.stamped(
            wire.Welcome, loaded=self.loaded, push_window_bytes=push_window_bytes,
            contributors=self.members.active,
            began_with_skip=skip is not None,
            skipped_step=0 if skip is None else skip.step,
            norms=(0.0,) if skip is None else skip.norms,
            redoes=self.redoes,
        )  # fmt: skip

    def abort(self, text: str) -> wire.Abort:
        """The message that aborts all attempts before the current one."""
        return self._outbox.stamped(
            wire.Abort, loaded=self.loaded, contributors=self.members.active,
            text=text[:TEXT_CHARS_MAX], redoes=self.redoes,
        )  # fmt: skip

    def refuse(self, peer: str, error: RefusedError) -> None:
        """Refuse a child for good."""
        name = self._outbox.role.name.lower()
        self._outbox.note(f"{name}.refused", level="WARNING", peer=peer, text=str(error))
        refusal = self._outbox.stamped(
            wire.Refuse, text=str(error), is_older=isinstance(error, KnowsMoreError),
            is_left_out=isinstance(error, SupersededError),
        )  # fmt: skip
        self._outbox.send(peer, refusal)

    def answer_stale(self, peer: str, m: wire.Message) -> None:
        """Send a child what it does not know yet: the attempt that counts.

        One that a skipped step has opened is known by the verdict, or follows from it: all children
        had their part in the step, so what they sent under older attempts was only late. An Abort
        would have the child make the step again.
        """
        outcomes, skip = self.outcomes, self.outcomes.skip
        if opened := outcomes.skip_into(self._outbox.attempt):
            self._outbox.send(peer, opened)
            is_answered = True
        elif m.generation != self._outbox.generation:
            is_answered = False  # of a start of the node that it does not know it follows an Abort
        elif m.attempt == outcomes.skipped_attempt and skip is not None:
            self._outbox.send(peer, skip)
            is_answered = True
        else:
            is_answered = isinstance(m, wire.Commit) and self.answer_commit(peer, m.step)
        if not is_answered:
            text = f"attempt {m.attempt} is over, {self._outbox.attempt} counts"
            self._outbox.send(peer, self.abort(text))

    def answer_commit(self, peer: str, step: int) -> bool:
        """Send again how a step came out; False if it is not known yet."""
        known = self.outcomes.of(step)
        for message in known:
            self._outbox.send(peer, message)
        return bool(known)

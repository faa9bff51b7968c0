"""Begin and Commit at the switch: N children state them, one goes to the parent. Pure.

All children must state the same of a step (`folds.py`); who differs is refused by name. A child is
told that a step has begun when the parent knows, and how it came out when the parent says so; a
child that asks later, or again, is told again.

When each child commits a step shows who is late (`lateness.py`): it is named in the log, and missed
where the job goes on without lost ranks. A late switch is only named: it misses its own children.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.members import Member, ranks_text
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.actions import Action, SwitchLimits
from switch_emu.switch.core.folds import DisagreementError, Fold, Folds
from switch_emu.switch.core.lateness import Lateness
from switch_emu.switch.core.membership import SwitchMember

_LATE_NS = 5 * 10**9
"""Where all are waited for, nobody is named as late before this."""


class SwitchStatements(SwitchMember):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, rank: int, children: Sequence[int],
        limits: SwitchLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, rank, children, limits, retry)
        self._begins = Folds(self._members.children)
        self._begun = -1
        """The last step whose `Begin` the parent has; only then is a child told, since a switch
        that is started again would not know it."""
        self._commits = Folds(self._members.children)
        patience_ns = limits.patience_ns
        self._lateness = Lateness(_LATE_NS if patience_ns is None else patience_ns)
        self._named_step = -1
        """The last step in which somebody was named as late."""

    def _forget(self, step: int | None = None) -> None:
        super()._forget(step)
        self._begins.forget(step)
        self._commits.forget(step)
        if step is None:
            self._begun = -1
            self._begins = Folds(self._members.counted)
            self._commits = Folds(self._members.counted)
            self._lateness.forget()
            self._named_step = -1

    def waits_for(self) -> str:
        """What must happen next, for people."""
        for step, fold in self._commits:
            missing = self._members.missing(fold.statements)
            if missing and self._joined:
                return f"step {step}: commit of ranks {missing}"
        return super().waits_for()

    # ---------------------------------------------------------------------- children

    def _begin(self, peer: str, member: Member, m: wire.Begin, hyper: bytes) -> None:
        if m.step <= max(self._begun, self._step - 1):
            self._tell(peer, self._receipt(m, Verb.BEGIN))
        elif m.step <= self._step + 1:
            fold = self._begins.of(m.step)
            if self._agree(peer, member, fold, m.hyper_hash, hyper):
                ranks = self._members.active
                begin = self._ours(
                    wire.Begin, step=m.step, contributors=ranks, hyper_hash=m.hyper_hash
                )
                self._uplink.ask(self._now_ns, ("begin", m.step), begin, fold.payload)

    def _commit(self, peer: str, member: Member, m: wire.Commit, hyper: bytes) -> None:
        if self._answer_commit(peer, m.step):
            return
        if m.step == self._step - 1 and not self._uplink.asks("late-commit"):
            self._say_commit("late-commit", m.step)
        if m.step != self._step:
            return
        fold = self._commits.of(m.step)
        self._lateness.came(self._now_ns, m.step, member.ranks)
        fold.skip = fold.skip or m.skip
        if self._agree(peer, member, fold, f"{m.parts} backward passes, {m.hyper_hash}", hyper):
            self._lateness.complete(m.step)
            self._say_commit("commit", m.step, m.hyper_hash, m.parts, fold.payload, skip=fold.skip)

    def _agree(
        self, peer: str, member: Member, fold: Fold, statement: str, payload: bytes
    ) -> bool:  # fmt: skip
        """Note what a child states; True when it is the last and all state the same."""
        if fold.refusal:  # said again: the refusal was lost
            self._tell(peer, self._ours(wire.Refuse, text=fold.refusal))
        elif member.ranks not in fold.statements:
            try:
                return fold.state(member.ranks, statement, payload)
            except DisagreementError as exc:
                self._tell_all(self._ours(wire.Refuse, text=str(exc)))
        return False

    # ---------------------------------------------------------------------- who is late

    def tick(self, now_ns: int) -> list[Action]:
        self._now_ns = now_ns
        late_ns = self._late_ns()
        if late_ns is not None and now_ns >= late_ns:
            self._name_the_late()
        return super().tick(now_ns)

    def next_tick_ns(self) -> int | None:
        due = (super().next_tick_ns(), self._late_ns())
        return min((at_ns for at_ns in due if at_ns is not None), default=None)

    def _late_ns(self) -> int | None:
        """When whoever has not committed the open step is late; None: nobody is, or it is named."""
        if self._named_step >= self._step or self._uplink.asks("commit"):
            return None
        return self._lateness.deadline_ns(self._step)

    def _name_the_late(self) -> None:
        self._named_step = self._step
        there = self._commits.of(self._step).statements
        late = [ranks for ranks in self._members.counted if ranks not in there]
        self._note(
            "switch.late", level="WARNING", step=self._step, ranks=ranks_text(late),
            limit_s=self._lateness.limit_ns / 1e9, usual_s=self._lateness.usual_ns / 1e9,
        )  # fmt: skip
        for ranks in late:
            if ranks.bit_count() == 1:
                self._presence.silent(self._now_ns, ranks)

    # ---------------------------------------------------------------------- the parent

    def _heard_begin(self, m: wire.Received) -> None:
        if self._uplink.answered(("begin", m.step)):
            self._begun = m.step
            self._tell_all(self._receipt(m, Verb.BEGIN))

    def _say_commit(
        self, name: str, step: int, hyper_hash: str = "", parts: int = 0, hyper: bytes = b"", *,
        skip: bool = False,
    ) -> None:  # fmt: skip
        """Ask for the decision of a step; of one whose commit the parent has, without parts."""
        commit = self._ours(
            wire.Commit, step=step, contributors=self._members.active, hyper_hash=hyper_hash,
            parts=parts, skip=skip,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, name, commit, hyper)

    def _judged(self, m: wire.Verdict | wire.Decided) -> None:
        if m.step != self._step or self._outcomes.is_judged(m.step):
            return
        if m.attempt > self._attempt and not m.applied:  # weights that streamed ahead are void
            hyper = self._commits.of(m.step).payload
            skipped_attempt = self._attempt
            cancel = self._uplink.answer("cancel")
            self._begin_attempt(m.attempt, m.step)
            self._outcomes.skipped_attempt = skipped_attempt
            self._say_commit("commit", m.step, hyper=hyper)
            if cancel is not None and isinstance(cancel.message, wire.Cancel):
                said = cancel.message  # a skip gives up less than was asked for
                self._cancel(said.text, lost=said.lost)
        verdict = self._ours(wire.Verdict, step=m.step, applied=m.applied, grad_norm=m.grad_norm)
        self._outcomes.verdict = verdict
        if not m.applied:
            self._outcomes.skip = verdict
        self._tell_all(verdict)

    def _decided(self, m: wire.Decided) -> None:
        is_late = m.step == self._step - 1 and self._uplink.answered("late-commit")
        if m.step == self._step:
            self._judged(m)  # the verdict may have been lost
            self._step = m.step + 1
            self._uplink.answered("commit")
            self._forget(m.step)
        elif not is_late:
            return
        self._outcomes.decided = self._ours(
            wire.Decided, step=m.step, applied=m.applied, grad_norm=m.grad_norm
        )
        self._tell_all(self._outcomes.decided)

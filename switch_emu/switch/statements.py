"""Begin and Commit at the switch: N children state them, one goes to the parent. Pure.

All children must state the same of a step (`folds.py`); who differs is refused by name. A child is
told that a step has begun when the parent knows, and how it came out when the parent says so; a
child that asks later, or again, is told again.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.outstanding import RetryPolicy
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.actions import SwitchLimits
from switch_emu.switch.folds import DisagreementError, Fold, Folds
from switch_emu.switch.members import Member
from switch_emu.switch.membership import SwitchMember


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

    def _forget(self, step: int | None = None) -> None:
        super()._forget(step)
        self._begins.forget(step)
        self._commits.forget(step)
        if step is None:
            self._begun = -1

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
                ranks = self._members.ranks
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
        if self._agree(peer, member, fold, f"{m.parts} backward passes, {m.hyper_hash}", hyper):
            self._say_commit("commit", m.step, m.hyper_hash, m.parts, fold.payload)

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

    # ---------------------------------------------------------------------- the parent

    def _heard_begin(self, m: wire.Received) -> None:
        if self._uplink.answered(("begin", m.step)):
            self._begun = m.step
            self._tell_all(self._receipt(m, Verb.BEGIN))

    def _say_commit(
        self, name: str, step: int, hyper_hash: str = "", parts: int = 0, hyper: bytes = b""
    ) -> None:
        """Ask for the decision of a step; of one whose commit the parent has, without parts."""
        commit = self._ours(
            wire.Commit, step=step, contributors=self._members.ranks, hyper_hash=hyper_hash,
            parts=parts,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, name, commit, hyper)

    def _judged(self, m: wire.Verdict | wire.Decided) -> None:
        if m.step != self._step or self._outcomes.is_judged(m.step):
            return
        if m.attempt > self._attempt and not m.applied:  # weights that streamed ahead are void
            hyper = self._commits.of(m.step).payload
            skipped_attempt = self._attempt
            cancel = self._uplink.answer("cancel")
            self._adopt(m.attempt, m.step)
            self._outcomes.skipped_attempt = skipped_attempt
            self._say_commit("commit", m.step, hyper=hyper)
            if cancel is not None and isinstance(cancel.message, wire.Cancel):
                self._cancel(cancel.message.text)  # a skip gives up less than was asked for
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

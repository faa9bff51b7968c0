"""Begin and Commit at the switch: N children state them, one goes to the parent. Pure.

    Begin     all children have sent it: one to the parent     Received, when the parent has it
    Commit    all children have sent it: one to the parent     Verdict, then Decided

All children must state the same of a step: the hash of their hyper-parameters, and the number of
their backward passes. Children that differ are refused by name. A child that asks later, or again,
is sent the same answer again.

When each child commits a step shows who is late (`lateness.py`): it is named in the log, and missed
where the job goes on without lost ranks. A late switch is only named: it misses its own children.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from luwu.protocol.children import Children
from luwu.protocol.members import Member, ranks_text
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.lateness import Lateness

_LATE_NS = 5 * 10**9
"""Where all are waited for, nobody is named as late before this."""


class DisagreementError(Exception):
    """Children state different things of one step; the text names them."""


@dataclass(slots=True)
class AgreedStatement:
    """The common statement of all children about one step."""

    what: str
    """For people: `hyper-parameters of step 3`."""
    children: Sequence[int]
    statements: dict[int, str] = field(default_factory=dict)
    payload: bytes = b""
    """The payload of rank 0, or else of the lowest rank here, which is sent on."""

    skip: bool = False
    """A child wants the step left out."""

    refusal: str = ""
    """How the children differ, once they are known to."""

    def add(self, ranks: int, statement: str, payload: bytes) -> bool:
        """Note what a child states; True as soon as all agree. Raises DisagreementError."""
        self.statements[ranks] = statement
        if ranks == self.children[0]:
            self.payload = payload
        if len(self.statements) < len(self.children):
            return False
        if len(set(self.statements.values())) > 1:
            groups: dict[str, list[int]] = {}
            for child, each in sorted(self.statements.items()):
                groups.setdefault(each, []).append(child)
            found = "; ".join(
                f"ranks {ranks_text(group)}: {each[:24]}"
                for each, group in list(groups.items())[:4]
            )
            self.refusal = (
                f"the {self.what} differ between ranks ({found}); every rank must use "
                "the same, and must have frozen the same parameters"
            )
            raise DisagreementError(self.refusal)
        return True


class AgreedStatements:
    """The statements of one kind about the steps that are open."""

    def __init__(self, children: Sequence[int]) -> None:
        self._children = children
        self._of: dict[int, AgreedStatement] = {}

    def of(self, step: int) -> AgreedStatement:
        """The statements about a step."""
        what = f"hyper-parameters of step {step}"
        return self._of.setdefault(step, AgreedStatement(what, self._children))

    def forget(self, step: int) -> None:
        """Forget a step."""
        self._of.pop(step, None)

    def __iter__(self) -> Iterator[tuple[int, AgreedStatement]]:
        return iter(self._of.items())


class BeginCommit:
    """See the module. `patience_ns`: None where all children are waited for."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, patience_ns: int | None
    ) -> None:
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._begins = AgreedStatements(children.members.children)
        self._begun = -1
        """The last step whose `Begin` the parent has; only then is a child answered, since a switch
        that is started again would not know it."""
        self._commits = AgreedStatements(children.members.children)
        self._lateness = Lateness(_LATE_NS if patience_ns is None else patience_ns)
        self._named_step = -1
        """The last step in which a child was named as late."""

    def forget(self, step: int | None = None) -> None:
        """Forget a step; without one, in a new attempt, all of the older."""
        if step is not None:
            self._begins.forget(step)
            self._commits.forget(step)
            return
        self._begun = self._named_step = -1
        self._begins = AgreedStatements(self._children.members.counted)
        self._commits = AgreedStatements(self._children.members.counted)
        self._lateness.forget()

    def waits_for(self) -> str:
        """The ranks whose commit is missing, as text; or nothing."""
        for step, agreed in self._commits:
            missing = self._children.members.missing(agreed.statements)
            if missing:
                return f"step {step}: commit of ranks {missing}"
        return ""

    # ---------------------------------------------------------------------- from children

    def begin(self, child: Member, m: wire.Begin, hyper: bytes) -> None:
        """A child states the hyper-parameters of a step."""
        if m.step <= max(self._begun, self._outbox.step - 1):
            self._outbox.send(child.peer, self._outbox.receipt(m, Verb.BEGIN))
        elif m.step <= self._outbox.step + 1:
            agreed = self._begins.of(m.step)
            if self._agree(child, agreed, m.hyper_hash, hyper):
                begin = self._outbox.stamped(
                    wire.Begin, step=m.step, contributors=self._children.members.active,
                    hyper_hash=m.hyper_hash,
                )  # fmt: skip
                self._uplink.ask(self._outbox.now_ns, ("begin", m.step), begin, agreed.payload)

    def commit(self, child: Member, m: wire.Commit, hyper: bytes) -> None:
        """A child has sent all pushes of a step, or asks how it came out."""
        if self._children.answer_commit(child.peer, m.step):
            return
        if m.step == self._outbox.step - 1 and not self._uplink.asks("late-commit"):
            self._send_commit("late-commit", m.step)
        if m.step != self._outbox.step:
            return
        agreed = self._commits.of(m.step)
        self._lateness.came(self._outbox.now_ns, m.step, child.ranks)
        agreed.skip = agreed.skip or m.skip
        if self._agree(child, agreed, f"{m.parts} backward passes, {m.hyper_hash}", hyper):
            self._lateness.complete(m.step)
            self._send_commit(
                "commit", m.step, m.hyper_hash, m.parts, agreed.payload, skip=agreed.skip
            )

    def _agree(
        self, child: Member, agreed: AgreedStatement, statement: str, payload: bytes
    ) -> bool:  # fmt: skip
        """Note what a child states; True when it is the last and all state the same."""
        if agreed.refusal:  # it asks again: the refusal was lost
            self._outbox.send(child.peer, self._outbox.stamped(wire.Refuse, text=agreed.refusal))
        elif child.ranks not in agreed.statements:
            try:
                return agreed.add(child.ranks, statement, payload)
            except DisagreementError as exc:
                self._children.send_all(self._outbox.stamped(wire.Refuse, text=str(exc)))
        return False

    # ---------------------------------------------------------------------- who is late

    def late_ns(self) -> int | None:
        """When whoever has not committed the open step is late; None: nobody is, or it is named."""
        if self._named_step >= self._outbox.step or self._uplink.asks("commit"):
            return None
        return self._lateness.deadline_ns(self._outbox.step)

    def name_late(self) -> list[int]:
        """Name in the log who is late, if any is now; the workers among them, as bitmaps."""
        late_ns = self.late_ns()
        if late_ns is None or self._outbox.now_ns < late_ns:
            return []
        self._named_step = step = self._outbox.step
        committed = self._commits.of(step).statements
        late = [ranks for ranks in self._children.members.counted if ranks not in committed]
        self._outbox.note(
            "switch.late", level="WARNING", step=step, ranks=ranks_text(late),
            limit_s=self._lateness.limit_ns / 1e9, usual_s=self._lateness.usual_ns / 1e9,
        )  # fmt: skip
        return [ranks for ranks in late if ranks.bit_count() == 1]

    # ---------------------------------------------------------------------- from the parent

    def begin_received(self, m: wire.Received) -> None:
        """The parent has the Begin of a step."""
        if self._uplink.answered(("begin", m.step)):
            self._begun = m.step
            self._children.send_all(self._outbox.receipt(m, Verb.BEGIN))

    def is_judged_by(self, m: wire.Verdict | wire.Decided) -> bool:
        """True if this is the first news of how the open step came out."""
        return m.step == self._outbox.step and not self._children.outcomes.is_judged(m.step)

    def hyper_of(self, step: int) -> bytes:
        """The hyper-parameters that were committed with a step."""
        return self._commits.of(step).payload

    def ask_after_skip(self, step: int, skipped_attempt: int, hyper: bytes) -> None:
        """A new attempt began as a step was skipped: ask in it for the decision of the step."""
        self._children.outcomes.skipped_attempt = skipped_attempt
        self._send_commit("commit", step, hyper=hyper)

    def judged(self, m: wire.Verdict | wire.Decided) -> None:
        """How the open step came out: announce it."""
        verdict = self._outbox.stamped(
            wire.Verdict, step=m.step, applied=m.applied, grad_norm=m.grad_norm
        )
        self._children.outcomes.verdict = verdict
        if not m.applied:
            self._children.outcomes.skip = verdict
        self._children.send_all(verdict)

    def decided(self, m: wire.Decided) -> None:
        """A step is durable: announce it."""
        decided = self._outbox.stamped(
            wire.Decided, step=m.step, applied=m.applied, grad_norm=m.grad_norm
        )
        self._children.outcomes.decided = decided
        self._children.send_all(decided)

    def _send_commit(
        self, name: str, step: int, hyper_hash: str = "", parts: int = 0, hyper: bytes = b"", *,
        skip: bool = False,
    ) -> None:  # fmt: skip
        """Ask for the decision of a step; of one whose commit the parent has, without parts."""
        commit = self._outbox.stamped(
            wire.Commit, step=step, contributors=self._children.members.active,
            hyper_hash=hyper_hash, parts=parts, skip=skip,
        )  # fmt: skip
        self._uplink.ask(self._outbox.now_ns, name, commit, hyper)

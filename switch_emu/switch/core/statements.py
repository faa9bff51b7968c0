"""Begin, Commit and Propose at the switch: N children state them, one goes to the parent. Pure.

    Begin     all children have sent it: one to the parent     Received, when the parent has it
    Commit    all children have sent it: one to the parent     Verdict, then Decided
    Propose   all children have sent it: one to the parent     Agreed, when the parent sends it

Begin and Commit are of a step, of which all children must state the same: their hyper-parameters,
and the number of their backward passes. Where they differ all are sent Refuse, with what differs,
its values and their ranks. A child that asks later, or again, is sent the same answer again.

When each child commits a step shows who is late (`Lateness`): it is named in the log, and missed
where the job goes on without lost ranks. A late switch is only named: it misses its own children.

A child's *lateness* is the time from the median of all commits of a step to its own. What is usual
is the median of the last ones, and how much they scatter is their median absolute deviation (MAD),
which a few outliers do not move:

    deadline = max(least, median + 6 MAD)

A fixed deadline would have to be set by hand for each model and machine.

Propose is of an extent, before it is pushed: what a child must know of all others before it encodes
the extent. An answer is held until its step is decided, for children that ask late or again. Which
aggregator combines the proposals follows from the job's description, which the first child brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.base.errors import ConfigError
from luwu.protocol.children import Children, Member, RefusedError, ranks_text
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.description import aggregate_of
from luwu.wire.hyper import named_values
from luwu.wire.messages import Verb
from switch_emu.switch.core.attempts import Attempts
from switch_emu.switch.core.slots import SlotKey

MADS = 6
_KEPT_COUNT = 256
"""Latenesses that are remembered, of all children together."""


class Lateness:
    """See the module. `least_ns`: no child is late before."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._last: deque[int] = deque(maxlen=_KEPT_COUNT)
        self._came_ns: dict[int, dict[int, int]] = {}
        self._completed = -1
        """The last step that all have committed."""

    def came(self, now_ns: int, step: int, child: int) -> None:
        """A child has committed a step, perhaps not for the first time."""
        if step > self._completed:
            self._came_ns.setdefault(step, {}).setdefault(child, now_ns)

    def complete(self, step: int) -> None:
        """All have: learn from it."""
        self._completed = step
        came_ns = self._came_ns.pop(step, {})
        if len(came_ns) > 1:
            middle_ns = int(median(came_ns.values()))
            self._last.extend(max(0, at_ns - middle_ns) for at_ns in came_ns.values())

    def forget(self) -> None:
        """The attempt is over: its steps are done again."""
        self._came_ns.clear()
        self._completed = -1

    @property
    def usual_ns(self) -> int:
        """How late anybody usually is."""
        return int(median(self._last)) if self._last else 0

    @property
    def limit_ns(self) -> int:
        """The delay behind the median child from which on a child is late."""
        if not self._last:
            return self._least_ns
        usual = self.usual_ns
        scatter_ns = int(median(abs(each - usual) for each in self._last))
        return max(self._least_ns, usual + MADS * scatter_ns)

    def deadline_ns(self, step: int) -> int | None:
        """When those who have not committed a step are late; None while none has."""
        came_ns = self._came_ns.get(step)
        return int(median(came_ns.values())) + self.limit_ns if came_ns else None


_KEPT_MAX = 4
"""Different statements of children that are kept, to say how they differ."""
_LATE_NS = 5 * 10**9
"""Where all are waited for, no child is named as late before this."""


class Statement(NamedTuple):
    """What a child states of a step."""

    hyper: bytes
    parts: int = 0
    """Backward passes; 0 while they are not known."""


@dataclass(slots=True)
class AgreedStatement:
    """The common statement of all children about one step."""

    step: int
    children: Sequence[int]
    kept: list[Statement] = field(default_factory=list)
    """What is stated, each once, in the order in which it came; at most a few."""
    of: dict[int, Statement | None] = field(default_factory=dict)
    """Child -> which of these it states. None: another."""

    skip: bool = False
    """A child wants the step left out."""

    refusal: str = ""
    """How the children differ, once they are known to."""

    def add(self, ranks: int, statement: Statement) -> bool:
        """Note what a child states; True as soon as all agree."""
        if statement not in self.kept and len(self.kept) < _KEPT_MAX:
            self.kept.append(statement)
        self.of[ranks] = statement if statement in self.kept else None
        is_complete = len(self.of) == len(self.children)
        if is_complete and len(self.kept) > 1:
            self.refusal = (
                f"the hyper-parameters of step {self.step} differ between ranks "
                f"({self._differences():.700}); every rank must call and set the same"
            )
        return is_complete and not self.refusal

    def _differences(self) -> str:
        """What differs, with each value and its ranks."""
        values_of = {
            each: {"number of backward passes": f"{each.parts}"} | named_values(each.hyper)
            for each in self.kept
        }
        lines = []
        for name in dict.fromkeys(name for values in values_of.values() for name in values):
            ranks_of: dict[str, list[int]] = {}
            for child, stated in sorted(self.of.items()):
                if stated is not None:
                    value = values_of[stated].get(name, "none")
                    ranks_of.setdefault(value, []).append(child)
            if len(ranks_of) > 1:
                found = (f"{value} on ranks {ranks_text(c)}" for value, c in ranks_of.items())
                lines.append(f"{name} is {' and '.join(found)}")
        return "; ".join(lines)


class AgreedStatements(dict[int, AgreedStatement]):
    """The statements of one kind about the steps that are open."""

    def __init__(self, children: Sequence[int]) -> None:
        super().__init__()
        self._children = children

    def __missing__(self, step: int) -> AgreedStatement:
        return self.setdefault(step, AgreedStatement(step, self._children))


class BeginCommit:
    """See the module. `drop_after_ns`: None where all children are waited for."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, drop_after_ns: int | None
    ) -> None:
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._begins = AgreedStatements(children.members.children)
        self._begun = -1
        """The last step whose `Begin` the parent has; only then is a child answered, since a switch
        that is started again would not know it."""
        self._commits = AgreedStatements(children.members.children)
        self._lateness = Lateness(_LATE_NS if drop_after_ns is None else drop_after_ns)
        self._named_step = -1
        """The last step in which a child was named as late."""

    def forget(self, step: int | None = None) -> None:
        """Forget a step; without one, in a new attempt, all of the older."""
        if step is not None:
            self._begins.pop(step, None)
            self._commits.pop(step, None)
            return
        self._begun = self._named_step = -1
        self._begins = AgreedStatements(self._children.members.counted)
        self._commits = AgreedStatements(self._children.members.counted)
        self._lateness.forget()

    def waits_for(self) -> str:
        """The ranks whose commit is missing, as text; or nothing."""
        for step, agreed in self._commits.items():
            missing = self._children.members.missing(agreed.of)
            if missing:
                return f"step {step}: commit of ranks {missing}"
        return ""

    # ---------------------------------------------------------------------- from children

    def begin(self, child: Member, m: wire.Begin, hyper: bytes) -> None:
        """A child states the hyper-parameters of a step."""
        if m.step <= max(self._begun, self._outbox.step - 1):
            self._outbox.send(child.peer, self._outbox.receipt(m, Verb.BEGIN))
        elif m.step <= self._outbox.step + 1:
            agreed = self._begins[m.step]
            if self._agree(child, agreed, Statement(hyper)):
                begin = self._outbox.stamped(
                    wire.Begin, step=m.step, contributors=self._children.members.active
                )
                self._uplink.ask(self._outbox.now_ns, ("begin", m.step), begin, hyper)

    def commit(self, child: Member, m: wire.Commit, hyper: bytes) -> None:
        """A child has sent all pushes of a step, or asks how it came out."""
        if self._children.answer_commit(child.peer, m.step):
            return
        if m.step == self._outbox.step - 1 and not self._uplink.asks("late-commit"):
            self._send_commit("late-commit", m.step)
        if m.step != self._outbox.step:
            return
        agreed = self._commits[m.step]
        self._lateness.came(self._outbox.now_ns, m.step, child.ranks)
        agreed.skip = agreed.skip or m.skip
        if self._agree(child, agreed, Statement(hyper, m.parts)):
            self._lateness.complete(m.step)
            self._send_commit("commit", m.step, m.parts, hyper, skip=agreed.skip)

    def _agree(self, child: Member, agreed: AgreedStatement, statement: Statement) -> bool:
        """Note what a child states; True when it is the last and all state the same."""
        is_new = child.ranks not in agreed.of
        if is_new and agreed.add(child.ranks, statement):
            return True
        if agreed.refusal:  # to one that asks again it was lost
            peers = self._children.members.peers if is_new else (child.peer,)
            self._outbox.send_all(peers, self._outbox.stamped(wire.Refuse, text=agreed.refusal))
        return False

    # ---------------------------------------------------------------------- who is late

    def late_ns(self) -> int | None:
        """When a child without a commit of the open step is late; None: none is, or it is named."""
        if self._named_step >= self._outbox.step or self._uplink.asks("commit"):
            return None
        return self._lateness.deadline_ns(self._outbox.step)

    def name_late(self) -> list[int]:
        """Name in the log who is late, if any is now; the workers among them, as bitmaps."""
        late_ns = self.late_ns()
        if late_ns is None or self._outbox.now_ns < late_ns:
            return []
        self._named_step = step = self._outbox.step
        committed = self._commits[step].of
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
        kept = self._commits[step].kept
        return kept[0].hyper if kept else b""

    def ask_after_skip(self, step: int, skipped_attempt: int, hyper: bytes) -> None:
        """A new attempt began as a step was skipped: ask in it for the decision of the step."""
        self._children.outcomes.skipped_attempt = skipped_attempt
        self._send_commit("commit", step, hyper=hyper)

    def judged(self, m: wire.Verdict | wire.Decided) -> None:
        """How the open step came out: announce it."""
        verdict = self._outbox.stamped(wire.Verdict, step=m.step, applied=m.applied, norms=m.norms)
        self._children.outcomes.verdict = verdict
        if not m.applied:
            self._children.outcomes.skip = verdict
        self._children.send_all(verdict)

    def decided(self, m: wire.Decided) -> None:
        """A step is durable: announce it."""
        decided = self._outbox.stamped(wire.Decided, step=m.step, applied=m.applied, norms=m.norms)
        self._children.outcomes.decided = decided
        self._children.send_all(decided)

    def _send_commit(
        self, name: str, step: int, parts: int = 0, hyper: bytes = b"", *, skip: bool = False
    ) -> None:
        """Ask for the decision of a step; of one whose commit the parent has, without parts."""
        commit = self._outbox.stamped(
            wire.Commit, step=step, contributors=self._children.members.active, parts=parts,
            skip=skip,
        )  # fmt: skip
        self._uplink.ask(self._outbox.now_ns, name, commit, hyper)


class Agreement:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, attempts: Attempts
    ) -> None:
        self._outbox, self._uplink, self._attempts = outbox, uplink, attempts
        self._children, self._members = children, children.members
        self.aggregator: Aggregator = Float32(self._members.ranks.bit_count())
        """The job's, known from the first Hello on."""
        self._described = False
        self._proposed: dict[SlotKey, dict[int, bytes]] = {}
        """Proposals of children; complete when the parent is asked."""
        self._agreed: dict[SlotKey, bytes] = {}

    def forget(self, step: int | None = None) -> None:
        """Forget the extents up to a decided step; without one, all."""
        for of_extents in (self._proposed, self._agreed):
            for key in [key for key in of_extents if step is None or key[0] <= step]:
                del of_extents[key]

    def learn(self, peer: str) -> None:
        """Make the aggregator of the first description; `peer`, which brought it, is sent Refuse if
        that is not possible here."""
        first = self._members.first
        if first is None or self._described:
            return
        try:
            name = aggregate_of(self._members.description)
            self.aggregator = make_aggregator(name, first.world_size)
            self._described = True
        except ConfigError as exc:
            self._children.refuse(peer, RefusedError(f"the switch cannot add: {exc}"))

    def propose(self, child: Member, m: wire.Propose, proposal: bytes) -> None:
        """A child states what it must agree on with all others; empty: it has no gradient."""
        key = (m.step, m.part, m.index)
        agreed = self._agreed.get(key)
        if agreed is not None:
            self._outbox.send_all((child.peer,), self._agreement(key), agreed)
            return
        step = self._outbox.step
        if not step <= m.step <= step + 1 or not self.aggregator.asks_first:
            return
        proposed = self._proposed.setdefault(key, {})
        if child.ranks in proposed:
            return
        proposed[child.ranks] = proposal
        if len(proposed) == len(self._members.counted):
            self._ask_parent(key, [each for each in proposed.values() if each])

    def _ask_parent(self, key: SlotKey, proposals: list[bytes]) -> None:
        step, part, extent = key
        try:
            combined = self.aggregator.fold(proposals) if proposals else b""
        except ValueError as exc:
            self._attempts.cancel(f"extent {extent}: {exc}")
            return
        propose = self._outbox.stamped(
            wire.Propose, step=step, part=part, index=extent, contributors=self._members.active
        )
        self._uplink.ask(self._outbox.now_ns, ("propose", *key), propose, combined)

    def agreed(self, m: wire.Agreed, agreed: bytes) -> None:
        """The parent knows what all have proposed."""
        key = (m.step, m.part, m.index)
        if self._uplink.answered(("propose", *key)):
            self._agreed[key] = agreed
            self._children.send_all(self._agreement(key), agreed)

    def _agreement(self, key: SlotKey) -> wire.Agreed:
        step, part, extent = key
        return self._outbox.stamped(wire.Agreed, step=step, part=part, index=extent)

"""The switch as a member of its job: joining, leaving, and which children count. Pure.

A first reader may skip this part: `switch.py` shows the course of a step. The switch sends one
Hello when all its children have joined, and one Leave when all have left. A new attempt is
announced by the parent; the switch adopts it and announces it to its children. Where the job goes
on without ranks that are lost, the switch reports which are present (`Presence`), and the node
decides which count.

A child is *in* from its Hello on, until its connection ends or it is found silent. It is missed
`drop_after_ns` later, which a new connection, or a new start of it, may prevent; one that is
silent, at once. A child that is a switch reports which of its ranks are present (`Present`, and in
Hello).

    in        `joined`                Hello came
    away      `lost`                  the connection ended; or others came and it did not
    missed    `present` leaves it out: it is away for `drop_after_ns`
    in again  `joined`                at once the first time, and after a growing pause the next:
                                      each return makes all ranks compute a step again

No child is missed where the patience is None: the job waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.protocol.actions import End, Expel
from luwu.protocol.children import Children, KnowsMoreError, Member, RefusedError, ranks_text
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink, earliest
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.attempts import Attempts

_RETURNS_AT_ONCE = 1
_PAUSE_DOUBLINGS_MAX = 6


@dataclass(slots=True)
class _Child:
    reported: int
    """Ranks that are present below it."""
    roll: tuple[int, int] = (0, 0)
    """(its incarnation, the number of its report)."""
    away_ns: int | None = None
    """Since when it is away."""
    back_ns: int = 0
    """From when on it counts as in."""
    losses_count: int = 0


class Presence:
    """See the module. `children` are bitmaps of ranks."""

    def __init__(self, children: Sequence[int], drop_after_ns: int | None) -> None:
        self._drop_after_ns = drop_after_ns
        self._of = {ranks: _Child(ranks) for ranks in children}
        self._never_in = set(children)

    def joined(self, now_ns: int, ranks: int) -> None:
        """A child has sent Hello."""
        child = self._of[ranks]
        if len(self._never_in) == len(self._of):
            for other in self._of.values():
                other.away_ns = now_ns
        self._never_in.discard(ranks)
        if child.away_ns is None:
            return
        if self._drop_after_ns is not None and self._is_missed(child, now_ns):
            child.losses_count += 1
            doublings = child.losses_count - 1 - _RETURNS_AT_ONCE
            if doublings >= 0:
                pause_ns = self._drop_after_ns << min(doublings, _PAUSE_DOUBLINGS_MAX)
                child.back_ns = now_ns + pause_ns
        child.away_ns = None

    def reported(self, ranks: int, present: int, roll: tuple[int, int]) -> None:
        """A child reports which of its ranks are present; an older report undoes no later one."""
        child = self._of[ranks]
        if roll >= child.roll:
            child.reported, child.roll = present & ranks, roll

    def lost(self, now_ns: int, ranks: int) -> None:
        """The connection to a child has ended."""
        child = self._of[ranks]
        if child.away_ns is None:
            child.away_ns = now_ns

    def silent(self, now_ns: int, ranks: int) -> None:
        """A child is connected and does nothing, for too long: it is missed at once."""
        if self._drop_after_ns is not None:
            self._of[ranks].away_ns = now_ns - self._drop_after_ns

    def present(self, now_ns: int) -> int:
        """Bitmap of the ranks that are not missed."""
        present = 0
        for child in self._of.values():
            if not self._is_missed(child, now_ns):
                present |= child.reported
        return present

    def has_given_up(self, now_ns: int) -> bool:
        """True if every child that never came is missed, and another is in."""
        if self._drop_after_ns is None or len(self._never_in) == len(self._of):
            return False
        return all(self._is_missed(self._of[ranks], now_ns) for ranks in self._never_in)

    def next_ns(self, now_ns: int) -> int | None:
        """When a child is missed, or in again, by the passing of time alone."""
        if self._drop_after_ns is None:
            return None
        changes = [
            child.back_ns if child.away_ns is None else child.away_ns + self._drop_after_ns
            for child in self._of.values()
        ]
        return min((at_ns for at_ns in changes if at_ns > now_ns), default=None)

    def _is_missed(self, child: _Child, now_ns: int) -> bool:
        if self._drop_after_ns is None:
            return False
        if child.away_ns is None:
            return now_ns < child.back_ns
        return now_ns >= child.away_ns + self._drop_after_ns


MISSING_FIRST_NS: Final = 5 * 10**9
"""When the ranks that have joined are sent which have not, and how often it is repeated."""
MISSING_EVERY_NS: Final = 30 * 10**9
_JOB_IS_OVER = "the job is over: its other ranks have finished the last step"


class Membership:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, attempts: Attempts,
        limits: SwitchLimits,
    ) -> None:  # fmt: skip
        self._outbox, self._uplink, self._limits = outbox, uplink, limits
        self._children, self._members = children, children.members
        self._attempts = attempts
        self._presence = Presence(self._members.children, limits.drop_after_ns)
        self._reported = self._members.ranks
        """The ranks that were last reported as present."""
        self._roll = 0
        self._unwelcomed: set[int] = set()
        """Children, by their ranks, that were started again: the next attempt admits them. What
        their former start pushed must not meet in one sum, or one step, what they push."""
        self.counted = 0
        """Ranks of the whole job that count, as the parent announced them."""
        self.joined = False
        """The parent has welcomed this switch."""
        self.is_over = False
        """Every child has left, and the parent knows."""
        self._is_in_doubt = self._is_confirmed = False
        """A child knows more than this switch, which has asked its parent; which was answered."""
        self._missing_ns: int | None = None
        """When children are sent next which ranks have not joined; None: nothing waits for that."""

    # ---------------------------------------------------------------------- time and connections

    def tick(self) -> None:
        """Report presence and missing ranks, if they are due."""
        self._report_presence()
        self._name_missing()

    def next_ns(self) -> int | None:
        """When `tick` has something to do, or a rank is missed by the passing of time."""
        return earliest(self._presence.next_ns(self._outbox.now_ns), self._missing_ns)

    def lost(self, peer: str) -> None:
        """The connection to a child has ended."""
        member = self._members.member_at(peer)
        if member is not None and not member.left:
            self._presence.lost(self._outbox.now_ns, member.ranks)

    def silent(self, ranks: int) -> None:
        """A child is connected, and late with a step."""
        self._presence.silent(self._outbox.now_ns, ranks)

    def reconnected(self) -> None:
        """The connection to the parent, or to its successor, is back."""
        if self._members.complete and not self.is_over:
            self._send_hello()

    def waits_for(self) -> str:
        """The members that the switch waits for before it joins, as text; or nothing."""
        if self.joined:  # perhaps without ranks that are lost, or not there yet
            return ""
        if not self._members.complete:
            return f"Hello of ranks {self._members.missing()}"
        return "Welcome of the parent"

    # ---------------------------------------------------------------------- from children

    def hello(self, peer: str, m: wire.Hello, description: bytes) -> None:
        """A child joins, for the first time or again."""
        try:
            if self.is_over and not m.contributors & self._members.active:
                raise RefusedError(_JOB_IS_OVER)
            if self.joined and not self._is_as_known((m.generation, m.attempt, m.step)):
                return
            replaced = self._members.join(peer, m, description)
        except RefusedError as exc:
            self._children.refuse(peer, exc)
            return
        self._presence.joined(self._outbox.now_ns, m.contributors)
        self._presence.reported(m.contributors, m.present, (m.incarnation, m.roll))
        counts = m.contributors & self._members.active
        # Before there are weights, no gradient is lost. If this switch has to join again, the
        # attempt may go on, and the child is never again seen to be a later start.
        if replaced and counts and self._children.loaded:
            self._unwelcomed.add(m.contributors)
            text = f"ranks {ranks_text([m.contributors])} were started again"
            self._attempts.cancel(text, lost=m.contributors)
        if self.joined and not counts:
            self._send_present()  # it is welcomed with the attempt in which it counts again
        elif self.joined:
            if self.is_over or m.contributors not in self._unwelcomed:
                self._outbox.send(peer, self._welcome())
        elif not self._uplink.asks("hello"):
            self._report_presence()
            if self._missing_ns is None and not self._members.complete:
                self._missing_ns = self._outbox.now_ns + MISSING_FIRST_NS

    def present(self, child: Member, m: wire.Present) -> None:
        """A switch below reports which of its ranks are present."""
        counts = self._members.counts(child)
        if self.is_over and not counts:
            self._children.refuse(child.peer, RefusedError(_JOB_IS_OVER))
            return
        self._presence.reported(child.ranks, m.contributors, (m.incarnation, m.roll))
        self._outbox.send(child.peer, self._outbox.receipt(m, Verb.PRESENT, m.contributors))
        if self.joined and not counts:
            self._send_present()
        else:
            self._report_presence()

    def leave(self, child: Member, m: wire.Leave) -> None:
        """A child has done its last step."""
        child.left = True
        if self.is_over:
            self._outbox.send(child.peer, self._outbox.receipt(m, Verb.LEAVE))
        elif self._members.all_left and not self._uplink.asks("leave"):
            self._send_leave()

    def is_current(self, child: Member, m: wire.Message) -> bool:
        """True if a child's message may change anything; answers a child that is behind."""
        outbox = self._outbox
        if self.joined and not self._members.counts(child):
            text = f"ranks {ranks_text([child.ranks])} are not in it"
            outbox.send(child.peer, self._children.abort(text))
            return False
        if not self.joined or m.attempt > outbox.attempt or m.generation > outbox.generation:
            return False  # it will ask again, and by then this switch knows
        if m.attempt == outbox.attempt and m.generation == outbox.generation:
            return True
        self._children.answer_stale(child.peer, m)
        return False

    def expel(self, child: Member, text: str) -> None:
        """A child broke the protocol: this start of it is ignored, and counts as lost."""
        peer, ranks = child.peer, ranks_text([child.ranks])
        self._outbox.note("switch.expelled", level="ERROR", peer=peer, ranks=ranks, text=text)
        self._members.expel(child, text)
        self._presence.lost(self._outbox.now_ns, child.ranks)
        refusal = f"ranks {ranks}: {text}"[:TEXT_CHARS_MAX]
        self._outbox.send(peer, self._outbox.stamped(wire.Refuse, text=refusal))
        self._outbox.actions.append(Expel(peer))

    # ---------------------------------------------------------------------- from the parent

    def rejoin(self, m: wire.Rejoin) -> None:
        """The parent was started again, and knows no child."""
        if self._members.complete and not self._uplink.asks("hello"):
            self.joined = False
            self._send_hello()

    def awaits(self, m: wire.Welcome) -> bool:
        """True if a Welcome is to be followed: it was asked for, or it opens a later attempt.

        A parent that is a switch sends one unasked when its own parent was replaced.
        """
        is_answer = self._uplink.answered("hello")
        # One that was not asked for counts only if it is later: else it is a repetition.
        return is_answer or (self.joined and m.attempt > self._outbox.attempt)

    def welcomed(self, m: wire.Welcome) -> bool:
        """Follow a Welcome. False if only the connection was lost, and nothing else is."""
        outbox, children = self._outbox, self._children
        is_same = m.attempt == outbox.attempt and m.generation == outbox.generation
        self.joined, children.loaded = True, m.loaded
        outbox.epoch, outbox.generation = m.epoch, m.generation
        self._uplink.window_bytes = self._limits.window(m.push_window_bytes)
        self._is_confirmed, self._is_in_doubt = self._is_in_doubt, False
        if is_same:
            self._uplink.hurry(outbox.now_ns)
            return False
        self._unwelcomed.clear()
        self._count(m)
        return True

    def welcome_children(self, *, is_first: bool) -> None:
        """Announce the attempt that has begun; `is_first`: of this start of the switch."""
        if is_first:
            self._compare_with_children()
        self._children.send_all(self._welcome())

    def aborted(self, m: wire.Abort) -> tuple[str, ...] | None:
        """Follow an Abort. The children of the former attempt; None if it brings no later one."""
        self._children.loaded = m.loaded
        if m.attempt <= self._outbox.attempt:
            return None
        waiting = {self._members.peer_of(ranks) for ranks in self._unwelcomed}
        former = tuple(peer for peer in self._members.peers if peer not in waiting)
        self._unwelcomed.clear()
        self._outbox.epoch, self._outbox.generation = m.epoch, m.generation
        self._count(m)
        return former

    def _count(self, m: wire.Welcome | wire.Abort) -> None:
        self.counted = m.contributors
        self._members.active = m.contributors & self._members.ranks

    def abort_children(self, former: tuple[str, ...], text: str) -> None:
        """Announce the attempt that has begun: to `former`, who may not count any more, as the end
        of theirs; to those that are new in it, as a welcome."""
        for peer in former:
            self._outbox.send(peer, self._children.abort(text))
        for peer in self._members.peers:
            if peer not in former:
                self._outbox.send(peer, self._welcome())

    def refused(self, m: wire.Refuse) -> None:
        """The parent refuses this switch, and so all its children, whether they count or not; or a
        later start of it leads: then its children find that one when this one has ended."""
        self._uplink.answered("present")
        if m.is_left_out:
            self._outbox.actions.append(End(m.text, code="E512"))
            return
        refusal = self._outbox.stamped(wire.Refuse, text=m.text, is_older=m.is_older)
        self._outbox.send_all(self._members.everyone, refusal)
        if m.is_older or self.joined:
            return  # a node whose state is older ends itself, and can say more
        if self._uplink.answered("hello"):
            self._outbox.actions.append(End(f"the job was rejected: {m.text}"))

    def ranks_joined(self, m: wire.Received) -> None:
        """The parent knows which ranks have joined: children wait for the others."""
        self._send_joined(m.contributors)

    def present_received(self, m: wire.Received) -> None:
        """The parent knows which ranks are present."""
        if m.contributors == self._reported:
            self._uplink.answered("present")

    def leave_received(self, m: wire.Received) -> None:
        """The parent knows that all have left."""
        if self._uplink.answered("leave"):
            self.is_over = True
            self._children.send_all(self._outbox.receipt(m, Verb.LEAVE))

    def leave_if_all_left(self) -> None:
        """Send Leave in a new attempt, whose children may all have left before."""
        if self._members.all_left and not self.is_over:
            self._send_leave()

    # ---------------------------------------------------------------------- what is compared

    def _knows_more(self, known: tuple[int, int, int]) -> bool:
        """True if a child was sent what the state does not know."""
        *when, step = known
        found = self._outbox
        return step > found.step or when > [found.generation, found.attempt]

    def _is_as_known(self, known: tuple[int, int, int]) -> bool:
        """False if a child knows more, and this switch asks its parent first: another start of it
        may lead. Raises KnowsMoreError."""
        if not self._knows_more(known):
            return True
        if self._is_confirmed:
            self._is_confirmed = False
            raise KnowsMoreError(self._outbox.step, known[2])
        self._is_in_doubt = True
        if not self._uplink.asks("hello"):
            self._send_hello()
        return False

    def _compare_with_children(self) -> None:
        """Children that joined before this switch did may know more than an older state."""
        for member in self._members.all_members:
            if self._knows_more(member.known):
                error = KnowsMoreError(self._outbox.step, member.known[2])
                self._children.refuse(member.peer, error)
            if member.known[:2] == (self._outbox.generation, self._outbox.attempt):
                # It cannot tell what it was sent then from what it is sent now.
                self._attempts.cancel("the switch was started again")

    # ---------------------------------------------------------------------- what is sent

    def _name_missing(self) -> None:
        """Send those that wait for others whom they wait for."""
        if self._missing_ns is None or self._outbox.now_ns < self._missing_ns:
            return
        first = self._members.first
        if self.joined or self._members.complete or first is None:  # nobody waits for a child
            self._missing_ns = None
            return
        self._missing_ns = self._outbox.now_ns + MISSING_EVERY_NS
        elsewhere = ((1 << first.world_size) - 1) & ~self._members.ranks  # the parent knows
        self._send_joined(elsewhere | self._members.joined)

    def _send_joined(self, ranks: int) -> None:
        receipt = self._outbox.receipt_of(Verb.HELLO, 0, contributors=ranks)
        self._outbox.send_all(self._members.everyone, receipt)

    def _report_presence(self) -> None:
        """Send Hello once no child is waited for any more; then which ranks are present, if that
        changed."""
        if self.is_over or self._uplink.asks("hello"):
            return
        if not self.joined:
            if self._members.complete or self._presence.has_given_up(self._outbox.now_ns):
                self._send_hello()
            return
        if self._presence.present(self._outbox.now_ns) != self._reported:
            self._send_present()

    def _send_present(self) -> None:
        """Report which ranks are present; again for a rank that wants to join: all may be over."""
        present = self._presence.present(self._outbox.now_ns)
        is_sent = self._uplink.asks("present") and present == self._reported
        if self.is_over or is_sent or self._uplink.asks("hello"):  # Hello says it too
            return
        self._reported = present
        self._roll += 1
        report = self._outbox.stamped(wire.Present, contributors=present, roll=self._roll)
        self._uplink.ask(self._outbox.now_ns, "present", report)

    def _welcome(self) -> wire.Welcome:
        return self._children.welcome(self._limits.window(self._limits.push_window_bytes))

    def _send_hello(self) -> None:
        first = self._members.first
        assert first is not None
        self._reported = self._presence.present(self._outbox.now_ns)
        self._roll += 1
        self._uplink.answered("present")
        hello = self._outbox.stamped(
            wire.Hello, protocol=first.protocol, world_size=first.world_size,
            contributors=self._members.ranks, present=self._reported, roll=self._roll,
            description_hash=first.description_hash, extent_chunks=self._limits.extent_chunks,
        )  # fmt: skip
        self._uplink.ask(self._outbox.now_ns, "hello", hello, self._members.description)

    def _send_leave(self) -> None:
        leave = self._outbox.stamped(wire.Leave, contributors=self._members.ranks)
        self._uplink.ask(self._outbox.now_ns, "leave", leave)

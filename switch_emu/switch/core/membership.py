"""The switch as a member of its job: joining, leaving, and which attempt counts. Pure.

What a first reader may skip: `core.py` shows the course of a step. The switch says one Hello when
all its children have said theirs, and one Leave when all have left; in between it hands on what
opens a new attempt, and forgets what belongs to an older one. Where the job goes on without ranks
that are lost, it says whom it hears (`presence.py`); the node says which ranks count in an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import End, Expel
from luwu.protocol.members import KnowsMoreError, Member, RefusedError, ranks_text
from luwu.protocol.parent import Parent
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from switch_emu.switch.core.actions import Action, SwitchLimits
from switch_emu.switch.core.presence import Presence

MISSING_FIRST_NS: Final = 5 * 10**9
"""When the ranks that have joined are told which have not, and how often it is said again."""
MISSING_EVERY_NS: Final = 30 * 10**9
_JOB_IS_OVER = "the job is over: its other ranks have finished the last step"


class SwitchMember(Parent):
    """See the module. Subclasses extend `_forget` with what they hold of an attempt."""

    def __init__(
        self, job: int, incarnation: int, rank: int, children: Sequence[int],
        limits: SwitchLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(
            job=job, role=Role.SWITCH, rank=rank, incarnation=incarnation, children=children
        )
        self._limits = limits
        self._now_ns = 0
        self._uplink = Uplink(self._actions, retry)
        self._presence = Presence(self._members.children, limits.patience_ns)
        self._told_present = self._members.ranks
        """Whom the parent was told that we hear."""
        self._roll = 0
        self._lost = 0
        """Ranks that were started again since the attempt began."""
        self._unwelcomed: set[int] = set()
        """Children, by their ranks, that were: they are welcomed to the next attempt. What their
        former start pushed must not meet in one sum, or one step, what they push."""
        self._joined = False
        self._gone = False
        self._missing_ns: int | None = None
        """When children are told next who has not joined; None: nobody waits for that."""

    def _forget(self, step: int | None = None) -> None:
        """Forget what a decided step needed; without one, in a new attempt, all of the older."""
        if step is None:
            self._uplink.forget(lambda name: name == "present")
            self._lost = 0
            self._outcomes.undo(self._step)

    # ---------------------------------------------------------------------- events

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to the parent, or to its successor, is back."""
        self._now_ns = now_ns
        if self._members.complete and not self._gone:
            self._say_hello()
        return self._take()

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        """The connection to a child has ended."""
        self._now_ns = now_ns
        member = self._members.member_at(peer)
        if member is not None and not member.left:
            self._presence.lost(now_ns, member.ranks)
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self._now_ns = now_ns
        self._call_the_roll()
        self._name_missing()
        self._uplink.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        due = (
            self._uplink.next_tick_ns(), self._presence.next_ns(self._now_ns), self._missing_ns,
        )  # fmt: skip
        return min((at_ns for at_ns in due if at_ns is not None), default=None)

    @property
    def finished(self) -> bool:
        """Every child has left, and the parent knows."""
        return self._gone

    @property
    def is_joined(self) -> bool:
        """The parent has welcomed us."""
        return self._joined

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._members.complete:
            return f"Hello of ranks {self._members.missing()}"
        if not self._joined:
            return "Welcome of the parent"
        return f"step {self._step}: {len(self._uplink)} answers of the parent"

    # ---------------------------------------------------------------------- children

    def _hello(self, peer: str, m: wire.Hello, description: bytes) -> None:
        try:
            if self._gone and not m.contributors & self._members.active:
                raise RefusedError(_JOB_IS_OVER)
            if self._joined:
                self._check_knows_no_more((m.generation, m.attempt, m.step))
            replaced = self._members.join(peer, m, description)
        except RefusedError as exc:
            self._refuse_child(peer, exc)
            return
        self._presence.heard(self._now_ns, m.contributors)
        self._presence.said(m.contributors, m.present, (m.incarnation, m.roll))
        if self._joined and not m.contributors & self._members.active:
            self._say_present()  # it is welcomed with the attempt in which it counts again
        elif self._joined:
            if replaced and self._loaded:  # before, nobody had weights to make a gradient of
                self._unwelcomed.add(m.contributors)
                text = f"ranks {ranks_text([m.contributors])} were started again"
                self._cancel(text, lost=m.contributors)
            if self._gone or m.contributors not in self._unwelcomed:
                self._tell(peer, self._welcome_child())
        elif not self._uplink.asks("hello"):
            self._call_the_roll()
            if self._missing_ns is None and not self._members.complete:
                self._missing_ns = self._now_ns + MISSING_FIRST_NS

    def _name_missing(self) -> None:
        """Tell those that wait for others whom they wait for."""
        if self._missing_ns is None or self._now_ns < self._missing_ns:
            return
        first = self._members.first
        if self._joined or self._members.complete or first is None:
            self._missing_ns = None
            return
        self._missing_ns = self._now_ns + MISSING_EVERY_NS
        elsewhere = ((1 << first.world_size) - 1) & ~self._members.ranks  # our parent knows
        self._tell_joined(elsewhere | self._members.joined)

    def _tell_joined(self, ranks: int) -> None:
        said = self._ours(
            wire.Received, step=0, chunk=0, part=0, verb=Verb.HELLO, contributors=ranks
        )
        self._announce(self._members.everyone, said)

    def _check_knows_no_more(self, known: tuple[int, int, int]) -> None:
        """Raise KnowsMoreError if a child was told what the state does not know.

        What the operator lets it make again, it can only be told under a later opening of the store
        than it knows; else it would take the answer for an old one.
        """
        *when, step = known
        may_redo = self._redoes and self._loaded
        if (step > self._step and not may_redo) or when > [self._generation, self._attempt]:
            raise KnowsMoreError(self._step, step)

    def _call_the_roll(self) -> None:
        """Say Hello once nobody is waited for any more; then, whom we hear, if that changed."""
        if self._gone or self._uplink.asks("hello"):
            return
        if not self._joined:
            if self._members.complete or self._presence.has_given_up(self._now_ns):
                self._say_hello()
            return
        if self._presence.present(self._now_ns) != self._told_present:
            self._say_present()

    def _present(self, peer: str, member: Member, m: wire.Present) -> None:
        """A switch below says whom it hears."""
        counts = self._members.counts(member)
        if self._gone and not counts:
            self._refuse_child(peer, RefusedError(_JOB_IS_OVER))
            return
        self._presence.said(member.ranks, m.contributors, (m.incarnation, m.roll))
        self._tell(peer, self._receipt(m, Verb.PRESENT, m.contributors))
        if self._joined and not counts:
            self._say_present()
        else:
            self._call_the_roll()

    def _say_present(self) -> None:
        """Say whom we hear; again, for one that asks to be let in: the job may be over by now."""
        present = self._presence.present(self._now_ns)
        is_said = self._uplink.asks("present") and present == self._told_present
        if self._gone or is_said or self._uplink.asks("hello"):
            return
        self._told_present = present
        self._roll += 1
        said = self._ours(wire.Present, contributors=present, roll=self._roll)
        self._uplink.ask(self._now_ns, "present", said)

    def _heard_present(self, m: wire.Received) -> None:
        if m.contributors == self._told_present:
            self._uplink.answered("present")

    def _is_current(self, peer: str, member: Member, m: wire.Message) -> bool:
        """Whether a member's message may change anything; tells those that are behind."""
        if self._joined and not self._members.counts(member):
            self._tell(peer, self._abort_child(f"ranks {ranks_text([member.ranks])} are not in it"))
            return False
        if not self._joined or m.attempt > self._attempt or m.generation > self._generation:
            return False  # it will ask again, and by then we know
        if m.attempt == self._attempt and m.generation == self._generation:
            return True
        self._answer_stale(peer, m)
        return False

    def _expel(self, peer: str, member: Member, text: str) -> None:
        """A member broke the protocol: this start of it is heard no more, and counts as lost."""
        ranks = ranks_text([member.ranks])
        self._note("switch.expelled", level="ERROR", peer=peer, ranks=ranks, text=text)
        self._members.expel(member, text)
        self._presence.lost(self._now_ns, member.ranks)
        self._tell(peer, self._ours(wire.Refuse, text=f"ranks {ranks}: {text}"[:TEXT_CHARS_MAX]))
        self._actions.append(Expel(peer))

    def _leave(self, peer: str, member: Member, m: wire.Leave) -> None:
        member.left = True
        if self._gone:
            self._tell(peer, self._receipt(m, Verb.LEAVE))
        elif self._members.all_left and not self._uplink.asks("leave"):
            self._say_leave()

    # ---------------------------------------------------------------------- the parent

    def _asked_to_rejoin(self) -> None:
        if self._members.complete and not self._uplink.asks("hello"):
            self._joined = False
            self._say_hello()

    def _welcomed(self, m: wire.Welcome) -> None:
        asked = self._uplink.answered("hello")
        if not asked and not (self._joined and m.attempt > self._attempt):
            return  # a parent that is a switch says it unasked when its own parent was replaced
        skip = m.skip(self._attempt, self._generation)
        if skip is not None and self._joined:
            self._judged(skip)
        is_first = self._generation == 0
        is_same = m.attempt == self._attempt and m.generation == self._generation
        self._joined, self._loaded, self._redoes = True, m.loaded, m.redoes
        self._epoch, self._generation = m.epoch, m.generation
        self._uplink.window_bytes = self._limits.window(m.push_window_bytes)
        if is_same:  # only the connection was lost: nothing else is
            self._uplink.hurry(self._now_ns)
            return
        self._unwelcomed.clear()
        self._adopt(m)
        if is_first:
            self._compare_with_children()
        self._tell_all(self._welcome_child())

    def _compare_with_children(self) -> None:
        """Children that were here before us may know more than an older copy of the state."""
        for member in self._members.all_members:
            try:
                self._check_knows_no_more(member.known)
            except KnowsMoreError as exc:
                self._refuse_child(member.peer, exc)
            if member.known[:2] == (self._generation, self._attempt):
                # It cannot tell what it was told then from what it is told now.
                self._cancel("the switch was started again")

    def _refused(self, m: wire.Refuse) -> None:
        """The parent does not take us in, or no more; also those wait that do not count."""
        self._uplink.answered("present")
        self._announce(
            self._members.everyone, self._ours(wire.Refuse, text=m.text, is_older=m.is_older)
        )
        if m.is_older or self._joined:
            return  # a node whose state is older ends itself, and can say more
        if self._uplink.answered("hello"):
            self._actions.append(End(f"the job was refused: {m.text}"))

    def _judged(self, m: wire.Verdict | wire.Decided) -> None:
        """How the open step came out."""
        raise NotImplementedError

    def _aborted(self, m: wire.Abort) -> None:
        self._loaded, self._redoes = m.loaded, m.redoes
        if m.attempt > self._attempt:
            waiting = {self._members.peer_of(ranks) for ranks in self._unwelcomed}
            former = [peer for peer in self._members.peers if peer not in waiting]
            self._unwelcomed.clear()
            self._epoch, self._generation = m.epoch, m.generation
            self._adopt(m)
            for peer in former:  # also to those that do not count any more
                self._tell(peer, self._abort_child(m.text))
            for peer in self._members.peers:
                if peer not in former:
                    self._tell(peer, self._welcome_child())

    def _adopt(self, m: wire.Welcome | wire.Abort) -> None:
        """Another attempt counts, and these ranks in it."""
        self._members.active = m.contributors & self._members.ranks
        self._begin_attempt(m.attempt, m.step)

    def _begin_attempt(self, attempt: int, step: int) -> None:
        self._attempt, self._step = attempt, step
        self._forget()
        if self._members.all_left and not self._gone:
            self._say_leave()

    def _heard_leave(self, m: wire.Received) -> None:
        if self._uplink.answered("leave"):
            self._gone = True
            self._tell_all(self._receipt(m, Verb.LEAVE))

    # ---------------------------------------------------------------------- what we say

    def _welcome_child(self) -> wire.Welcome:
        return self._welcome(self._limits.window(self._limits.push_window_bytes))

    def _say_hello(self) -> None:
        first = self._members.first
        assert first is not None
        self._told_present = self._presence.present(self._now_ns)
        self._roll += 1
        self._uplink.answered("present")
        hello = self._ours(
            wire.Hello, protocol=first.protocol, world_size=first.world_size,
            contributors=self._members.ranks, present=self._told_present, roll=self._roll,
            description_hash=first.description_hash,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, "hello", hello, self._members.description)

    def _say_leave(self) -> None:
        leave = self._ours(wire.Leave, contributors=self._members.ranks)
        self._uplink.ask(self._now_ns, "leave", leave)

    def _cancel(self, text: str, *, lost: int = 0) -> None:
        self._lost |= lost
        if lost or not self._uplink.asks("cancel"):
            cancel = self._ours(wire.Cancel, text=text[:900], lost=self._lost)
            self._uplink.ask(self._now_ns, "cancel", cancel)

"""The switch as a member of its job: joining, leaving, and which attempt counts. Pure.

What a first reader may skip: `core.py` shows the course of a step. The switch says one Hello when
all its children have said theirs, and one Leave when all have left; in between it hands on what
opens a new attempt, and forgets what belongs to an older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.outstanding import RetryPolicy
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from luwu.wire.uplink import Uplink
from switch_emu.switch.actions import Action, SwitchLimits
from switch_emu.switch.members import Member, RefusedError, ranks_text
from switch_emu.switch.parent import Parent


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
        self._joined = False
        self._gone = False

    def _forget(self, step: int | None = None) -> None:
        """Forget what a decided step needed; without one, in a new attempt, all of the older."""
        if step is None:
            self._uplink.forget()
            self._outcomes.undo(self._step)

    # ---------------------------------------------------------------------- events

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to the parent, or to its successor, is back."""
        self._now_ns = now_ns
        if self._members.complete and not self._gone:
            self._say_hello()
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self._now_ns = now_ns
        self._uplink.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""
        return self._uplink.next_tick_ns()

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
            replaced = self._members.join(peer, m, description)
        except RefusedError as exc:
            self._refuse_child(peer, exc)
            return
        if self._joined:
            self._tell(peer, self._welcome_child())
            if replaced:  # what its former start pushed cannot be told from what it will push
                self._cancel(f"ranks {ranks_text([m.contributors])} were started again")
        elif self._members.complete and not self._uplink.asks("hello"):
            self._say_hello()

    def _is_current(self, peer: str, m: wire.Message) -> bool:
        """Whether a member's message may change anything; tells those that are behind."""
        if not self._joined or m.attempt > self._attempt or m.generation > self._generation:
            return False  # it will ask again, and by then we know
        if m.attempt == self._attempt and m.generation == self._generation:
            return True
        self._answer_stale(peer, m)
        return False

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
        is_same = m.attempt == self._attempt and m.generation == self._generation
        self._joined, self._loaded = True, m.loaded
        self._epoch, self._generation = m.epoch, m.generation
        self._uplink.window_bytes = self._limits.window(m.push_window_bytes)
        if is_same:  # only the connection was lost: nothing else is
            self._uplink.hurry(self._now_ns)
            return
        self._adopt(m.attempt, m.step)
        self._tell_all(self._welcome_child())

    def _judged(self, m: wire.Verdict | wire.Decided) -> None:
        """How the open step came out."""
        raise NotImplementedError

    def _aborted(self, m: wire.Abort) -> None:
        self._loaded = m.loaded
        if m.attempt > self._attempt:
            self._epoch, self._generation = m.epoch, m.generation
            self._adopt(m.attempt, m.step)
            self._tell_all(self._ours(wire.Abort, loaded=self._loaded, text=m.text))

    def _adopt(self, attempt: int, step: int) -> None:
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
        hello = self._ours(
            wire.Hello, protocol=first.protocol, world_size=first.world_size,
            contributors=self._members.ranks, description_hash=first.description_hash,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, "hello", hello, self._members.description)

    def _say_leave(self) -> None:
        leave = self._ours(wire.Leave, contributors=self._members.ranks)
        self._uplink.ask(self._now_ns, "leave", leave)

    def _cancel(self, text: str) -> None:
        if not self._uplink.asks("cancel"):
            self._uplink.ask(self._now_ns, "cancel", self._ours(wire.Cancel, text=text[:900]))

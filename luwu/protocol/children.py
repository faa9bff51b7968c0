"""The children of a switch or a node: who they are, and what one that is behind is answered. Pure.

A child is known by the ranks it speaks for and by its incarnation (`Members`); `peer` is the
connection it came by, as the transport authenticated it, and changes when it connects again. Every
rank is claimed once, and all have the same job.

    an unknown child               Rejoin
    a child of an older attempt    Abort; or the verdict that skipped a step, where that opened the
                                   new attempt; or, if it knows this start of the node, how its step
                                   came out, where it asks for that
    a child that cannot be one     Refuse
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from luwu.base.limits import PROTOCOL_VERSION, TEXT_CHARS_MAX
from luwu.base.tree import ranks_of
from luwu.protocol.actions import Payload
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.description import description_hash, differences

RANKS_SHOWN_MAX = 16
"""Ranks that a text lists at most, so that no refusal outgrows its message."""


def ranks_text(bitmaps: Iterable[int]) -> str:
    """Ranks of some bitmaps, for people: `0, 2, 3`; of many, the first few and how many more."""
    ranks = ranks_of(functools.reduce(operator.or_, bitmaps, 0))
    text = ", ".join(map(str, ranks[:RANKS_SHOWN_MAX]))
    more = len(ranks) - RANKS_SHOWN_MAX
    return f"{text} and {more} more" if more > 0 else text


class RefusedError(Exception):
    """This child can never be a member; the text says why and what to do."""


class KnowsMoreError(RefusedError):
    """This child knows of decided steps that the state does not have."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(refusal_text(found, known))


class SupersededError(RefusedError):
    """A later start of this child has joined."""


@dataclass(slots=True)
class Member:
    """A child that sent Hello."""

    ranks: int
    peer: str
    incarnation: int
    known: tuple[int, int, int]
    """(generation, attempt, first undecided step) that it knew when it sent Hello."""
    left: bool = False
    connected: bool = True


class Members:
    """The children of one parent."""

    def __init__(self, *, job: int, children: Sequence[int], extent_chunks: int = 1) -> None:
        self._job, self._extent_chunks = job, extent_chunks
        self.children = tuple(sorted(children, key=lambda ranks: ranks & -ranks))
        self.ranks = 0
        for ranks in self.children:
            if ranks == 0 or ranks & self.ranks:
                raise ValueError(f"children must speak for disjoint ranks, got {children}")
            self.ranks |= ranks
        self.active = self.ranks
        """Ranks that take part in this attempt."""
        self._by_ranks: dict[int, Member] = {}
        self._by_peer: dict[str, Member] = {}
        self._expelled: dict[int, tuple[int, str]] = {}
        """Ranks -> the start of them that is heard no more, and why."""
        self.first: wire.Hello | None = None
        """Hello of the first child; the others must agree with it."""
        self.description = b""

    @property
    def complete(self) -> bool:
        """Every expected child is in."""
        return len(self._by_ranks) == len(self.children)

    @property
    def joined(self) -> int:
        """Ranks of the children that are in."""
        return sum(self._by_ranks)

    @property
    def counted(self) -> tuple[int, ...]:
        """The children any of whose ranks counts, in rank order."""
        return tuple(ranks for ranks in self.children if ranks & self.active)

    @property
    def all_left(self) -> bool:
        """Every child that counts was in and has left."""
        counted = (self._by_ranks.get(ranks) for ranks in self.counted)
        return all(member is not None and member.left for member in counted)

    @property
    def peers(self) -> tuple[str, ...]:
        """Connections of all members that count, in rank order."""
        there, active = self._by_ranks, self.active
        return tuple([there[r].peer for r in self.children if r & active and r in there])

    @property
    def all_members(self) -> tuple[Member, ...]:
        """All who are in, whether they count or not."""
        return tuple(self._by_ranks.values())

    @property
    def everyone(self) -> tuple[str, ...]:
        """Connections of all members, whether they count or not."""
        return tuple(member.peer for member in self._by_ranks.values())

    def counts(self, member: Member) -> bool:
        """True if any rank of a member counts in this attempt."""
        return bool(member.ranks & self.active)

    def member_at(self, peer: str) -> Member | None:
        """The member behind a connection."""
        return self._by_peer.get(peer)

    def lost(self, peer: str) -> None:
        """A connection has ended."""
        member = self._by_peer.get(peer)
        if member is not None:
            member.connected = False

    def is_taken(self, peer: str, hello: wire.Hello) -> bool:
        """True if the ranks of a Hello are those of another start whose connection is alive."""
        member = self._by_ranks.get(hello.contributors)
        return (
            member is not None and member.connected and member.peer != peer
            and member.incarnation != hello.incarnation
        )  # fmt: skip

    def of(self, peer: str, incarnation: int) -> Member | None:
        """The member behind a connection, if this incarnation of it has joined."""
        member = self._by_peer.get(peer)
        return member if member is not None and member.incarnation == incarnation else None

    def name_of(self, peer: str) -> str:
        """The ranks of a connection, as text."""
        member = self._by_peer.get(peer)
        return "others" if member is None else f"ranks {ranks_text([member.ranks])}"

    def peer_of(self, ranks: int) -> str | None:
        """The connection of the member that speaks for these ranks."""
        for child, member in self._by_ranks.items():
            if ranks & child:
                return member.peer
        return None

    def leave(self, peer: str) -> None:
        """The child behind a connection is done."""
        member = self._by_peer.get(peer)
        if member is not None:
            member.left = True

    def expel(self, member: Member, text: str) -> None:
        """This start of a member broke the protocol: it is none any more, and cannot be again."""
        self._by_peer.pop(member.peer, None)
        self._expelled[member.ranks] = (member.incarnation, text)

    def missing(self, present: Iterable[int] | None = None) -> str:
        """Ranks of the children not among `present` (default: not in at all), for people."""
        there = set(self._by_ranks if present is None else present)
        return ranks_text(ranks for ranks in self.counted if ranks not in there)

    def join(self, peer: str, hello: wire.Hello, description: bytes) -> bool:
        """Take a child in; True if a later start of it replaces one. Raises RefusedError."""
        self.check(hello, description)
        former = self._by_ranks.get(hello.contributors)
        if former is not None:
            if hello.incarnation < former.incarnation:
                raise SupersededError(
                    f"a later start of ranks {ranks_text([former.ranks])} has joined already; "
                    "stop this process (the clocks of the hosts decide which start is later: "
                    "synchronize them with NTP if this process started later)"
                )
            self._by_peer.pop(former.peer, None)
        known = (hello.generation, hello.attempt, hello.step)
        member = Member(hello.contributors, peer, hello.incarnation, known)
        self._by_ranks[hello.contributors] = member
        self._by_peer[peer] = member
        if self.first is None:
            self.first, self.description = hello, description
        return former is not None and former.incarnation < hello.incarnation

    def check(self, hello: wire.Hello, description: bytes) -> None:
        """Raise RefusedError if this can be no child of ours."""
        if hello.protocol != PROTOCOL_VERSION:
            raise RefusedError(
                f"you use protocol version {hello.protocol}, this side {PROTOCOL_VERSION}; "
                "install the same luwu on both sides"
            )
        if hello.job != self._job:
            raise RefusedError("you belong to another run; use the connection file of this run")
        if hello.contributors not in self.children:
            raise RefusedError(
                f"you serve ranks {ranks_text([hello.contributors])}, expected is one child "
                f"each for ranks {ranks_text(self.children)}; start the number of workers that "
                "--workers gives on both sides, and copy the whole URL"
            )
        incarnation, text = self._expelled.get(hello.contributors, (-1, ""))
        if hello.incarnation <= incarnation:
            raise RefusedError(f"this start of yours broke the protocol: {text}"[:880])
        if hello.extent_chunks != self._extent_chunks:
            raise RefusedError(
                f"you send up to {hello.extent_chunks} chunks together, {self._extent_chunks} are "
                "expected; use the connection file of this run, and the same --extent on all hosts"
            )
        if description_hash(description) != hello.description_hash:
            raise RefusedError("your job description does not have the hash you state")
        if self.first is None:
            return
        if hello.world_size != self.first.world_size:
            raise RefusedError(
                f"your world size is {hello.world_size}, that of the others is "
                f"{self.first.world_size}; start all workers with the same --workers"
            )
        if hello.description_hash != self.first.description_hash:
            lines = "; ".join(differences(description, self.description))
            both = [hello.contributors, self.first.contributors]
            raise RefusedError(
                f"ranks {ranks_text(both)} do not train the same: {lines}"[:880]
                + "; run the same script on the same data on every rank"
            )


def refusal_text(found: int, known: int) -> str:
    """Text about steps that were announced as decided, and that the state of a node lacks.

    `found`: decided steps in the state; `known`: steps announced as decided. The node notices by
    the Hello of its switch, a switch by the Hello of its children, a worker by the answer to its
    own.
    """
    if known <= found:
        text = (
            f"has {found} decided steps, as announced, but is an older copy: its workers know of "
            "later events that it does not contain"
        )
    else:
        ends = f"ends with step {found - 1}" if found else "has no decided step"
        lost = f"step {found} is" if known == found + 1 else f"steps {found} to {known - 1} are"
        text = f"{ends}, but step {known - 1} was announced as decided: {lost} lost"
    return (
        f"the state of the optimizer node {text}. It is an older copy of the state, or its disk "
        "lost data that it had confirmed. Put the newest state in the directory of --state and "
        f"continue with --resume; or, to recompute the steps from {found} on, start the job again "
        "on this state with --resume"
    )


@dataclass(slots=True)
class Outcomes:
    """The last announcements of a parent."""

    verdict: wire.Verdict | None = None
    decided: wire.Decided | None = None
    skip: wire.Verdict | None = None
    """The last verdict that skipped a step, ..."""
    skipped_attempt: int = -1
    """... and the attempt it ended: nothing of it is lost but weights that streamed ahead."""
    skips_count: int = 0
    """Steps that were skipped, since the process began, for a sum that is not finite."""

    def undo(self, step: int) -> None:
        """A new attempt goes on with this step: how it came out before does not count."""
        self.verdict = None
        if self.skip is not None and self.skip.step >= step:
            self.skip, self.skipped_attempt = None, -1

    def skip_into(self, attempt: int) -> wire.Verdict | None:
        """The verdict that opened this attempt, if one did."""
        return self.skip if attempt == self.skipped_attempt + 1 else None

    def of(self, step: int) -> list[wire.Message]:
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
        )  # fmt: skip

    def abort(self, text: str) -> wire.Abort:
        """The message that aborts all attempts before the current one."""
        return self._outbox.stamped(
            wire.Abort, loaded=self.loaded, contributors=self.members.active,
            text=text[:TEXT_CHARS_MAX],
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

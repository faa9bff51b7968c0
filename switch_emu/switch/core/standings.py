"""The positions of several optimizer nodes, as the switch that leads them knows it. Pure.

now, next      what counts, and what is proposed to count (`lead.py`)
nodes          what each node has sent since its connection was lost, or it was started again
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

from luwu.protocol.children import Children
from luwu.protocol.epoch import are_enough, is_beyond, nodes_of, nodes_text
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.switch.core.ballot import Ballot


class Version(NamedTuple):
    """A version of the state, by E2: one that was made again is another."""

    number: int = -1
    """Decided steps; -1: there are no weights yet."""
    attempt: int = 0
    """The attempt under which it was made."""


@dataclass(slots=True)
class KnownNode:
    """An optimizer node, as this switch knows it."""

    standing: wire.Standing | None = None
    """Its position; None: that of the switch, or not known."""
    incarnation: int = -1
    """Number of its starts, by its last Standing."""
    adopted_as: int = -1
    """Number of the start as which it last took an attempt over."""
    prepared_as: int = -1
    """Number of the start as which it last prepared a version."""
    is_away: bool = True
    """It has not sent its position since its connection was lost, or it was started again."""
    is_adopted: bool = False
    """It has taken over the attempt that counts, and is connected."""
    is_cut: bool = False
    """Its connection has ended: what still comes was sent before."""
    absent_ns: int | None = None
    """Since when its connection is gone, or it was asked for the first time."""
    heard_ns: int = 0
    """When it last sent something, or an attempt was proposed to it."""
    digests: bytes = b""
    """Of what it has prepared, by its last Standing."""
    window_bytes: int = 0
    """Its credit for pushes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What counts: an epoch, an attempt, and the version to go on from."""

    epoch: int = 0
    members: int
    """Bitmap of nodes."""
    generation: int = 0
    attempt: int = 0
    version: Version
    filled: int = 0
    """Bitmap of the node that is being filled, which does not count."""

    def __post_init__(self) -> None:
        assert not self.members & self.filled, "E8: a node that is being filled is no member"

    @property
    def everyone(self) -> int:
        """Bitmap of the nodes that take part."""
        return self.members | self.filled

    @property
    def step(self) -> int:
        """The first undecided step."""
        return max(0, self.version.number)


class Standings:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, ballot: Ballot, count: int,
        drop_node_after_ns: int | None,
    ) -> None:  # fmt: skip
        self._outbox, self._children, self._ballot = outbox, children, ballot
        self.drop_node_after_ns = drop_node_after_ns
        self.nodes = [KnownNode() for _ in range(count)]
        self.now = Position(members=(1 << count) - 1, version=Version())
        self.next: Position | None = None
        """Proposed, and not taken over by all its members."""
        self.is_installed = False
        """An epoch of this start of the switch counts."""
        self._bases: set[int] = set()
        """Bitmaps of the members of the newest recorded epoch; of several, if as many switches have
        proposed one of its number."""
        self._base_epoch = 0
        """Its number."""

    @property
    def latest(self) -> Position:
        """What is proposed; else what counts."""
        return self.next or self.now

    @property
    def is_settled(self) -> bool:
        """True if an epoch counts, and nothing else is proposed."""
        return self.is_installed and self.next is None

    def away(self, number: int) -> None:
        """A connection was lost, or a node was started again: its position is not known."""
        node = self.nodes[number]
        node.is_away, node.is_adopted, node.standing = True, False, None

    def connected(self, number: int) -> None:
        """A connection is there."""
        self.nodes[number].is_cut, self.nodes[number].absent_ns = False, None

    def disconnected(self, number: int) -> None:
        """A connection has ended."""
        node = self.nodes[number]
        node.is_cut = True
        node.absent_ns = self._outbox.now_ns if node.absent_ns is None else node.absent_ns

    def next_lost_ns(self) -> int | None:
        """When a node that is gone is so for too long; None: never, or it has been already."""
        ends_ns = self._patience_ends_ns().values()
        return min((at_ns for at_ns in ends_ns if at_ns > self._outbox.now_ns), default=None)

    @property
    def lost(self) -> int:
        """Bitmap of those that are gone for too long."""
        ends_ns = self._patience_ends_ns().items()
        return sum(1 << number for number, at_ns in ends_ns if at_ns <= self._outbox.now_ns)

    def _patience_ends_ns(self) -> dict[int, int]:
        """When each node that is gone is so for too long."""
        after_ns = self.drop_node_after_ns
        if after_ns is None:
            return {}
        absent = {n: node.absent_ns for n, node in enumerate(self.nodes)}
        return {n: at_ns + after_ns for n, at_ns in absent.items() if at_ns is not None}

    def answered(self) -> tuple[int, int]:
        """E3: bitmaps of the members of the newest recorded epoch that have answered, and of the
        others; 0, 0: too few have."""
        standings = [node.standing for node in self.nodes if node.standing is not None]
        if self.next is None and standings:
            self._base_epoch = epoch = max(each.epoch for each in standings)
            self._bases = {e.members or self.now.members for e in standings if e.epoch == epoch}
        there = sum(1 << n for n, node in enumerate(self.nodes) if node.standing or node.is_adopted)
        missing = self.recorded & ~there
        if missing & ~self.lost or not all(are_enough(there, base) for base in self._bases):
            return 0, 0
        answered = self.recorded & there
        if self.next is not None and not self._know_newest(answered):
            self.next = None  # all have older directories now: nobody can take it over
            return self.answered()
        return answered, missing

    @property
    def recorded(self) -> int:
        """Bitmap of the members of the newest recorded epoch."""
        return reduce(or_, self._bases, 0)

    def first_version(self, answered: int) -> tuple[Version, str]:
        """The version to go on from with the members that have answered, and what may be lost, as
        text. It is that of those that know the newest epoch: others may be ahead of it only if an
        operator has given up what they have (`luwu refill --without`)."""
        know = self._know_newest(answered)
        version = max(self.version_of(n) for n in know)
        if self.next is not None:
            version = max(version, self.next.version)  # E5: who was asked may have decided it
        there = sum(
            1 << n for n in nodes_of(answered) if n in know or self.are_at(1 << n, version)
        )  # fmt: skip
        if version.number < 0 or all(are_enough(there, base) for base in self._bases):
            return version, ""
        return version, (
            f"{nodes_text(answered & ~there)} came back with an older directory, or none: if the "
            f"job went on without {nodes_text(there)} before, steps from {version.number} on are "
            "lost"
        )

    def _know_newest(self, answered: int) -> list[int]:
        """Those of the members that have answered who know the newest epoch."""
        stands = {n: self.nodes[n].standing for n in nodes_of(answered)}
        return [n for n, s in stands.items() if s is None or s.epoch >= self._base_epoch]

    def version_without(self, lost: int, rest: int, back: int) -> Version | None:
        """The version from which the rest of the nodes goes on, of which some were started again;
        None: they have none, and of the lost ones some may (E6)."""
        version = self.latest.version
        at_it = sum(self.are_at(1 << n, version) for n in nodes_of(rest))
        if rest != back or 2 * at_it >= self.now.members.bit_count():  # E3: so many can go on
            return version
        found = max((self.version_of(n) for n in nodes_of(rest)), default=Version())
        return None if lost and found.number < 0 <= version.number else found  # an older copy's

    def can_take_over(self, answered: int, missing: int) -> bool:
        """True if something is proposed, and all can take it over that it names."""
        wanted = self.next
        if wanted is None or wanted.members & missing:
            return False
        return self.are_at(answered & wanted.members, wanted.version)

    def are_given_up(self, epoch: int) -> bool:
        """E3: True if an operator has given up the nodes that count, by what another knows."""
        known = self.latest.epoch
        return known > 0 and is_beyond(epoch, known)

    def version_of(self, number: int) -> Version:
        """What a node is decided at."""
        standing = self.nodes[number].standing
        if standing is None:
            return self.latest.version  # E5: who has not decided it can
        return Version(standing.step, standing.decided_attempt) if standing.loaded else Version()

    def prepared_of(self, number: int) -> Version | None:
        """The version after that, if a node has it prepared. It outlives a crash."""
        standing = self.nodes[number].standing
        if standing is not None:
            attempt = standing.prepared_attempt
        else:
            attempt = 0 if self._ballot.digests_of(number) is None else self.now.attempt
        return Version(self.version_of(number).number + 1, attempt) if attempt else None

    def newest(self) -> tuple[int, int, int]:
        """The newest epoch, generation and attempt that any node knows."""
        positions: list[Position | wire.Standing | None] = [self.now, self.next]
        positions += [node.standing for node in self.nodes]
        stated = [(p.epoch, p.generation, p.attempt) for p in positions if p is not None]
        known = [member.known for member in self._children.members.all_members]
        stated += [(0, generation, attempt) for generation, attempt, *_ in known]
        epochs, generations, attempts = zip(*stated, strict=True)
        return max(epochs), max(generations), max(attempts)

    def was_before(self, number: int, m: wire.Standing) -> bool:
        """True if a member has prepared a version since it sent this: it has been decided (E2). One
        that has just been filled says nothing else until it has taken the next epoch over."""
        members = self.now.members | (0 if self.next is None else self.next.members)
        has_prepared = self.nodes[number].prepared_as == m.incarnation
        if not has_prepared or not members >> number & 1 or m.prepared_attempt:
            return False  # this is where it stands now
        return (m.step if m.loaded else -1) < self.now.version.number

    def are_at(self, members: int, version: Version) -> bool:
        """True if these nodes are decided at a version, or can be."""
        return all(version in (self.version_of(n), self.prepared_of(n)) for n in nodes_of(members))

    def finished(self, members: int, version: Version) -> Version:
        """E5: the version after this one if it is prepared at all of them, under the last attempt,
        and they agree on it; else this one."""
        *_, last_attempt = self.newest()
        after = Version(version.number + 1, last_attempt)
        found = {(self.version_of(n), self.prepared_of(n)) for n in nodes_of(members)}
        if found != {(version, after)}:
            return version
        digests = {}
        for number in nodes_of(members):
            stated = self._ballot.digests_of(number)
            digests[number] = self.nodes[number].digests if stated is None else stated
        return after if self._ballot.difference_of(digests) is None else version  # E7

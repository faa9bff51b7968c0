"""Admission: the roles and ranks that a key may send for. Pure.

A transport reports the key of a connection (`PeerUp.identity`); a message names its sender. Here
the two are compared, before a core sees the message:

    role       a worker's key may send as a worker or a reader, a switch's as a switch and for the
               readers behind it, a node's as a node, a reader's as a reader
    rank       claimed by an accepted Hello, for one incarnation. While the connection lives, other
               keys cannot claim it. A launcher may reassign ranks, so a later start may claim
               another rank; a claim ends with its connection
    messages   of a member are about the ranks it claimed only

Connections without keys (Unix sockets, shared memory, `--insecure`) are not checked: they are
trusted, or can be opened by this user only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luwu.base.keys import Identity
from luwu.protocol.children import ranks_text
from luwu.wire import messages as wire
from luwu.wire.messages import Role

_SPEAKS_AS: Final = {
    "worker": (Role.WORKER, Role.READER),
    "reader": (Role.READER,),
    "switch": (Role.SWITCH, Role.READER),
    "node": (Role.NODE,),
}
_TEXTS_PER_WINDOW: Final = 80
_WINDOW_NS: Final = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Claim:
    """The connection that sends for some ranks."""

    name: str
    """The name of its key."""
    peer: str
    role: Role
    ranks: int
    incarnation: int


class Admission:
    """The connections of one listener that have keys, and what they claimed."""

    def __init__(self) -> None:
        self.identities: dict[str, Identity] = {}
        """Of open connections with keys: those of others are not checked."""
        self._by_name: dict[str, Claim] = {}
        self._by_ranks: dict[tuple[Role, int], Claim] = {}

    def up(self, peer: str, identity: Identity | None) -> None:
        """Note an open connection."""
        if identity is not None:
            self.identities[peer] = identity

    def down(self, peer: str) -> None:
        """Note that it ended; its ranks stay its key's until another key claims them."""
        self.identities.pop(peer, None)

    def name_of(self, peer: str) -> str:
        """The name of a connection's key; empty if it has none."""
        identity = self.identities.get(peer)
        return "" if identity is None else identity.name

    def fault(self, peer: str, m: wire.Message) -> str:
        """The reason why this connection may not send this; empty if it may."""
        identity = self.identities.get(peer)
        if identity is None:
            return ""
        is_request = isinstance(m, wire.ReaderRequest)
        if m.role not in _SPEAKS_AS[identity.role] or is_request != (m.role is Role.READER):
            return (
                f"the key of {identity.name!r} is that of a {identity.role}, and it sent "
                f"{type(m).__name__} as a {m.role.name.lower()}"
            )
        if is_request:
            return ""
        if isinstance(m, wire.Hello):
            return self._fault_of_hello(identity, m)
        return self._fault_of_ranks(identity, peer, m)

    def joined(self, peer: str, hello: wire.Hello) -> None:
        """Claim the ranks of a Hello that the core has accepted."""
        identity = self.identities.get(peer)
        if identity is None:
            return
        claim = Claim(identity.name, peer, hello.role, hello.contributors, hello.incarnation)
        former = self._by_name.pop(claim.name, None)
        if former is not None:
            del self._by_ranks[former.role, former.ranks]
        holder = self._by_ranks.pop((claim.role, claim.ranks), None)
        if holder is not None:
            del self._by_name[holder.name]
        self._by_name[claim.name] = self._by_ranks[claim.role, claim.ranks] = claim

    def has_claimed(self, peer: str) -> bool:
        """True if this connection has claimed ranks, or has no key."""
        identity = self.identities.get(peer)
        claim = None if identity is None else self._by_name.get(identity.name)
        return identity is None or (claim is not None and claim.peer == peer)

    def _fault_of_hello(self, identity: Identity, m: wire.Hello) -> str:
        ranks = ranks_text([m.contributors])
        if m.role is Role.WORKER and m.contributors != 1 << m.rank:
            return f"the key of {identity.name!r} is that of one worker, and it claims {ranks}"
        holder = self._by_ranks.get((m.role, m.contributors))
        if holder is not None and holder.name != identity.name and holder.peer in self.identities:
            return (
                f"ranks {ranks} are those of {holder.name!r}, which is connected; the key of "
                f"{identity.name!r} cannot have them"
            )
        former = self._by_name.get(identity.name)
        is_another = former is not None and (former.role, former.ranks) != (m.role, m.contributors)
        if former is not None and is_another and m.incarnation <= former.incarnation:
            return (
                f"the key of {identity.name!r} has claimed ranks {ranks_text([former.ranks])}, and "
                f"claims {ranks} without a restart; give each worker its own key"
            )
        return ""

    def _fault_of_ranks(self, identity: Identity, peer: str, m: wire.Message) -> str:
        claim = self._by_name.get(identity.name)
        if claim is None or claim.peer != peer:
            return ""  # the core answers Rejoin
        ranks = getattr(m, "contributors", 0) | getattr(m, "lost", 0)
        ranks |= 1 << m.rank if m.role is Role.WORKER else 0
        if ranks & ~claim.ranks:
            return (
                f"{identity.name!r} has claimed ranks {ranks_text([claim.ranks])}, and sent "
                f"{type(m).__name__} for {ranks_text([ranks & ~claim.ranks])}"
            )
        return ""


class RateLimit:
    """Limits texts per window of time, so that a flood does not fill the disk."""

    def __init__(self, most: int = _TEXTS_PER_WINDOW, window_ns: int = _WINDOW_NS) -> None:
        self._most, self._window_ns = most, window_ns
        self._since_ns = 0
        self._count = 0

    def allow(self, now_ns: int) -> tuple[bool, int]:
        """True if one more text may pass, and the number that was left out before it."""
        left_out = 0
        if now_ns - self._since_ns >= self._window_ns:
            left_out = max(0, self._count - self._most)
            self._since_ns, self._count = now_ns, 0
        self._count += 1
        return self._count <= self._most, left_out

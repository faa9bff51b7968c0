"""Several connections that are one peer: how they find each other, and the order of their messages.

A peer that dials over several connections announces each of them in its first message: the link,
by 16 bytes that nobody can guess and no other link has; which of its stripes this is; how many it
has. Pure: bytes and messages in, bytes and messages out.

Messages take the stripes in turns. A turn lasts until its messages, headers and buffers, come to
`TURN_BYTES`; sender (`Lane`) and receiver (`InOrder`) count alike, so messages carry no numbers,
and where the next one comes from is always known. What comes on another stripe is ahead of its
turn, and held.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import astuple, dataclass
from typing import Final

from luwu.base.keys import Identity
from luwu.base.limits import STRIPES_MAX
from luwu.transport.interface import LISTENER, Delivery
from luwu.transport.lanes import TURN_BYTES, Lane

LINK_ID_BYTES: Final = 16

_FORM: Final = struct.Struct("<13s16sBB")
_MAGIC: Final = b"luwu-stripe-1"
ANNOUNCEMENT_BYTES: Final = _FORM.size

_HELD_MESSAGE_BYTES: Final = 512
"""Memory of a held message beside its bytes."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The link and the stripe that a connection announces."""

    link_id: bytes
    index: int
    """The number of this stripe, from 0."""
    count: int
    """Stripes of the link."""


def announcement(announced: Announced) -> bytes:
    """The first message of a connection."""
    return _FORM.pack(_MAGIC, *astuple(announced))


def read_announcement(greeting: bytes) -> Announced | None:
    """The announcement in a first message; None if it is malformed."""
    if len(greeting) != ANNOUNCEMENT_BYTES:
        return None
    magic, link_id, index, count = _FORM.unpack(greeting)
    if magic != _MAGIC or not 2 <= count <= STRIPES_MAX or index >= count:
        return None
    return Announced(link_id, index, count)


class InOrder:
    """The messages of one link, from its stripes into the order they were sent in."""

    def __init__(self, count: int, held_bytes_max: int) -> None:
        self._held: list[deque[Delivery]] = [deque() for _ in range(count)]
        self._ended = [False] * count
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._turn = 0
        self._turn_bytes = 0

    def put(self, index: int, delivery: Delivery) -> None:
        """A message came on a stripe."""
        self._held[index].append(delivery)
        self._held_bytes += _HELD_MESSAGE_BYTES + _nbytes(delivery)

    def end(self, index: int) -> None:
        """No more messages come on this stripe."""
        self._ended[index] = True

    def take(self) -> Delivery | None:
        """The next message; None if it did not come yet."""
        held = self._held[self._turn]
        if not held:
            return None
        delivery = held.popleft()
        nbytes = _nbytes(delivery)
        self._held_bytes -= _HELD_MESSAGE_BYTES + nbytes
        self._turn_bytes += nbytes
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            self._turn = (self._turn + 1) % len(self._held)
        return delivery

    @property
    def are_too_many(self) -> bool:
        """More is ahead of its turn than may be; to be asked when `take` gave None."""
        return self._held_bytes > self._held_bytes_max

    @property
    def is_over(self) -> bool:
        """The next message never comes."""
        return self._ended[self._turn] and not self._held[self._turn]


@dataclass(eq=False, slots=True)
class Link:
    """A peer of several stripes. `names`: what the inner transport calls them, None: not there."""

    peer: str
    link_id: bytes
    names: list[str | None]
    messages: InOrder
    endpoint: str | None
    """The endpoint that we dial; None: it dials us."""
    identity: Identity | None = None
    """The owner of its key, if it dials us with keys: the same on each stripe."""
    met_count: int = 0
    is_up: bool = False
    lane: Lane | None = None
    """None: nothing can be sent."""
    deadline_ns: int | None = None
    """The deadline of meeting or ending."""
    is_late: bool = False

    @property
    def known_as(self) -> str:
        """The peer for our caller: one that dials us is none before it is up."""
        return self.peer if self.is_up or self.endpoint is not None else LISTENER


def _nbytes(delivery: Delivery) -> int:
    return len(delivery.header) + sum([view.nbytes for view in delivery.buffers])

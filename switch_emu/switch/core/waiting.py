"""Contributions that wait for a slot: those of children that are ahead of all others. Pure.

Where no slot has room, a child that is in every open slot is ahead, and loses nothing if it waits:
a slot becomes free when the others have come so far, and until then its step cannot end. So its
contribution is held unanswered, which also holds back what it would send next. A contribution that
goes up raw instead would travel alone, and the node would have to keep it until the rest has come.

    S6  A child that waits is in every open slot that is not full. So each of these misses a child
        that does not wait, and some slot becomes full whatever the orders in which children push:
        who pushes in another order than the rest, and is not in some slot, goes up raw.
    S7  Extents get slots in the order in which they began to wait; none overtakes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution
from luwu.wire import messages as wire
from switch_emu.switch.core.slots import SlotKey


class Held(NamedTuple):
    """A contribution that waits."""

    peer: str
    contribution: Contribution
    receipt: wire.Received
    """Its answer, which is not sent yet."""


class Waiting:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[SlotKey, list[Held]] = {}
        self.count = 0
        """Contributions that have waited."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: SlotKey) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[SlotKey]:
        """The extents, in the order in which they began to wait."""
        return iter(list(self._held))

    def nbytes(self, key: SlotKey) -> int:
        """Bytes of the largest contribution to an extent."""
        return max(each.contribution.payload_bytes for each in self._held[key])

    def ranks(self, key: SlotKey) -> int:
        """The ranks whose contributions to this extent wait."""
        found = 0
        for each in self._held.get(key, ()):
            found |= each.contribution.contributors
        return found

    def add(self, key: SlotKey, held: Held) -> None:
        """From now on this contribution waits."""
        self._held.setdefault(key, []).append(held)
        self.count += 1

    def take(self, key: SlotKey) -> list[Held]:
        """All that waits for a slot of this extent: it waits no more."""
        return self._held.pop(key, [])

    def forget(self, step: int | None = None) -> list[Payload | None]:
        """A step is decided, or (None) the attempt is over: what was held."""
        keys = [key for key in self if step is None or key[0] <= step]
        return [each.contribution.payload for key in keys for each in self.take(key)]

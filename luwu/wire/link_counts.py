"""Counts of sent and received bytes and messages of a process, by link and kind of message.

The loop of a process counts here, each message once, as it is handed to the transport and as it
comes from it. Whatever states bytes (summaries, `counters/*.json`, metrics) is a sum over this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from luwu.wire.messages import MESSAGE_TYPES, Message

Kind = type[Message] | None
"""A type of message; None: a message that could not be read."""

DATA_KINDS: Final = tuple(kind for kind in MESSAGE_TYPES if kind.IS_DATA)
"""Messages about one extent, chunk or piece."""


@dataclass(slots=True)
class LinkCount:
    """Messages of one link, and their bytes."""

    messages_sent: int = 0
    header_bytes_sent: int = 0
    payload_bytes_sent: int = 0
    messages_received: int = 0
    header_bytes_received: int = 0
    payload_bytes_received: int = 0
    repeats_sent: int = 0
    """Requests that were sent again, for want of an answer."""
    duplicates_received: int = 0
    """Gradients that had been taken in before, and came again."""

    @property
    def header_bytes(self) -> int:
        """Both ways."""
        return self.header_bytes_sent + self.header_bytes_received

    def add(self, other: LinkCount) -> None:
        """Add another connection of the same link, or another kind."""
        for name in _LINK_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self) -> dict[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in _LINK_COUNTS}


_LINK_COUNTS: Final = tuple(each.name for each in fields(LinkCount))
"""Found once: each call of `fields` makes a tuple that CPython keeps, up to 2,000 of one length."""


class LinkCounts:
    """All connections of a process. One thread counts, and any may read: to copy the dict is one
    step, while to list its items is several, between which the counting thread may add one."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, Kind], LinkCount] = defaultdict(LinkCount)

    def sent(self, peer: str, kind: Kind, header_bytes: int, payload_bytes: int) -> None:
        """One more message went out."""
        count = self._counts[peer, kind]
        count.messages_sent += 1
        count.header_bytes_sent += header_bytes
        count.payload_bytes_sent += payload_bytes

    def received(self, peer: str, kind: Kind, header_bytes: int, payload_bytes: int) -> None:
        """One more came in."""
        count = self._counts[peer, kind]
        count.messages_received += 1
        count.header_bytes_received += header_bytes
        count.payload_bytes_received += payload_bytes

    def total(self, *kinds: Kind, of: Callable[[str], bool] = lambda peer: True) -> LinkCount:
        """The sum over these kinds, or all where none is given, of the connections that `of` is
        true for."""
        total = LinkCount()
        for (peer, kind), count in self._counts.copy().items():
            if (not kinds or kind in kinds) and of(peer):
                total.add(count)
        return total

    def by_name(self, name_of: Callable[[str], str]) -> dict[str, LinkCount]:
        """Connections of one name are one link: a child that came back has two."""
        links: dict[str, LinkCount] = {}
        for (peer, _), count in self._counts.copy().items():
            links.setdefault(name_of(peer), LinkCount()).add(count)
        return dict(sorted(links.items()))

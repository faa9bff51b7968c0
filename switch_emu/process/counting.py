"""Counters of a switch or node, by link and in its core; written once a second.

    counters/switch.json   {"schema": 1, "job": 5713, "role": "switch", "pid": 4711,
                            "at": "2026-...",
                            "links": {"parent": {"messages_sent": ..., ...}, "ranks 0": {...}},
                            "core": {"raw_count": 0, "slot_bytes_now": 1048576, ...},
                            "slots": {"opened_count": [12, 12, ...], ...}}

These are bytes and messages that passed between processes of this host; what an emulated link made
of them is counted by the link. The file is replaced whole, so a reader sees one instant. `luwu
status` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, utc_text
from luwu.base.expendable import Expendable
from luwu.base.json_file import write_json

SCHEMA: Final = 1
EVERY_NS: Final = 1_000_000_000

Counts = dict[str, int]
"""Name -> number; a name that ends in `_count` or `_bytes` only grows, `..._now` goes both ways."""


SlotCounts = Mapping[str, Sequence[int]]
"""Name -> a number for each slot; names as above."""


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
    """Requests that were said again, for want of an answer."""
    duplicates_received: int = 0
    """Gradients that had been taken in before, and came again."""

    def sent(self, header_bytes: int, payload_bytes: int) -> None:
        """One more message went out."""
        self.messages_sent += 1
        self.header_bytes_sent += header_bytes
        self.payload_bytes_sent += payload_bytes

    def received(self, header_bytes: int, payload_bytes: int) -> None:
        """One more came in."""
        self.messages_received += 1
        self.header_bytes_received += header_bytes
        self.payload_bytes_received += payload_bytes

    def add(self, other: LinkCount) -> None:
        """Add another connection of the same link."""
        for name in _LINK_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self) -> Counts:
        """All of them by name."""
        return {name: getattr(self, name) for name in _LINK_COUNTS}


_LINK_COUNTS: Final = tuple(each.name for each in fields(LinkCount))
"""Found once: each call of `fields` makes a tuple that CPython keeps, up to 2,000 of one length."""


class LinkCounts:
    """All connections of a process, by what its core knows them as."""

    def __init__(self) -> None:
        self._by_peer: dict[str, LinkCount] = {}

    def of(self, peer: str) -> LinkCount:
        """The count of a connection."""
        count = self._by_peer.get(peer)
        if count is None:
            count = self._by_peer[peer] = LinkCount()
        return count

    def by_name(self, name_of: Callable[[str], str]) -> dict[str, LinkCount]:
        """Connections of one name are one link: a child that came back has two."""
        links: dict[str, LinkCount] = {}
        for peer, count in self._by_peer.items():
            links.setdefault(name_of(peer), LinkCount()).add(count)
        return dict(sorted(links.items()))


class CountersFile:
    """The file with a role's counters, for others to read."""

    def __init__(self, path: Path, role: str, job: int) -> None:
        self._path, self._role, self._job = path, role, job
        self._due_ns = 0
        self._expendable = Expendable()
        with self._expendable.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def is_due(self, now_ns: int) -> bool:
        """True if a second has passed."""
        return now_ns >= self._due_ns

    def write(
        self, links: Mapping[str, LinkCount], core: Counts, slots: SlotCounts | None = None
    ) -> None:
        """Replace the file."""
        self._due_ns = SYSTEM_CLOCK.now_ns() + EVERY_NS
        document = {
            "schema": SCHEMA,
            "job": self._job,
            "role": self._role,
            "pid": os.getpid(),
            "at": utc_text(),
            "links": {name: count.document() for name, count in links.items()},
            "core": core,
            "slots": slots or {},
        }
        with self._expendable.writing(self._path):
            write_json(self._path, document)

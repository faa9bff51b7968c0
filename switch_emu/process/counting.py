"""Counters of a switch or node, by link and in its core; written once a second.

    counters/switch.json   {"schema": 1, "job": 5713, "role": "switch", "pid": 4711,
                            "at": "2026-...",
                            "links": {"parent": {"messages_sent": ..., ...}, "ranks 0": {...}},
                            "core": {"raw_count": 0, "slot_bytes_now": 1048576, ...}}

Bytes and messages passed between processes; emulated links have counters of their own. The file is
replaced as a whole, so a reader sees one instant. `luwu status` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, utc_text
from luwu.base.expendable import Expendable
from luwu.base.json_file import write_json
from luwu.wire.link_counts import LinkCount

SCHEMA: Final = 1
EVERY_NS: Final = 1_000_000_000

Counts = dict[str, int]
"""Name -> number; `..._count` and `..._bytes` only grow, `..._now` goes both ways."""


class CountersFile:
    """The file with the counters of a role."""

    def __init__(self, path: Path, role: str, job: int) -> None:
        self._path, self._role, self._job = path, role, job
        self._due_ns = 0
        self._expendable = Expendable()
        with self._expendable.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def is_due(self, now_ns: int) -> bool:
        """True if a second has passed."""
        return now_ns >= self._due_ns

    def write(self, links: Mapping[str, LinkCount], core: Counts) -> None:
        """Replace the file."""
        self._due_ns = SYSTEM_CLOCK.now_ns() + EVERY_NS
        document = {
            "schema": SCHEMA, "job": self._job, "role": self._role, "pid": os.getpid(),
            "at": utc_text(),
            "links": {name: count.document() for name, count in links.items()},
            "core": core,
        }  # fmt: skip
        with self._expendable.writing(self._path):
            write_json(self._path, document)

"""The page table of one version: side, step and checksums of every page.

Its entry of a page has the side, the step that wrote it and, for pages on disk, one checksum per
field and the end of the record (see `geometry.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from luwu.base.errors import PageCorruptError

DIGEST_BYTES = 16

_STATE = np.dtype([("version", "<u8"), ("attempt", "<u8"), ("side", "u1")])


class PageEntry(NamedTuple):
    """Side, step and checksums of one version of a page."""

    side: int
    version: int
    """The step that wrote it; old for pages that do not change."""
    attempt: int
    digests: bytes = b""
    """xxh3-128 of each part of the record, 16 bytes each; none in memory."""
    tail: bytes = b""
    """End of the record, stored here instead of in the side file."""


class TableShape:
    """Sizes of the entries of a page table; the same for all versions."""

    def __init__(self, digest_counts: Iterable[int], tail_bytes: Iterable[int]) -> None:
        self.digest_starts = _starts(count * DIGEST_BYTES for count in digest_counts)
        self.tail_starts = _starts(tail_bytes)
        self.page_count = len(self.digest_starts) - 1

    @property
    def table_bytes(self) -> int:
        """Bytes of an encoded table."""
        states = self.page_count * _STATE.itemsize
        return states + int(self.digest_starts[-1]) + int(self.tail_starts[-1])


class PageTable:
    """One entry per page, in arrays: a million pages are copied and encoded in milliseconds."""

    def __init__(self, shape: TableShape) -> None:
        self._shape = shape
        self._states = np.zeros(shape.page_count, dtype=_STATE)
        self._states["side"] = 1  # so that version 0 goes to side 0
        self._digests = bytearray(int(shape.digest_starts[-1]))
        self._tails = bytearray(int(shape.tail_starts[-1]))

    def __len__(self) -> int:
        return self._shape.page_count

    def side(self, page: int) -> int:
        """The side on which this table's version of the page lies."""
        return int(self._states["side"][page])

    def sides(self, first: int, count: int) -> list[int]:
        """Sides of `count` pages from `first` on."""
        found: list[int] = self._states["side"][first : first + count].tolist()
        return found

    def entry(self, page: int) -> PageEntry:
        """The entry of a page."""
        return self.entries(page, 1)[0]

    def entries(self, first: int, count: int) -> list[PageEntry]:
        """The entries of so many pages from `first` on."""
        digests, tails = self._shape.digest_starts, self._shape.tail_starts
        return [
            PageEntry(
                side, version, attempt,
                bytes(self._digests[digests[page] : digests[page + 1]]),
                bytes(self._tails[tails[page] : tails[page + 1]]),
            )
            for page, (version, attempt, side) in enumerate(
                self._states[first : first + count].tolist(), first
            )
        ]  # fmt: skip

    def digests(self, pages: range) -> bytes:
        """The checksums of neighbouring pages."""
        starts = self._shape.digest_starts
        return bytes(self._digests[starts[pages.start] : starts[pages.stop]])

    def changed(self, entries: Mapping[int, PageEntry]) -> PageTable:
        """A copy with new entries for some pages; this table is unchanged."""
        shape = self._shape
        table = PageTable(shape)
        table._states[:] = self._states
        table._digests[:] = self._digests
        table._tails[:] = self._tails
        for page, entry in entries.items():
            table.put(page, entry)
        return table

    def put(self, page: int, entry: PageEntry) -> None:
        """Set the entry of a page, in this table."""
        digests, tails = self._shape.digest_starts, self._shape.tail_starts
        self._states[page] = (entry.version, entry.attempt, entry.side)
        self._digests[digests[page] : digests[page + 1]] = entry.digests
        self._tails[tails[page] : tails[page + 1]] = entry.tail

    def encode(self) -> bytes:
        """States, digests, tails: `TableShape.table_bytes` bytes."""
        return b"".join((self._states.tobytes(), self._digests, self._tails))

    @classmethod
    def decode(cls, shape: TableShape, data: memoryview) -> PageTable:
        """The table in `data`, whose checksum the caller has verified."""
        if len(data) != shape.table_bytes:
            raise PageCorruptError(
                f"a page table has {len(data)} bytes, expected {shape.table_bytes}; "
                "it belongs to another store. Restore the store from a checkpoint."
            )
        table = cls(shape)
        digests_at = shape.page_count * _STATE.itemsize
        tails_at = digests_at + len(table._digests)
        table._states = np.frombuffer(data[:digests_at], dtype=_STATE).copy()
        table._digests[:] = data[digests_at:tails_at]
        table._tails[:] = data[tails_at:]
        return table


def _starts(sizes: Iterable[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts

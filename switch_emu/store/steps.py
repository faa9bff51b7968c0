"""The decided version, the one being made, and the allowed calls. No I/O.

Shared by every store: `interface.py` has the table of transitions, this module enforces it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from luwu.base.errors import StateError
from switch_emu.store.page_table import PageEntry, PageTable
from switch_emu.store.pins import Pin
from switch_emu.store.records import DecidedStep, StaleAttempt, VersionMissing


class StepState:
    """The decided version, the one being made, and the rules between them."""

    def __init__(
        self,
        table: PageTable,
        *,
        attempt: int = 0,
        decided: DecidedStep | None = None,
        prepared: tuple[DecidedStep, PageTable] | None = None,
        first_version: int = 0,
    ) -> None:
        self._lock = threading.Lock()
        self._table = table
        self._tentative: dict[int, PageEntry] = {}
        self._prepared = prepared
        self._aborted_attempt = -1
        self._pins: list[Pin] = []
        self._first_version = first_version
        self._missing: set[int] = set()
        """Pages that are still to be filled."""
        self.attempt = attempt
        self.decided = decided

    @property
    def prepared(self) -> DecidedStep | None:
        """The prepared step, if there is one."""
        return None if self._prepared is None else self._prepared[0]

    @property
    def next_version(self) -> int:
        """The version being made."""
        return self._first_version if self.decided is None else self.decided.version + 1

    def entry_to_read(self, page: int, version: int) -> PageEntry:
        """The entry of a version of a page. Raises VersionMissing if it cannot be read."""
        return self.entries_to_read(page, 1, version)[0]

    def entries_to_read(self, first: int, count: int, version: int) -> list[PageEntry]:
        """Entries of `count` pages from `first`."""
        with self._lock:  # a reader must not see half of a `prepare`, `decide` or `abort`
            table = self._table_of(version)
            if table is not None:
                self._check_filled(first, count)
                return table.entries(first, count)
            if version == self.next_version:
                pages = range(first, first + count)
                found = [self._tentative[page] for page in pages if page in self._tentative]
                if len(found) == count:
                    return found
                page = next(page for page in pages if page not in self._tentative)
                raise VersionMissing(
                    f"page {page} has no version {version} yet: it was not written in attempt "
                    f"{self.attempt}; write it, or read {self._decided_text()}"
                )
            pages_text = f"page {first}" if count == 1 else f"pages {first} to {first + count - 1}"
            raise VersionMissing(
                f"{pages_text}: version {version} cannot be read; there is {self._decided_text()} "
                f"and, for pages written in attempt {self.attempt}, version {self.next_version}"
            )

    def digests(self, pages: range, version: int) -> bytes:
        """The checksums of neighbouring pages, decided or prepared. Raises VersionMissing."""
        with self._lock:
            table = self._table_of(version)
            if table is None:
                raise VersionMissing(
                    f"version {version} is not prepared; there is {self._decided_text()}"
                )
            return table.digests(pages)

    def _table_of(self, version: int) -> PageTable | None:
        """The table of a version that is decided or prepared."""
        if self.decided is not None and version == self.decided.version:
            return self._table
        if self._prepared is not None and version == self._prepared[0].version:
            return self._prepared[1]
        return None

    def pin(self, make: Callable[[DecidedStep, PageTable], Pin]) -> Pin:
        """Pin the decided version with `make`; its table does not change any more."""
        with self._lock:  # else a page could be overwritten before it is pinned
            if self.decided is None:
                raise VersionMissing("there is no decided version yet: load the initial weights")
            pin = make(self.decided, self._table)
            self._pins = [*self._pins, pin]
            return pin

    def unpin(self, pin: Pin) -> None:
        """Forget a pin."""
        with self._lock:
            self._pins = [other for other in self._pins if other is not pin]

    def close_pins(self) -> None:
        """Close all pins."""
        for pin in self._pins:
            pin.close()

    def sides_to_write(self, first: int, count: int, version: int, attempt: int) -> list[int]:
        """The sides that are not current, of so many pages from `first` on.

        Pinned versions there are saved first. Raises StateError unless they may be written now.
        """
        if self._prepared is not None:
            raise StateError(
                f"page {first} cannot be written: version {self._prepared[0].version} is prepared "
                f"(attempt {self._prepared[0].attempt}); decide or abort it first"
            )
        self._check_making(f"page {first}", version, attempt)
        sides = [1 - side for side in self._table.sides(first, count)]
        for pin in self._pins:
            for page, side in enumerate(sides, first):
                pin.overwrites(page, side)
        return sides

    def note_written(self, first: int, entries: Sequence[PageEntry]) -> None:
        """Note written pages of the version being made, from `first` on."""
        with self._lock:
            self._tentative.update(enumerate(entries, first))

    # ---------------------------------------------------------------------- filling

    @property
    def is_filled(self) -> bool:
        """True if no page is missing."""
        return not self._missing

    def _check_filled(self, first: int, count: int) -> None:
        for page in range(first, first + count) if self._missing else ():
            if page in self._missing:
                raise VersionMissing(
                    f"page {page} cannot be read: it is still to be filled from another node; wait "
                    "until the store has all its pages"
                )

    def begin_filling(self, version: int, table: PageTable) -> None:
        """Forget all versions, and go on from this one: all pages of `table` are missing."""
        with self._lock:
            self._table, self._prepared = table, None
            self._tentative.clear()
            self._missing = set(range(len(table)))
            self.decided = DecidedStep(version=version, attempt=self.attempt)

    def entry_to_fill(self, page: int) -> PageEntry:
        """The place of a missing page in the decided version. Raises StateError if it is there."""
        if page not in self._missing or self.decided is None:
            raise StateError(f"page {page} is not missing; only missing pages can be filled")
        if self._prepared is not None:
            raise StateError(
                f"page {page} cannot be filled: version {self._prepared[0].version} is prepared; "
                "decide or abort it first"
            )
        return PageEntry(self._table.side(page), self.decided.version, self.decided.attempt)

    def note_filled(self, page: int, entry: PageEntry) -> None:
        """A missing page is there, in the decided version."""
        with self._lock:
            self._table.put(page, entry)
            self._missing.discard(page)

    # ---------------------------------------------------------------------- versions

    def table_to_prepare(self, step: DecidedStep) -> PageTable:
        """The page table that `step` makes. Raises StateError unless it may be prepared now."""
        if self._prepared is not None:
            raise StateError(
                f"version {step.version} cannot be prepared: version {self._prepared[0].version} "
                f"(attempt {self._prepared[0].attempt}) already is; decide or abort it first"
            )
        self._check_making("step", step.version, step.attempt)
        missing = len(self._table) - len(self._tentative)
        is_first = self.decided is None
        if is_first and (missing or (step.version == 0 and not step.applied)):
            raise StateError(
                f"version {step.version} needs all {len(self._table)} pages, {missing} are "
                "missing; write them before it is prepared"
            )
        return self._table.changed(self._tentative if step.applied or is_first else {})

    def note_prepared(self, step: DecidedStep, table: PageTable) -> None:
        """Note the prepared step."""
        with self._lock:
            self._prepared = (step, table)
            self._tentative.clear()

    def check_decide(self, version: int, attempt: int) -> None:
        """Raise StateError unless exactly this step is prepared."""
        step = self.prepared
        if step is None or (step.version, step.attempt) != (version, attempt):
            there = "nothing" if step is None else f"{step.version} (attempt {step.attempt})"
            raise StateError(
                f"version {version} (attempt {attempt}) cannot be decided: prepared is {there}; "
                "prepare it first"
            )

    def note_decided(self) -> None:
        """Make the prepared step the decided one."""
        assert self._prepared is not None
        with self._lock:
            self.decided, self._table = self._prepared
            self._prepared = None

    def abort_reaches_prepared(self, attempt: int) -> bool:
        """True if aborting this attempt discards the prepared step."""
        return self._prepared is not None and self._prepared[0].attempt <= attempt

    def note_aborted(self, attempt: int) -> None:
        """Discard writes and the prepared step of this attempt and older ones."""
        with self._lock:
            if self.abort_reaches_prepared(attempt):
                self._prepared = None
            self._tentative = {
                page: entry for page, entry in self._tentative.items() if entry.attempt > attempt
            }
        self._aborted_attempt = max(self._aborted_attempt, attempt)

    def check_attempt(self, attempt: int) -> None:
        """Raise StateError if the attempt would go back."""
        if attempt < self.attempt:
            raise StateError(
                f"attempt {attempt} is older than attempt {self.attempt}, which is recorded; "
                "attempts never go back, so ask the peers for the current one"
            )

    def _check_making(self, what: str, version: int, attempt: int) -> None:
        if version != self.next_version:
            raise StateError(
                f"{what}: version {version} cannot be made; {self._decided_text()} is decided, "
                f"so version {self.next_version} is next"
            )
        if attempt != self.attempt or attempt <= self._aborted_attempt:
            raise StaleAttempt(
                f"{what}: attempt {attempt} is stale or unknown; attempt {self.attempt} is "
                f"recorded, attempts up to {self._aborted_attempt} are aborted. "
                "Record a new attempt first."
            )
        with self._lock:
            older = next(iter(self._tentative.values()), None)
        if older is not None and older.attempt != attempt:
            raise StateError(
                f"{what}: pages of attempt {older.attempt} are still there; "
                f"abort it before attempt {attempt} goes on"
            )

    def _decided_text(self) -> str:
        return "no version" if self.decided is None else f"version {self.decided.version}"

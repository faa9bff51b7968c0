"""The interface of page stores, and the guarantees of each.

*Version* v of the store is its content after v decided steps; version 0 is the initial weights.
Every page has two sides; the decided version lies on one, the next is written to the other. A step
is made by three calls, and abandoned by a fourth:

    OPEN      -> OPEN       `write`     any number of pages, from several threads
    OPEN      -> PREPARED   `prepare`   flush the pages, write their table, flush
    PREPARED  -> OPEN       `decide`    write a record, flush: the version is raised by one
    any       -> OPEN       `abort`     discard the writes of the attempt; nothing else changes

Invariants; the tests cite them by number:

    P1  Until `decide` returns, the decided version can be read whole; it is never overwritten.
    P2  Reopened after a crash at any instant, the store is at the decided version or, if the crash
        was inside `decide`, at the next; never a mixture. A prepared step stays prepared until it
        is decided or aborted: several nodes can agree on it after a crash.
    P3  A read returns the bytes that were written or raises PageCorruptError.
    P4  A page not written in a step, and every page of a skipped step, keeps its side. The version
        being made has it once it was to `keep`.
    P5  `generation` and `attempt` never go back.
    P6  A pinned version does not change, whatever is written, decided or aborted meanwhile.
    P7  A store that is being filled holds no version until one with all pages is decided; reopened
        before that, it is empty.
    P8  A store *in place* has one side, in RAM. Other than P1 says, a page of the decided version
        can be read until it is overwritten, then raises VersionMissing until `decide`; a pin saves
        it before. An abort after the first such write raises StateError: who makes a step begins to
        write its pages when nothing but a failure of the process can end it.

    P9  With a log of sums a page that is updated need not be written: what `log_sum` kept of it is
        in the version as its record would be. A reader makes its updates again, or raises
        StateError.

*Filling* (`begin_filling`, `fill`) is how a store takes over the state of a job that goes on: each
page comes at the decided version of the moment, and is written with the others from then on.

Neighbouring pages whose records have one size are read and written together, as *rows*
(`views.py`): by one request to the disk, as far as they lie on one side.

Threads: pages may be read and written while others are; every other call is made by one thread
while no write is in flight. A read of version v must have ended before a write of version v + 2,
which takes the side that is being read.

A call out of order raises StateError and changes nothing. A write or flush that fails stops the
store: every later call raises StateError.
"""

from __future__ import annotations

from abc import abstractmethod

from luwu.base.closing import Closing
from luwu.base.errors import StateError
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import IoCounter
from switch_emu.store.records import Buffer, DecidedStep
from switch_emu.store.versions import Pin, StepState
from switch_emu.store.views import RecordRows, one_record


class PageStore(Closing):
    """Pages with two sides, and the record of the step that made them; see the module."""

    config: StoreConfig
    """The configuration of the store."""
    generation: int
    """Count of openings, this one included; durable before the store is open."""
    notes: tuple[str, ...] = ()
    """Damage that opening repaired; for the log."""
    redone: tuple[int, float] = (0, 0.0)
    """Steps that opening made again from a log of sums, and the seconds that it took."""

    _steps: StepState
    """The versions that it has, and the calls that are allowed."""

    @property
    def attempt(self) -> int:
        """The attempt last recorded; 0 in a new store."""
        return self._steps.attempt

    @property
    def epoch(self) -> tuple[int, ...]:
        """Numbers that were recorded with an attempt (`luwu.protocol.epoch`); none in a new
        store."""
        return self._steps.epoch

    @property
    def decided(self) -> DecidedStep | None:
        """The newest decided step; None until all initial weights are written (version 0)."""
        return self._steps.decided

    @property
    def prepared(self) -> DecidedStep | None:
        """The step that is prepared and neither decided nor aborted, after a crash too."""
        return self._steps.prepared

    @property
    def is_in_place(self) -> bool:
        """True if the version being made overwrites the decided one; see P8."""
        return self._steps.is_in_place

    @property
    def stats(self) -> IoCounter:
        """Traffic of pages with the disk since the opening."""
        return IoCounter()

    @property
    def disk_bytes(self) -> int:
        """Bytes of this store on disk."""
        return 0

    @abstractmethod
    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        """Raise the job's attempt, at the store's durability; it may be equal, not lower.

        `epoch`: numbers to keep beside it; None: those that are there.
        """

    def read(self, page: int, version: int, into: memoryview) -> None:
        """Fill `into` with the record of a page; see `read_rows`."""
        self.read_rows(page, version, one_record(into))

    @abstractmethod
    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        """Fill `into` with whole records of the decided version, or of the one being made.

        They are those of the pages from `first` on. The version being made can be read for pages
        written in this attempt, and for all pages once prepared. Raises PageCorruptError; the
        content of `into` is then undefined.
        """

    @abstractmethod
    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of a record; checked like a whole record."""

    @abstractmethod
    def digest(self, pages: range, version: int) -> bytes:
        """One checksum of the records of these pages, equal in stores that hold the same.

        16 bytes (xxh3-128), of the decided or the prepared version. No page is read from disk, but
        for those that lack updates whose sums are in a log.
        """

    def write(self, page: int, version: int, attempt: int, record: Buffer) -> None:
        """Write the record of a page; see `write_rows`."""
        self.write_rows(page, version, attempt, one_record(record))

    @abstractmethod
    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        """Write whole records, of the pages from `first` on, to the side that is not current.

        The last write of a page counts. Raises StaleAttempt if another attempt is recorded,
        StateError for another version.
        """

    def wants_sum(self, page: int) -> bool:
        """True if `log_sum` is to be called before this page is written; see P9."""
        return False

    def log_sum(
        self, page: int, version: int, attempt: int, data: memoryview, dtype: str, note: bytes
    ) -> None:  # fmt: skip
        """Keep the sum that a page is updated with; the last one of a page counts.

        `note`: what else its update depends on, beside the step. Raises as `write_rows` does.
        """
        raise StateError("this store keeps no sums; write the page")

    def is_quick(self, first: int, count: int) -> bool:
        """True if these pages can be updated now without a wait for the disk."""
        return False

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        """The records themselves, read-only, if they lie in RAM, at equal distances: saves a copy.

        They are valid as long as a read of this version may last. None: use `read_rows`.
        """
        return None

    def rows_to_fill(
        self, first: int, count: int, version: int, attempt: int
    ) -> RecordRows | None:  # fmt: skip
        """Memory of the next records in RAM: fill it and pass it to `write_rows`, which copies
        nothing.

        None: this store has none, or not at equal distances. Raises as `write_rows` does.
        """
        return None

    def keep(self, first: int, count: int, version: int, attempt: int) -> None:
        """The version being made has these pages, from `first` on, as the decided one has them.

        Raises as `write_rows` does.
        """
        self._steps.note_kept(first, count, version, attempt)

    @abstractmethod
    def pin(self) -> Pin:
        """Pin the decided version: it can be read until the pin is closed.

        Any thread, at any time. Raises VersionMissing before the first decided version.
        """

    @abstractmethod
    def begin_filling(self, version: int) -> None:
        """Forget what is there, durably, and take this version, without pages, for the decided one.

        Steps go on from it with the pages that are there by then; see P7.
        """

    @abstractmethod
    def fill(self, page: int, record: Buffer) -> None:
        """Write a page that is missing, as the decided version has it.

        Raises StateError if it is there already, or none is missing.
        """

    @abstractmethod
    def prepare(self, step: DecidedStep) -> None:
        """Make the writes of this attempt ready to be decided, at the store's durability.

        The first version, 0 or that of an imported state, needs every page. A later step with
        `applied=False` changes no page, written or not.
        """

    @abstractmethod
    def decide(self, version: int, attempt: int) -> None:
        """Make the prepared step the decided one."""

    @abstractmethod
    def abort(self, attempt: int) -> None:
        """Discard writes and the prepared step of this attempt and older ones.

        The attempt cannot be used again: raise it with `record_attempt`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and locks; the decided version stays. May be called twice."""

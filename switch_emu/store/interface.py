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
    P4  A page not written in a step, and every page of a skipped step, keeps its side.
    P5  `generation` and `attempt` never go back.
    P6  A pinned version does not change, whatever is written, decided or aborted meanwhile.

Threads: `read`, `read_field` and `write` of different pages may run at once; every other call is
made by one thread while no `write` is in flight. A read of version v must have ended before a
`write` of version v + 2, which takes the side that is being read.

A call out of order raises StateError and changes nothing. A write or flush that fails stops the
store: every later call raises StateError.
"""

from __future__ import annotations

from abc import abstractmethod

from luwu.base.closing import Closing
from switch_emu.store.config import StoreConfig
from switch_emu.store.pins import Pin
from switch_emu.store.records import Buffer, DecidedStep, StoreStats


class PageStore(Closing):
    """Pages with two sides, and the record of the step that made them; see the module."""

    @property
    @abstractmethod
    def config(self) -> StoreConfig:
        """The configuration of the store."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """Count of openings, this one included."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The attempt last recorded; 0 in a new store."""

    @property
    @abstractmethod
    def decided(self) -> DecidedStep | None:
        """The newest decided step; None until all initial weights are written (version 0)."""

    @property
    @abstractmethod
    def prepared(self) -> DecidedStep | None:
        """The step that is prepared and neither decided nor aborted, after a crash too."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Damage that opening repaired; for the log."""
        return ()

    @property
    @abstractmethod
    def stats(self) -> StoreStats:
        """Traffic since the opening."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes of this store on disk; 0 in memory."""

    @property
    def state_bytes(self) -> int:
        """Bytes of all records of one version."""
        return self.config.state_bytes

    @abstractmethod
    def record_attempt(self, attempt: int) -> None:
        """Raise the job's attempt, at the store's durability; it may be equal, not lower."""

    @abstractmethod
    def read(self, page: int, version: int, into: memoryview) -> None:
        """Fill `into` with a whole record of the decided version, or of the one being made.

        The version being made can be read for pages written in this attempt, and for all pages once
        prepared. Raises PageCorruptError; the content of `into` is then undefined.
        """

    @abstractmethod
    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of a record; checked like a whole record."""

    @abstractmethod
    def write(self, page: int, version: int, attempt: int, record: Buffer) -> None:
        """Write a whole record to the side that is not current; the last write of a page counts.

        Raises StaleAttempt if another attempt is recorded, StateError for another version.
        """

    def record_in_ram(self, page: int, version: int) -> memoryview | None:
        """The record itself, read-only, if it lies in RAM: saves a copy.

        It is valid as long as a `read` of this version may last. None: use `read`.
        """
        return None

    def place_in_ram(self, page: int, version: int, attempt: int) -> memoryview | None:
        """Memory of the next record in RAM: fill it and pass it to `write`, which copies nothing.

        None: this store has none. Raises as `write` does.
        """
        return None

    @abstractmethod
    def pin(self) -> Pin:
        """Pin the decided version: it can be read until the pin is closed.

        Any thread, at any time. Raises VersionMissing before the first decided version.
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

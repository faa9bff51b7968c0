"""What a page store promises, whatever keeps the bytes.

*Version* v of the store is its content after v decided steps; version 0 is the initial weights.
Every page has two sides; the decided version lies on one, the other takes the next. A step is made
in four calls, and abandoned by one:

    OPEN      -> OPEN       `write`     any number of pages, from several threads
    OPEN      -> PREPARED   `prepare`   flush the pages, write what they are, flush
    PREPARED  -> OPEN       `decide`    a record of its own, flush: the version is raised by one
    any       -> OPEN       `abort`     forget what the attempt wrote; nothing else changes

Invariants; the tests cite them by number:

    P1  Until `decide` returns, the decided version can be read whole; it is never overwritten.
    P2  Reopened after a crash at any instant, the store is at the decided version or, if the crash
        was inside `decide`, at the next; never a mixture. A step once prepared is still prepared,
        until it is decided or aborted: several nodes can agree on it after a crash.
    P3  A read returns the bytes that were written or raises PageCorruptError.
    P4  A page not written in a step, and every page of a skipped step, keeps its side.
    P5  `generation` and `attempt` never go back.
    P6  What a pin shows does not change, whatever is written, decided or aborted meanwhile.

Threads: `read`, `read_field` and `write` of different pages may run at once; every other call is
made by one thread while no `write` is in flight. A read of version v must have ended before a
`write` of version v + 2, which takes the side that is being read.

A call out of order raises StateError and changes nothing. A write or flush that fails stops the
store: every later call raises StateError.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from luwu.base.closing import Closing
from luwu.base.errors import StateError
from switch_emu.store.config import StoreConfig

if TYPE_CHECKING:
    from switch_emu.store.pins import Pin

Buffer = bytes | bytearray | memoryview

Durability = Literal["step", "process", "none"]
"""What a decided step survives: power loss; any kill of processes; see `FilePageStore`."""


class VersionMissing(StateError):
    """This version of the page is not there, any more or yet; the store is as good as before."""

    code = "E506"


class StaleAttempt(StateError):
    """Written under an attempt that does not count any more; nothing was written."""

    code = "E507"


class Contributor(NamedTuple):
    """A worker whose gradient is in a step."""

    rank: int
    incarnation: int
    cursor: int
    """Where the worker's data goes on: the first sample it has not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStep:
    """The record of one step, kept beside the pages it made."""

    version: int
    """Count of decided steps once this one is; 0 for the initial weights."""

    attempt: int

    epoch: int = 0

    job: int = 0

    generation: int = 0
    """Generation of the store when the step was prepared."""

    contributors: tuple[Contributor, ...] = ()
    """The ledger: each contributor's gradient is in the state once, nobody else's is."""

    hyper: bytes = b""
    """Hyper-parameters of the update; opaque to the store."""

    applied: bool = True
    """False for a step that was skipped as a whole: no page changed."""

    grad_norm: float | None = None
    """None where it was not asked for."""

    extra: Mapping[str, str] = field(default_factory=dict)
    """Whatever else belongs to the step: versions of libraries, state of generators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What has passed between the store and its disk since it was opened."""

    bytes_read: int = 0
    """Page data, as asked of the disk: whole blocks where the disk wants them."""
    bytes_written: int = 0
    flushes: int = 0
    """Flushes of page data."""
    meta_bytes_read: int = 0
    """Manifests, superblocks and counters."""
    meta_bytes_written: int = 0
    meta_flushes: int = 0


class PageStore(Closing):
    """Pages with two sides and a record of the step that made them; rules above."""

    @property
    @abstractmethod
    def config(self) -> StoreConfig:
        """What the store was made for."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """Openings of this store, this one included."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The attempt last recorded; 0 in a new store."""

    @property
    @abstractmethod
    def decided(self) -> DecidedStep | None:
        """The newest decided step; None until all initial weights are in (version 0)."""

    @property
    @abstractmethod
    def prepared(self) -> DecidedStep | None:
        """The step that is prepared and neither decided nor aborted, after a crash too."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What opening found damaged and put right; for the log."""
        return ()

    @property
    @abstractmethod
    def stats(self) -> StoreStats:
        """Traffic since the opening."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes this store takes on disk; 0 in memory."""

    @property
    def state_bytes(self) -> int:
        """Bytes of all records, once."""
        return self.config.state_bytes

    @abstractmethod
    def record_attempt(self, attempt: int) -> None:
        """Raise the job's attempt, durably at the store's level; equal is allowed, lower is not."""

    @abstractmethod
    def read(self, page: int, version: int, into: memoryview) -> None:
        """Fill `into` with a whole record of the decided version, or of the one being made.

        The version being made is there for pages already written in this attempt, and for all
        pages once prepared. Raises PageCorruptError; `into` then holds no promise.
        """

    @abstractmethod
    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of a record; checked like a whole record."""

    @abstractmethod
    def write(self, page: int, version: int, attempt: int, record: Buffer) -> None:
        """Put a whole record on the side that is not current; the last write of a page counts.

        Raises StaleAttempt if another attempt is recorded, StateError for another version.
        """

    def record_in_ram(self, page: int, version: int) -> memoryview | None:
        """The record itself, read-only, if it lies in RAM, so that it need not be copied.

        It is valid as long as a `read` of this version may last. None: it must be read.
        """
        return None

    def place_in_ram(self, page: int, version: int, attempt: int) -> memoryview | None:
        """Where the record goes in RAM: make it there, and `write` that memory; it is not copied.

        None: this store has no such place. Raises as `write` does.
        """
        return None

    @abstractmethod
    def pin(self) -> Pin:
        """Hold the decided version: it can be read from what is returned until that is closed.

        Any thread, at any time. Raises VersionMissing while there is none.
        """

    @abstractmethod
    def prepare(self, step: DecidedStep) -> None:
        """Make what this attempt wrote ready to be decided; it survives what the level survives.

        The first version, 0 or that of an imported state, needs every page. Any later step with
        `applied=False` flips no page, written or not.
        """

    @abstractmethod
    def decide(self, version: int, attempt: int) -> None:
        """Make the prepared step the decided one."""

    @abstractmethod
    def abort(self, attempt: int) -> None:
        """Forget what was written or prepared under this attempt or an older one.

        The attempt cannot be written under again: raise it with `record_attempt`.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and locks; what is decided stays. May be called twice."""

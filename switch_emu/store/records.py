"""What goes into a page store and comes out beside the pages: records of steps, counts, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from luwu.base.errors import StateError

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

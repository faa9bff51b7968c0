"""Values of page stores: records of steps, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from luwu.base.errors import StateError

Buffer = bytes | bytearray | memoryview

Durability = Literal["step", "process", "none"]
"""Faults that a decided step survives: power loss, kills, none; see `file.py`."""


RECORD_KEY: Final = "kept"
"""Key in `DecidedStep.extra`: what workers attached, in `attachments.py`; ..."""
SUMS_KEY: Final = "sums"
"""... and the newest step in the log whose version needs it, in `sums.py`; none: no page does."""


class VersionMissing(StateError):
    """This version of the page does not exist, any more or yet; the store is intact."""

    code = "E506"


class StaleAttempt(StateError):
    """A write under a stale attempt; nothing was written."""

    code = "E507"


class Contributor(NamedTuple):
    """A worker whose gradient is in a step."""

    rank: int
    incarnation: int
    cursor: int
    """The first sample that the worker has not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStep:
    """The record of one step, stored beside its pages."""

    version: int
    """Count of decided steps, this one included; 0 for the initial weights."""

    attempt: int

    epoch: int = 0

    job: int = 0

    generation: int = 0
    """Generation of the store when the step was prepared."""

    contributors: tuple[Contributor, ...] = ()
    """The ledger: the state contains each contributor's gradient once, and no other."""

    hyper: bytes = b""
    """Hyper-parameters of the update; opaque to the store."""

    applied: bool = True
    """False for a step that was skipped as a whole: no page changed."""

    norms: tuple[float, ...] = ()
    """Norm of the mean gradient, then what each clip of the step found; empty if not measured."""

    extra: Mapping[str, str] = field(default_factory=dict)
    """Other data of the step: versions of libraries, state of generators."""

    @property
    def portable_extra(self) -> dict[str, str]:
        """`extra`, without what refers to files of this store."""
        of_files = (RECORD_KEY, SUMS_KEY)
        return {key: text for key, text in self.extra.items() if key not in of_files}

    @property
    def name(self) -> str:
        """The version, by E2: one that was made again is another."""
        return f"{self.version} (attempt {self.attempt})"

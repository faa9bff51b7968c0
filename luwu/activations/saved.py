"""What the store of activations knows of each storage, and what it counts (`activations.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from luwu.base.errors import LuwuError
from luwu.base.quantities import format_bytes

if TYPE_CHECKING:
    from luwu.activations.store import ActivationStore

Allocate = Callable[[int], memoryview]
"""Memory of so many bytes, kept by the view."""


@dataclass(slots=True)
class ActivationStats:
    """What a store did; bytes are counted once per storage, not per view of it."""

    saved_bytes: int = 0
    """All that was ever put."""
    written_bytes: int = 0
    """Of these, to disk."""
    read_bytes: int = 0
    """From disk."""
    live_bytes: int = 0
    """Put and not forgotten yet."""
    live_bytes_peak: int = 0
    waiting_bytes: int = 0
    """Of the live ones, in memory."""
    waiting_bytes_peak: int = 0
    waits_count: int = 0
    """Times that the script had to wait for the disk."""
    waited_s: float = 0.0
    disk_bytes: int = 0
    """Length of the file."""


class Saved:
    """The bytes of one storage."""

    __slots__ = (
        "__weakref__", "allocate", "checksum", "coming", "fault", "holds_count", "is_busy",
        "is_handed", "memory", "nbytes", "number", "offset", "ready", "source", "wanted_count",
    )  # fmt: skip

    def __init__(self, memory: memoryview, allocate: Allocate) -> None:
        self.number, self.nbytes = -1, memory.nbytes
        self.memory: memoryview | None = memory
        self.allocate = allocate
        self.checksum: int | None = None
        """None while `ready` was not called."""
        self.ready: Callable[[], object] | None = None
        """Returns when the bytes are in the memory."""
        self.source: object = None
        """Whatever the caller wants to live as long."""
        self.offset: int | None = None
        """In the file."""
        self.fault: LuwuError | None = None
        """Why its bytes are not to be had; raised as a copy, which has a traceback of its own."""
        self.holds_count = 0
        self.wanted_count = 0
        """Threads that wait for it."""
        self.is_busy = False
        """Being written or read."""
        self.coming: memoryview | None = None
        """Where it is read to, from when that is asked for. (Memory of the thread that asks: malloc
        would keep what the reading thread took for that thread.)"""
        self.is_handed = False
        """Read back, and given out since."""


class Hold:
    """One saved tensor's claim on bytes; they stay until the last claim is gone."""

    __slots__ = ("_store", "saved")

    def __init__(self, store: ActivationStore, saved: Saved) -> None:
        self._store, self.saved = store, saved

    def __del__(self) -> None:
        self._store._drop(self.saved)


def checksum_of(memory: memoryview) -> int:
    """XXH3-128."""
    return xxhash.xxh3_128_intdigest(memory)


def changed_error(saved: Saved) -> LuwuError:
    """Somebody wrote where the bytes lay."""
    return LuwuError(
        f"a tensor of {format_bytes(saved.nbytes)} that was saved for backward was changed in "
        "place afterwards, so its gradient would be wrong; work on a clone() of it"
    )

"""A payload in a process: bytes that came by the transport, or were made here, and who needs them.

The cores see it as an opaque token. It is counted: `share` for one more holder, `drop` for one
less; the last one releases the transport's buffer. A payload may be moved to a spill file and stays
valid; `view` then reads it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class SpillFile(Protocol):
    """Where payloads go that find no room in RAM."""

    def put(self, data: memoryview) -> int:
        """Keep the bytes; the number of their place."""
        ...

    def get(self, place: int, nbytes: int) -> memoryview:
        """The bytes of a place, in a buffer of the caller's own."""
        ...

    def free(self, place: int) -> None:
        """The place may be used again."""
        ...


class Payload:
    """Counted bytes."""

    def __init__(self, data: memoryview, release: Callable[[], None] | None = None) -> None:
        self._data: memoryview | None = data
        self._release = release
        self._holders_count = 1
        self._lock = threading.Lock()
        self._spill: tuple[SpillFile, int] | None = None
        self.nbytes = data.nbytes

    def view(self) -> memoryview:
        """The bytes; read back from the spill file if they are there."""
        data, spill = self._data, self._spill
        if data is not None:
            return data
        assert spill is not None, "a payload was used after its last holder dropped it"
        return spill[0].get(spill[1], self.nbytes)

    def share(self) -> Payload:
        """One more holder."""
        with self._lock:
            assert self._holders_count > 0
            self._holders_count += 1
        return self

    def drop(self) -> None:
        """One holder less; the last one lets go of the memory."""
        with self._lock:
            assert self._holders_count > 0, "a payload was dropped more often than held"
            self._holders_count -= 1
            if self._holders_count > 0:
                return
        self._let_go()
        if self._spill is not None:
            self._spill[0].free(self._spill[1])

    def spill(self, file: SpillFile) -> None:
        """Move the bytes out of RAM."""
        if self._spill is None and self._data is not None:
            self._spill = (file, file.put(self._data))
            self._let_go()

    def _let_go(self) -> None:
        self._data = None
        if self._release is not None:
            release, self._release = self._release, None
            release()

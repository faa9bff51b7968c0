"""A bounded number of buffers, used again when the event behind their last use has passed.

    free -> taken      `take`, `wait`     its holder fills it
    taken -> pending   `give`             a copy from it is under way
    pending -> free    its event is over  seen at the next `take`

A buffer is never handed out while a copy may read or write it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from luwu.training.devices.streams import Event


class Ring:
    """See the module. Two threads may use it."""

    def __init__(self, make: Callable[[], torch.Tensor], count_max: int) -> None:
        self._make = make
        self._count_max = count_max
        self._made_count = 0
        self._free: list[torch.Tensor] = []
        self._pending: deque[tuple[torch.Tensor, Event]] = deque()
        """Buffers given back, in the order of one stream."""
        self._lock = threading.Lock()

    def has_free(self) -> bool:
        """True if `take` would give one."""
        with self._lock:
            self._collect()
            return bool(self._free) or self._made_count < self._count_max

    def take(self) -> torch.Tensor | None:
        """A buffer; None if all are in use."""
        with self._lock:
            self._collect()
            if self._free:
                return self._free.pop()
            if self._made_count == self._count_max:
                return None
            self._made_count += 1
            return self._make()

    def wait(self) -> torch.Tensor:
        """A buffer, if need be the one that is given back next: the host waits for its event."""
        found = self.take()
        while found is None:
            assert self._pending, "all buffers are held by their users, and none is on its way back"
            self._pending[0][1].synchronize()
            found = self.take()
        return found

    def give(self, buffer: torch.Tensor, event: Event | None = None) -> None:
        """It is free once the event has passed; at once without one."""
        with self._lock:
            if event is None:
                self._free.append(buffer)
            else:
                self._pending.append((buffer, event))

    def _collect(self) -> None:
        while self._pending and self._pending[0][1].query():
            self._free.append(self._pending.popleft()[0])

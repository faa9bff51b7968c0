"""A document that many ask for, made at most once a second and never for more than a small share of
a core: the longer it takes to make, the longer it is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from luwu.base.clock import SYSTEM_CLOCK

EVERY_NS: Final = 10**9
SHARE: Final = 0.02
"""Of a core, for making it."""

T = TypeVar("T")


class Latest(Generic[T]):
    """Made when it is asked for and is too old; safe to ask from several threads."""

    def __init__(self, make: Callable[[], T], now_ns: Callable[[], int] = SYSTEM_CLOCK.now_ns):
        self._make, self._now_ns = make, now_ns
        self._lock = threading.Lock()
        self._due_ns = 0
        self._made: T | None = None

    def get(self) -> T:
        """The document; made anew if it is due."""
        with self._lock:
            begun_ns = self._now_ns()
            if self._made is None or begun_ns >= self._due_ns:
                self._made = self._make()
                took_ns = self._now_ns() - begun_ns
                self._due_ns = begun_ns + max(EVERY_NS, int(took_ns / SHARE))
            return self._made

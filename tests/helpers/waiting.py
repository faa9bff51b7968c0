"""Waiting for what another thread or process brings about."""

from __future__ import annotations

import threading
from collections.abc import Callable

from luwu.base.clock import SYSTEM_CLOCK, sleep


def is_soon(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it comes true in time."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(seconds * 1e9)
    while not condition():
        if SYSTEM_CLOCK.now_ns() > end_ns:
            return False
        sleep(0.001)
    return True


def do_once(condition: Callable[[], bool], do: Callable[[], object]) -> None:
    """Do it in another thread, once the condition holds; after all that time in any case."""
    threading.Thread(target=lambda: (is_soon(condition), do())).start()

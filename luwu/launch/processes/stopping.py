"""Ctrl-C and its like, for as long as processes are ours to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within it a signal only sets a flag: the function given says whether one came."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread may say what signals do
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # nohup: the run outlives its terminal
    for number in before:
        signal.signal(number, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

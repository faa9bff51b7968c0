"""Ctrl-C and its like, for as long as processes are ours to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from luwu.base.errors import STOP_SIGNALS


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within it a signal only sets a flag: the function given says whether one came. Signals that
    our caller ignores stay ignored (nohup), except Ctrl-C."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread may say what signals do
        return

    def stop(number: int, _: object) -> None:
        if number != signal.SIGINT and not asked.is_set():
            with contextlib.suppress(OSError):  # not by print, which a signal may have interrupted
                os.write(2, f"luwu: {signal.Signals(number).name}: stopping\n".encode())
        asked.set()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, stop)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

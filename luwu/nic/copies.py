"""Pushes whose gradients are still being copied to their cells: by a GPU, from its memory.

The training thread does not wait for a copy. A thread waits for the copies of one push after the
other, and then hands the push over: to the I/O thread, as a request of the era in which the
training thread made it. So what an abort voids is dropped there, and its cells are given back when
nothing writes to them any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Ready = Callable[[], object]
"""Returns when the gradients of a push are in their cells."""


class Copies:
    """See the module. The first push starts the thread."""

    def __init__(self, fail: Callable[[Exception], object]) -> None:
        """`fail` is called with the error of a copy; what was to be handed over then is not."""
        self._fail = fail
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Ready | None, Callable[[], object]]] = deque()
        """The first one is being done."""
        self._has_failed = False
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def add(self, ready: Ready | None, hand_over: Callable[[], object]) -> None:
        """Hand over once it is ready, and everything before it: at once, if nothing is copied."""
        if self._is_stopping or (ready is None and not self._jobs):
            if ready is not None:
                ready()
            hand_over()
            return
        with self._changed:
            self._jobs.append((ready, hand_over))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="luwu-copy", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Return when nothing is copied any more, or the condition holds after a copy.

        A GPU finishes copies whatever the network does, so this ends.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or until())

    def close(self) -> None:
        """Finish the copies and end the thread; may be repeated."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_stopping)
                if not self._jobs:
                    return
                ready, hand_over = self._jobs[0]
            try:
                if ready is not None:
                    ready()
                if not self._has_failed:
                    hand_over()
            except Exception as error:
                self._has_failed = True
                self._fail(error)
            with self._changed:
                self._jobs.popleft()
                del ready, hand_over  # what they hold must not live until the next push
                self._changed.notify_all()

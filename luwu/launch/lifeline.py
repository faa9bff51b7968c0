"""The child's end of the pipe: when standard input ends, whoever started us is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def watch(on_end: Callable[[], None]) -> None:
    """Call `on_end` in a thread of its own when standard input ends."""

    def wait() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass  # closed: the same
        on_end()

    threading.Thread(target=wait, name="luwu-lifeline", daemon=True).start()

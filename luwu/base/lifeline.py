"""The child's end of the pipe: when standard input ends, the parent process is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def watch(on_end: Callable[[], None], *, on_line: Callable[[str], None] | None = None) -> None:
    """Call `on_end` in a thread of its own when standard input ends.

    `on_line` gets each whole line that comes before, in the same thread. If it raises, that is
    the end too: the process that started us cannot be understood any more.
    """

    def wait() -> None:
        rest = b""
        try:
            while data := os.read(0, 4096):
                if on_line is not None:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        on_line(line.decode())
        except OSError:
            pass  # closed: the same
        finally:
            on_end()

    threading.Thread(target=wait, name="luwu-lifeline", daemon=True).start()

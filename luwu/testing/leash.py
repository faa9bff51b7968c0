"""`python -m luwu.testing.leash ...` is `luwu ...` that also ends when its standard input does.

A test's cluster must not outlive the test, even if that is killed by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from luwu.base.libc import keep_one_arena
from luwu.base.lifeline import watch
from luwu.commands.main import main

PATIENCE_S: Final = 5.0


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE_S)
    os._exit(1)


if __name__ == "__main__":
    keep_one_arena()  # before there is a thread
    watch(_end)
    sys.exit(main())

"""The program of a test's worker process: `-m luwu.testing.worker CALL`, below `luwu.launch.entry`.

A process that is killed cannot say where it was. So a thread writes down where the function is, as
often as that changes, and the test shows what was written last.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from luwu.base.errors import ConfigError
from luwu.testing.calls import BEFORE, rank_file, read_call, save_value

LOOK_S: Final = 0.25
__tracebackhide__ = True


def main(arguments: Sequence[str]) -> None:
    """Call the function and write down what it returns."""
    call = Path(arguments[0]).absolute()
    rank = int(os.environ["RANK"])
    with contextlib.suppress(io.UnsupportedOperation, AttributeError, ValueError):
        faulthandler.enable()
    is_called = _report_where(rank_file(call, "where", rank))
    function, args = read_call(call)
    is_called.set()
    result = function(rank, *args)
    try:
        save_value(rank_file(call, "result", rank), result, name=f"the result of rank {rank}")
    except ConfigError as error:
        raise error.with_traceback(None) from None  # the message has the place in the result


def _report_where(file: Path) -> threading.Event:
    """Begin to report; the event is to be set when the function is called."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    partial = file.with_suffix(".new")
    is_called = threading.Event()

    def report() -> None:
        told = ""
        while True:
            begins = "" if is_called.is_set() else BEFORE
            text = _stack(sys._current_frames().get(main_thread))
            if text and begins + text != told:
                told = begins + text
                partial.write_text(told, encoding="utf-8")
                partial.replace(file)
            threading.Event().wait(LOOK_S)

    threading.Thread(target=report, name="luwu-where", daemon=True).start()
    return is_called


def _stack(frame: FrameType | None) -> str:
    """The frames within the function, as a traceback shows them."""
    frames = []
    while frame is not None and frame.f_code is not main.__code__:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return "".join(traceback.StackSummary.extract(reversed(frames)).format())


if __name__ == "__main__":
    main(sys.argv[1:])

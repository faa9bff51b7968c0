"""The program of a test's worker process: `-m luwu.testing.worker CALL`, below `luwu.launch.entry`.

At SIGUSR2 it writes to its log where its function is: see `Cluster.until`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.testing.calls import read_call, result_file, save_value

__tracebackhide__ = True


def main(arguments: Sequence[str]) -> None:
    """Call the function and write down what it returns."""
    call = Path(arguments[0]).absolute()
    rank = int(os.environ["RANK"])
    with contextlib.suppress(io.UnsupportedOperation, AttributeError, ValueError):
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR2, all_threads=False)
    function, args = read_call(call)
    result = function(rank, *args)
    try:
        save_value(result_file(call, rank), result, name=f"the result of rank {rank}")
    except ConfigError as error:
        raise error.with_traceback(None) from None  # the message has the place in the result


if __name__ == "__main__":
    main(sys.argv[1:])

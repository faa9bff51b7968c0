"""Run one machine of the network: `python -m switch_emu switch|node --config FILE`.

FILE is JSON: the role's specification, and where to tell that it listens or what ended it; the
launcher writes it (`luwu/launch/roles.py`). With `--until-eof` a first line on standard input lets
the process begin: until then it is a spare, which takes over at once where another has died. It
also ends when its standard input does, that is, with the process that started it; a second line
says that all workers have left: it writes its results and ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from luwu.base.errors import STOP_SIGNALS, LuwuError
from luwu.base.lifeline import watch
from luwu.base.socket_directory import remove_directory
from switch_emu.roles import attend, failed, load, read_document

ORPHAN_PATIENCE_S = 1.5


def main(arguments: list[str] | None = None) -> int:
    """Serve until the job is over or we are asked to stop; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m switch_emu", description=__doc__)
    parser.add_argument("role", choices=("switch", "node"))
    parser.add_argument("--config", type=Path, metavar="FILE", required=True)
    parser.add_argument("--until-eof", action="store_true")
    asked = parser.parse_args(arguments)
    os.umask(0o077)  # sockets, pages, events and results are this user's alone
    return _serve(asked.role, asked.config, until_eof=asked.until_eof)


def _serve(role: str, config: Path, *, until_eof: bool) -> int:
    if until_eof:
        load(role)
        if os.read(0, len(b"begin\n")) == b"":
            return 1  # the process that started us is gone
    stopping, orphaned, over = threading.Event(), threading.Event(), threading.Event()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stopping.set())
    try:
        document = read_document(config)
    except LuwuError as error:
        return failed(role, error, None)
    private_directory: str | None = document["private_directory"]
    if until_eof:
        end_soon = partial(_end_soon, stopping, orphaned, private_directory)
        watch(end_soon, on_line=lambda _: over.set())
    try:
        return attend(role, document, stopping, over)
    finally:
        if orphaned.is_set() and private_directory is not None:
            remove_directory(Path(private_directory))


def _end_soon(
    stopping: threading.Event, orphaned: threading.Event, private_directory: str | None
) -> None:
    """The process that started us is gone: end, if need be by force, and leave no socket behind."""
    orphaned.set()
    stopping.set()
    threading.Event().wait(ORPHAN_PATIENCE_S)
    if private_directory is not None:
        shutil.rmtree(private_directory, ignore_errors=True)  # our sockets are open
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

"""The `luwu` command: runs a command, and turns errors into one message and an exit code.

0 ok    2 bad configuration    3 cannot connect    4 a worker failed    5 state damaged
"""

from __future__ import annotations

import atexit
import errno
import gc
import select
import sys
from collections.abc import Sequence
from typing import IO, Final

from luwu.base import own
from luwu.base.errors import DISK_FAULTS, ConfigError, LuwuError, entry, refusal, suggestion
from luwu.base.expendable import give_up_stream, open_closed_streams, print_if_possible
from luwu.base.libc import keep_one_arena
from luwu.base.torch_import import expect_torch
from luwu.commands.table import VERBS, overview

NOTHING_MORE: Final = ("E200",)
"""Codes of which `luwu explain` has nothing to add to the message."""
SAID_CHARS_MAX: Final = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    if arguments is None:  # the process is ours
        keep_one_arena()
        expect_torch()
        atexit.register(gc.freeze)  # nothing needs to be destroyed at its end
    for package in own.PACKAGES:
        own.take(package)
    open_closed_streams()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    name = tokens[0] if tokens else "help"
    try:
        code = _run(tokens)
        sys.stdout.flush()
        return code
    except OSError as error:
        is_gone = error.errno in (errno.EPIPE, errno.EIO) and _is_closed(sys.stdout)
        _flush(sys.stdout)
        if is_gone:
            return 0  # whoever read our output has had enough
        if "--debug" in tokens or error.errno not in DISK_FAULTS:
            raise
        refused = refusal("a file operation failed", error, then="try again")
        return _fail(f"luwu {name}", refused)
    finally:
        _flush(sys.stderr)


def _flush(stream: IO[str]) -> None:
    """Give up a stream that cannot be written: else Python tries again at its end, and fails."""
    try:
        stream.flush()
    except OSError:
        give_up_stream(stream)


def _is_closed(stream: IO[str]) -> bool:
    """True if the pipe has no reader, or the terminal was closed."""
    state = select.poll()
    state.register(stream.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in state.poll(0))


def _run(tokens: list[str]) -> int:
    if tokens in ([], ["help"]) or tokens[0] in ("-h", "--help"):
        print(overview())
        return 0
    if tokens[0] == "--version":
        from importlib import metadata

        found = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "pyzmq"))
        print(f"luwu {own.version()}, python {sys.version.split()[0]}, {found}")
        return 0
    if tokens[0] == "help":
        tokens = [*tokens[1:2], "--help"]
    name = tokens[0]
    if name not in VERBS:
        said = f"no command {name!r}{suggestion(name, VERBS)}; luwu --help lists them"
        return _fail("luwu", ConfigError(said, code="E201"))
    try:
        from luwu.commands import form  # click, which `luwu --help` does not need

        return form.run(tokens)
    except LuwuError as error:
        return _fail(f"luwu {name}", error)
    except KeyboardInterrupt:
        print_if_possible(f"luwu {name}: interrupted")
        return 130


def _fail(program: str, error: LuwuError) -> int:
    """Print what went wrong, and which code explains more of it; the exit code."""
    said = str(error)
    if isinstance(error, ConfigError) and len(said) > SAID_CHARS_MAX:
        said = f"{said[:SAID_CHARS_MAX]}..."  # it quotes a file from elsewhere
    print_if_possible(f"{program}: {said}")
    if error.code not in NOTHING_MORE:
        title = entry(error.code).title
        print_if_possible(f"{error.code}: {title}; more: luwu explain {error.code}")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""Our entry (`entry.py`) in processes that are forked, where torch was imported once for all."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from luwu.base.torch_import import import_for_children
from luwu.launch import entry


class PreparedEntry:
    """Imports torch when it is made, or finds out that children must do so themselves."""

    def __init__(self) -> None:
        self._torch = import_for_children()

    def run(self, arguments: Sequence[str]) -> None:
        """In a child: run the entry, or begin as a program of its own that does."""
        start_program = functools.partial(_start_program, arguments)
        if self._torch is None:
            start_program()
        else:
            offer = functools.partial(self._torch.offer, otherwise=start_program)
            entry.main(arguments, before_script=offer)


def _start_program(arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", entry.__name__, *arguments])

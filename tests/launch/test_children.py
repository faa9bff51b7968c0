"""A process of a run, and the line to its standard input."""

from __future__ import annotations

from pathlib import Path

from luwu.launch.processes.children import Child
from tests.helpers.waiting import is_soon


def test_a_line_that_is_not_read_does_not_keep_a_process_from_being_reaped(tmp_path: Path) -> None:
    """I8. Goal: a process that ends before it reads its last line counts as ended."""
    child = Child("node", ["/bin/sh", "-c", "exec <&-"], log=tmp_path / "log", environ={})

    def is_broken() -> bool:
        try:
            child.send_line("over")
        except BrokenPipeError:
            return True
        return False

    assert is_soon(is_broken)
    assert is_soon(lambda: child.poll() is not None)
    assert child.poll() == 0

"""Which lines are printed on the terminal, by their level."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from luwu.base.quantities import format_duration
from luwu.launch.processes.console import Console


def test_details_are_logged_and_shown_only_when_asked_for(tmp_path: Path) -> None:
    """Goal: the log has every line; a detail is shown with --verbose, and once."""
    for has_details in (False, True):
        screen, log = io.StringIO(), tmp_path / f"{has_details}.log"
        console = Console(screen, details=has_details, log=log)
        console.say("said")
        console.detail("detail")
        console.detail("detail")
        console.waiting("waits 1 s")
        console.waiting("waits 2 s")
        details = ["detail"] if has_details else []
        assert screen.getvalue().splitlines() == [
            "said", *details, "waits 1 s", *(["waits 2 s"] if has_details else []),
        ]  # fmt: skip
        logged = [line.partition(" ")[2] for line in log.read_text().splitlines()]
        assert logged == ["said", "detail", "detail", "waits 1 s", "waits 2 s"]


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    """Goal: the line is shown all the same."""
    printed = io.StringIO()
    Console(printed, log=tmp_path / "no" / "such.log").say("said")
    assert printed.getvalue() == "said\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (192, "3 min 12 s"), (7500, "2 h 5 min")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text

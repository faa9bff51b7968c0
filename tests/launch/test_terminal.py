"""What goes to the terminal: levels of lines, and colours."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from luwu.base.colours import bold, red
from luwu.base.quantities import format_duration
from luwu.commands.main import main
from luwu.launch.processes.console import Console


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a terminal, whatever the tests run in."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.feature("colours")
def test_a_terminal_has_colours_and_a_pipe_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: red and bold on a terminal alone, NO_COLOR and TERM=dumb honoured. An empty NO_COLOR
    is as none: https://no-color.org."""
    screen, pipe = Screen(), io.StringIO()
    assert red("bad", screen) == "\x1b[31mbad\x1b[0m"
    assert bold("good", screen) == "\x1b[1mgood\x1b[0m"
    assert (red("bad", pipe), bold("good", pipe)) == ("bad", "good")
    monkeypatch.setenv("NO_COLOR", "")
    assert red("bad", screen) != "bad"
    monkeypatch.setenv("NO_COLOR", "1")
    assert (red("bad", screen), bold("good", screen)) == ("bad", "good")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert red("bad", screen) == "bad"


def test_an_error_is_red_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the message is seen; the code that explains more of it stays plain."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    assert main(["comapre"]) == 2
    message, more = screen.getvalue().splitlines()
    assert re.fullmatch(r"\x1b\[31mluwu: no command 'comapre'; did you mean .*\x1b\[0m", message)
    assert more == "E201: unknown name; more: luwu explain E201"


def test_details_are_logged_and_shown_only_when_asked_for(tmp_path: Path) -> None:
    """Goal: the log has every line, without colours; a detail is shown with --verbose, and once."""
    for has_details in (False, True):
        screen, log = Screen(), tmp_path / f"{has_details}.log"
        console = Console(screen, details=has_details, log=log)
        console.say("said")
        console.detail("detail")
        console.detail("detail")
        console.verdict("verdict")
        console.waiting("waits 1 s")
        console.waiting("waits 2 s")
        details = ["detail"] if has_details else []
        assert screen.getvalue().splitlines() == [
            "said", *details, "\x1b[1mverdict\x1b[0m", "waits 1 s",
            *(["waits 2 s"] if has_details else []),
        ]  # fmt: skip
        logged = [line.partition(" ")[2] for line in log.read_text().splitlines()]
        assert logged == ["said", "detail", "detail", "verdict", "waits 1 s", "waits 2 s"]


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

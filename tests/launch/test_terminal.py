"""What goes to the terminal: levels of lines, colours, and the progress line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from luwu.base.colours import bold, is_screen, red
from luwu.base.json_file import write_json
from luwu.base.quantities import format_duration
from luwu.commands.main import main
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.progress import ProgressLine
from tests.helpers.waiting import ManualClock


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, whatever the tests run in."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


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
    assert is_screen(screen), "a line may still be rewritten"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert red("bad", screen) == "bad"
    assert not is_screen(screen)


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


class Watched:
    """A progress line with a clock and counters of ours."""

    def __init__(self, directory: Path, stream: io.StringIO) -> None:
        self.run = RunDirectory.create(directory)
        self.clock, self.stream = ManualClock(), stream
        self.console = Console(stream)
        self.line = ProgressLine(self.run, self.console, self.clock)

    def after(self, seconds: float, steps_count: int | None = None) -> str:
        """What is printed at the next look, so many seconds later."""
        if steps_count is not None:
            core = {"step_now": steps_count}
            write_json(self.run.counters("node"), {"schema": 1, "core": core})
        self.clock.advance(int(seconds * 1e9))
        before = len(self.stream.getvalue())
        self.line.look()
        return self.stream.getvalue()[before:].removeprefix("\r\x1b[K")


def test_the_progress_line_shows_step_rate_and_time(tmp_path: Path) -> None:
    """Goal: the last decided step (step_now is the one under way), the rate since the first, the
    time; the line is replaced in place. Method: counters and a clock of the test's."""
    watched = Watched(tmp_path / "run", Screen())
    assert watched.after(0) == "luwu: no step yet  0 s"
    assert watched.after(2, steps_count=0) == "luwu: no step yet  2 s"
    assert watched.after(2, steps_count=10) == "luwu: step 9  5 steps/s  4 s"
    assert watched.after(0.5, steps_count=20) == "", "once a second"
    assert watched.after(0.5, steps_count=40) == "luwu: step 39  13.3 steps/s  5 s"
    assert watched.after(60, steps_count=30) == "luwu: step 29  1 min 5 s", "the job went back"
    watched.console.end_live()
    assert "\n" not in watched.stream.getvalue()


def test_the_progress_line_makes_room_for_what_is_printed(tmp_path: Path) -> None:
    """Goal: it is erased before a line and drawn again after it; it never breaks into a line that
    the script has begun."""
    screen = Screen()
    watched = Watched(tmp_path / "run", screen)
    shown = watched.after(0)
    watched.console.say("worker 1 was lost")
    assert screen.getvalue() == f"{shown}\r\x1b[Kworker 1 was lost\n"
    assert watched.after(0.1) == shown
    watched.console.pass_on(b"50%", True)
    assert watched.after(2) == ""
    watched.console.pass_on(b" 100%\n", True)
    assert watched.after(1) == "luwu: no step yet  3 s"


def test_a_pipe_has_no_progress_line(tmp_path: Path) -> None:
    """Goal: nothing is printed where nobody looks."""
    watched = Watched(tmp_path / "run", io.StringIO())
    assert watched.after(5, steps_count=7) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (192, "3 min 12 s"), (7500, "2 h 5 min")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text

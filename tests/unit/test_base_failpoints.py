"""Failpoints: the text that arms them, and what each does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base import failpoints
from luwu.base.errors import ConfigError
from luwu.base.failpoints import FailpointError, failpoint, parse_failpoints

ROOT = Path(failpoints.__file__).parents[2]


def arm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(failpoints, "_armed", parse_failpoints(text))


def run(text: str, code: str) -> subprocess.CompletedProcess[str]:
    """Python with the variable set."""
    return subprocess.run(
        [sys.executable, "-c", f"from luwu.base.failpoints import failpoint\n{code}"],
        env={"LUWU_FAILPOINTS": text, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_unarmed_places_do_nothing() -> None:
    """Goal: without the variable nothing ever fails."""
    for _ in range(3):
        failpoint("store.before_flush")


def test_raise_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: without a number each pass raises; other places do not."""
    arm(monkeypatch, "a.b=raise")
    for count in (1, 2):
        with pytest.raises(FailpointError, match=f"failpoint a.b, pass {count}"):
            failpoint("a.b")
    failpoint("a.c")


def test_raise_at_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: @3 is the third pass and no other; places count on their own."""
    arm(monkeypatch, " a=raise@3 ; b=raise@1;; ")
    failpoint("a")
    with pytest.raises(FailpointError):
        failpoint("b")
    failpoint("a")
    with pytest.raises(FailpointError, match="failpoint a, pass 3"):
        failpoint("a")
    failpoint("a")
    failpoint("b")


def test_kill_ends_the_process() -> None:
    """I2. Goal: a kill leaves no time for anything: no handler, no flush, no exit code of ours."""
    code = "import atexit\natexit.register(print, 'late')\n" + "failpoint('a')\n" * 2
    done = run("a=kill@2", code + "print('alive')")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def test_the_variable_is_read_at_the_start() -> None:
    """Goal: an armed process says which place raised."""
    done = run("a=raise", "failpoint('a')")
    assert done.returncode == 1
    assert "FailpointError: failpoint a, pass 1" in done.stderr


@pytest.mark.parametrize(
    "text",
    ["a", "a=", "=raise", "a=stop", "a=raise@", "a=raise@0", "a=raise@-1", "a=raise@x",
     "a=raise@²", "a=raise@1@2", "a = raise", "a=raise;b", "a=raise@1.5"],
)  # fmt: skip
def test_what_arms_nothing_is_refused(text: str) -> None:
    """I6. Goal: a misspelt failpoint is an error, not a test that passes because nothing failed."""
    with pytest.raises(ConfigError, match="is not PLACE=kill"):
        parse_failpoints(text)


def test_a_place_named_twice() -> None:
    """I6. Goal: neither of two orders for one place is ignored."""
    with pytest.raises(ConfigError, match="'a' stands there twice"):
        parse_failpoints("a=raise@1;a=raise@2")


def test_nothing_armed() -> None:
    """Goal: an empty variable is none."""
    assert parse_failpoints("") == parse_failpoints(" ; ") == {}

"""Failpoints: the text that arms them, and what each does."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base import failpoints
from luwu.base.errors import ConfigError
from luwu.base.failpoints import PLACES, FailpointError, failpoint, parse_failpoints

ROOT = Path(failpoints.__file__).parents[2]


A, B = "store.before_decide", "store.after_decided"


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


def test_raise_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: without a number each pass raises; other places do not."""
    arm(monkeypatch, f"{A}=raise")
    for count in (1, 2):
        with pytest.raises(FailpointError, match=f"failpoint {A}, pass {count}"):
            failpoint(A)
    failpoint(B)


@pytest.mark.feature("failpoints")
def test_raise_at_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: @3 is the third pass and no other; places count on their own."""
    arm(monkeypatch, f" {A}=raise@3 ; {B}=raise@1;; ")
    failpoint(A)
    with pytest.raises(FailpointError):
        failpoint(B)
    failpoint(A)
    with pytest.raises(FailpointError, match=f"failpoint {A}, pass 3"):
        failpoint(A)
    failpoint(A)
    failpoint(B)


def test_kill_ends_the_process() -> None:
    """I2. Goal: a kill leaves no time for anything: no handler, no flush, no exit code of ours."""
    code = "import atexit\natexit.register(print, 'late')\n" + f"failpoint('{A}')\n" * 2
    done = run(f"{A}=kill@2", code + "print('alive')")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


@pytest.mark.parametrize(
    "text",
    ["PLACE", "PLACE=", "=raise", "PLACE=stop", "PLACE=raise@", "PLACE=raise@0", "PLACE=raise@-1",
     "PLACE=raise@x", "PLACE=raise@²", "PLACE=raise@1@2", "PLACE = raise", "PLACE=raise;b",
     "PLACE=raise@1.5", "PLACE=raise:1s", "PLACE=kill:", "PLACE=delay", "PLACE=delay:",
     "PLACE=delay@3"],
)  # fmt: skip
def test_what_arms_nothing_is_refused(text: str) -> None:
    """I6. Goal: a misspelt failpoint is an error, not a test that passes because nothing failed."""
    with pytest.raises(ConfigError, match="is not PLACE=kill"):
        parse_failpoints(text.replace("PLACE", A))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store.befor_decide=kill", "no place 'store.befor_decide'; did you mean store.before_dec"),
        ("nonsense=raise", "no place 'nonsense'; docs/faults.md lists them"),
        (f"{A}=delay:3", "has no unit"),
        (f"{A}=delay:x@2", "is not a number with a unit"),
        (f"{A}=raise@1;{A}=raise@2", f"'{A}' is named twice"),
    ],
)
def test_what_nobody_can_mean_is_refused(text: str, said: str) -> None:
    """I6. Goal: a place that is not in the code would never fail, so it is no place."""
    with pytest.raises(ConfigError, match=said):
        parse_failpoints(text)


@pytest.mark.feature("failpoints")
def test_a_delay_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the pass that was named waits so long, and then all goes on."""
    waited: list[float] = []
    monkeypatch.setattr(failpoints, "sleep", waited.append)
    arm(monkeypatch, f"{A}=delay:200ms@2;{B}=delay:1s")
    for _ in range(3):
        failpoint(A)
    assert waited == [0.2]
    failpoint(B)
    failpoint(B)
    assert waited == [0.2, 1.0, 1.0]


def test_the_list_of_places_is_that_of_the_code() -> None:
    """Goal: each place in the code is known, by a name that stands there, and none else is."""
    in_code: list[str] = []
    for package in ("luwu", "switch_emu", "workers"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("failpoint"):
                    (place,) = node.args
                    assert isinstance(place, ast.Constant), f"{file}:{node.lineno}"
                    in_code.append(str(place.value))
    assert len(in_code) > 25
    assert sorted(set(in_code)) == list(PLACES)


def test_the_page_lists_the_places() -> None:
    """Goal: docs/faults.md has the list of the code, word for word."""
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [f"| `{place}` | {text} |" for place, text in PLACES.items()]
    assert "\n".join(rows) in page

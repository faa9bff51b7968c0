"""The completion of click: each script, in the shell that it is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from luwu.commands.main import main
from luwu.commands.table import VERBS

LINES = [
    ("luwu stat", "status"),
    ("luwu predict swe", "sweep"),
    ("luwu run --transp", "--transport"),
    ("luwu run --durability pro", "process"),
    ("luwu keys add worker-9 --role rea", "reader"),
    ("luwu verify no", "notes.txt"),
]
"""What is typed before the tab key, and the one word that it may become."""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `luwu` that shells find first."""
    found = tmp_path / "bin" / "luwu"
    found.parent.mkdir()
    found.write_text(f'#!/bin/sh\nexec {sys.executable} -m luwu "$@"\n')
    found.chmod(0o755)
    monkeypatch.setenv("PATH", f"{found.parent}:{os.environ['PATH']}")


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Path:  # fmt: skip
    """The script of the shell that the test names, beside a file to complete."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with monkeypatch.context() as patch:
        patch.setenv("_LUWU_COMPLETE", f"{shell}_source")
        assert main([]) == 0
    (tmp_path / "notes.txt").touch()
    script = tmp_path / f"script.{shell}"
    script.write_text(capsys.readouterr().out)
    return script


def ask(command: Sequence[str], folder: Path) -> list[str]:
    """The words that a shell prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.feature("completion in bash, zsh and fish")
@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(("typed", "word"), LINES)
def test_bash_completes(script: Path, typed: str, word: str) -> None:
    """Goal: one word is offered. Method: call the function as readline does; for file names it
    asks readline for its own completion (`compopt -o default`)."""
    program = (
        'source "$1"; shift; compopt() { echo "$@" >&2; }; COMP_WORDS=("$@"); '
        'COMP_CWORD=$(($# - 1)); _luwu_completion luwu; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", str(script), *typed.split()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    is_file = word == "notes.txt"
    assert done.stderr == ("-o default\n" if is_file else "")
    assert done.stdout.split() == ([] if is_file else [word])


@pytest.mark.feature("completion in bash, zsh and fish")
@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(("typed", "word"), LINES)
def test_fish_completes(script: Path, typed: str, word: str) -> None:
    """Goal: the word is offered first. Method: fish prints what it would offer."""
    program = f"source {script}; complete -C '{typed}'"
    assert ask(["fish", "--no-config", "-c", program], script.parent)[0] == word


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_offers_all_commands(script: Path) -> None:
    """Goal: after `luwu`, the commands with their texts, and no flags of any."""
    program = f"source {script}; complete -C 'luwu '"
    done = subprocess.run(
        ["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True
    )
    rows = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    assert rows == VERBS

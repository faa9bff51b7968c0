"""Every code block of README.md is run, so that no reader is the first to try it.

An HTML comment before a block, which readers do not see, says how:

    <!-- test: steps=4 width=64 -->   each command with these flags behind it: a smaller job
    <!-- test: diff -->               before and after are two scripts; both are run and compared
    <!-- test: run -->                the script is run by `luwu run`; `train.py` in later blocks
    <!-- test: resume -->             the commands are run one after the other on that script
    <!-- test: serve OLD=NEW -->      runs while the next block joins it, NEW in place of OLD
    <!-- test: join ... -->           the URL is the one that was printed
    <!-- test: config -->             the file is read by `luwu config`

Shell blocks without one hold `make` commands, which are run with `-n`. Blocks of `text` are output.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from luwu.commands.config import markdown_table
from tests.processes.commands import Command, Terminal, terminal
from tests.unit.training_harness import alone

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = "train.py"

_BLOCK = re.compile(r"(?:^<!-- test: (?P<how>.*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
                    re.MULTILINE | re.DOTALL)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    how: str
    """What the comment before it says."""
    text: str

    @property
    def lines(self) -> list[str]:
        """Its commands."""
        return [line for line in self.text.splitlines() if line.strip()]

    @property
    def smaller(self) -> list[str]:
        """The flags that make its job smaller."""
        pairs = re.findall(r"\b([a-z]+)=(\d+)(?=\s|$)", self.how)
        return [word for key, value in pairs for word in (f"--{key}", value)]


BLOCKS = [
    Block(found["language"], found["how"] or "", found["text"]) for found in _BLOCK.finditer(README)
]


def block(language: str, how: str) -> Block:
    """The one block of this kind."""
    (found,) = [
        each for each in BLOCKS if (each.language, each.how.split(" ")[0]) == (language, how)
    ]
    return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        yield opened
        assert opened.leftovers() == []


def words_of(line: str) -> list[str]:
    """The arguments of a `luwu` command."""
    program, *arguments = shlex.split(line)
    assert program == "luwu", line
    return arguments


def succeed(command: Command) -> Command:
    assert command.wait() == 0, (str(command), command.err)
    return command


def test_readme_blocks_are_of_known_kinds() -> None:
    """Goal: no block escapes these tests."""
    assert README.count("\n```") == 2 * len(BLOCKS)
    kinds = [(each.language, each.how.split(" ")[0].partition("=")[0]) for each in BLOCKS]
    known = [
        ("text", ""), ("sh", ""), ("sh", "steps"), ("sh", "resume"), ("sh", "serve"),
        ("sh", "join"), ("diff", "diff"), ("python", "run"), ("toml", "config"),
    ]  # fmt: skip
    assert set(kinds) == set(known)


@pytest.mark.parametrize("line", [
    line for each in BLOCKS if (each.language, each.how) == ("sh", "") for line in each.lines
])  # fmt: skip
def test_readme_make(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "make", line
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    is_without_setup = arguments == ["gpu-check"]  # it must change no torch
    assert ("setup.py" in done.stdout) != is_without_setup
    assert ("benchmarks.gpu_check" in done.stdout) == is_without_setup


def test_readme_diff(shell: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    """I4. Goal: four lines turn a plain script into one of ours, which trains the same.
    Method: run both with one worker and compare the printed losses; 1e-3 is what they print."""
    lines = block("diff", "diff").lines
    assert sum(line.startswith("+") for line in lines) == 4
    assert sum(line.startswith("-") for line in lines) == 1
    outputs = []
    for mark in "-+":
        text = "\n".join(line[1:] for line in lines if line[0] in f" {mark}")
        script = shell.directory / f"script{'after' if mark == '+' else 'before'}.py"
        script.write_text(text + "\n")
        if mark == "-":
            with alone():
                runpy.run_path(str(script), run_name="__main__")
            outputs.append(capsys.readouterr().out)
        else:
            outputs.append(succeed(shell.start("run", "--workers", "1", str(script))).out)
    before, after = (
        [float(text) for text in re.findall(r"loss (\S+)", output)] for output in outputs
    )
    assert len(before) == 3
    assert before[-1] < before[0]
    assert after == pytest.approx(before, abs=1e-3)


def test_readme_quick_start(shell: Terminal) -> None:
    quick, compare = (each for each in BLOCKS if each.how.startswith("steps="))
    activate, *lines = quick.lines
    assert activate == ". .venv/bin/activate"
    for line in lines:
        smaller = quick.smaller if " compare " in line or "workers.train" in line else []
        if "--arms luwu,fsdp,single " in line:  # as test_compare.py does; here one is enough
            smaller = [*smaller, "--arms", "luwu,single"]
        done = succeed(shell.start(*words_of(line), *smaller))
        assert done.out + done.err, line
    (line,) = compare.lines
    succeed(shell.start(*words_of(line), *compare.smaller, "--arms", "single"))
    reports = list((shell.directory / "luwu-runs").glob("*/report.html"))
    assert reports
    assert (shell.directory / "gpt-state" / "CONFIG").is_file()


def test_readme_two_machines(shell: Terminal) -> None:
    serve, join = block("sh", "serve"), block("sh", "join")
    old, _, new = serve.how.split(" ")[1].partition("=")
    *before, line = serve.lines
    for each in before:
        succeed(shell.start(*words_of(each)))
    serving = shell.start(*words_of(line.replace(old, new)))
    url = serving.wait_for(r"^or      luwu run --keys luwu-keys --join '(\S+)' SCRIPT$")[1]
    (line,) = join.lines
    shown = re.search(r"'(tcp://\S+)'", line)
    assert shown is not None
    assert re.sub(r"//\w+@", "//KEY@", url).startswith("tcp://KEY@")
    names = re.findall(r"(\w+)=", shown[1])
    assert names == [name for name in re.findall(r"(\w+)=", url) if name in names]
    succeed(shell.start(*words_of(line.replace(shown[1], url)), *join.smaller))
    assert serving.wait(20) == 0, serving.err


def test_readme_own_script(shell: Terminal) -> None:
    """Goal: the script runs as it stands, and goes on where it was, on the commands shown."""
    text = block("python", "run").text
    script = shell.directory / SCRIPT
    script.write_text(text)
    first, again = block("sh", "resume").lines
    done = succeed(shell.start(*words_of(first)))
    assert re.findall(r"^step (\d+) loss", done.out, re.MULTILINE) == [str(n) for n in range(20)]

    refused = shell.run(*words_of(first))
    assert refused.process.returncode == 2
    assert "--resume" in refused.err

    assert text.count(", 20\n") == 1
    script.write_text(text.replace(", 20\n", ", 23\n"))
    done = succeed(shell.start(*words_of(again)))
    assert re.findall(r"^step (\d+) loss", done.out, re.MULTILINE) == ["20", "21", "22"]


def test_readme_configuration(shell: Terminal) -> None:
    (shell.directory / "luwu.toml").write_text(block("toml", "config").text)
    done = succeed(shell.start("config", "--origin", "--config", "luwu.toml"))
    keys = re.findall(r"^(\w+) =", block("toml", "config").text, re.MULTILINE)
    for key in keys:
        assert re.search(rf"^{key}\b.*# file luwu\.toml$", done.out, re.MULTILINE), done.out


def test_readme_table_of_keys_is_in_step() -> None:
    found = re.search(r"<!-- config:begin -->\n(.*)\n<!-- config:end -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == markdown_table(), "put the output of luwu config --markdown there"

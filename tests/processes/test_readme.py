"""Every code block of README.md and of the pages that it sends readers to is run, so that no reader
is the first to try it.

The blocks of a page run in order, in one directory. An HTML comment before a block, which readers
do not see, says how:

    <!-- test: diff -->               before and after are scripts; both run, their losses agree
    <!-- test: diff fsdp2 -->         before is started by torchrun, both with two workers
    <!-- test: script NAME -->        the block is written to this file
    <!-- test: edit NAME -->          lines of this file are replaced
    <!-- test: commands -->           each command succeeds
    <!-- test: steps=4 width=64 -->   the same, with these flags behind each: a smaller job
    <!-- test: read -->               the flags are read: a smaller such command has run before
    <!-- test: fails CODE -->         the command ends with this exit code
    <!-- test: kill TEXT -->          the command is killed when it has printed this
    <!-- test: programs -->           the same scripts as a diff's, which has run them
    <!-- test: serve OLD=NEW -->      runs while the next block joins it, NEW in place of OLD
    <!-- test: join ... -->           the URL is the one that was printed
    <!-- test: config -->             the file is read by `luwu config`

Shell blocks without one hold `make` commands, which are run with `-n`. Blocks of `text` are output.
"""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.command_line import parsed
from tests.helpers.training_harness import alone
from tests.pages import keys_table
from tests.processes.commands import Command, Terminal

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / "docs" / f"{name}.md" for name in ("configuration", "first-run")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]

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
    def kind(self) -> str:
        """What is done with it; empty for output and for `make` commands."""
        first = self.how.split(" ")[0]
        return "commands" if "=" in first else first

    @property
    def word(self) -> str:
        """What stands behind the kind."""
        return self.how.partition(" ")[2]

    @property
    def lines(self) -> list[str]:
        """Its commands."""
        return [line for line in self.text.splitlines() if line.strip()]

    @property
    def smaller(self) -> list[str]:
        """The flags that make its job smaller."""
        pairs = re.findall(r"\b([a-z]+)=(\d+)(?=\s|$)", self.how)
        return [word for key, value in pairs for word in (f"--{key}", value)]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(each["language"], each["how"] or "", each["text"]) for each in _BLOCK.finditer(text)
    ]
    assert text.count("\n```") == 2 * len(found), f"{page.name}: a block that is not seen"
    return found


MAKE_LINES = sorted({
    line for page in PAGES for each in blocks_of(page)
    if (each.language, each.how) == ("sh", "") for line in each.lines
})  # fmt: skip


def words_of(line: str) -> list[str]:
    """The arguments of a `luwu` command."""
    program, *arguments = shlex.split(line)
    assert program == "luwu", line
    return arguments


def succeed(command: Command) -> Command:
    assert command.wait() == 0, (str(command), command.err)
    return command


# --- What is done with a block --------------------------------------------------------------------


def run_commands(shell: Terminal, block: Block) -> None:
    for line in block.lines:
        program = shlex.split(line)[0]
        if line == ". .venv/bin/activate":
            continue
        if program == "cmp":
            subprocess.run(shlex.split(line), cwd=shell.directory, check=True)
            continue
        if program == "python":
            succeed(shell.start_program([sys.executable], shlex.split(line)[1:], {}))
            continue
        is_sized = " compare " in line or "workers.train" in line
        smaller = block.smaller if is_sized else []
        if " compare " in line:  # more arms: test_compare.py
            smaller = [*smaller, "--arms", "luwu"]
        done = succeed(shell.start(*words_of(line), *smaller))
        assert done.out + done.err, line


def run_read(shell: Terminal, block: Block) -> None:
    for line in block.lines:
        parsed(*words_of(line))


def run_fails(shell: Terminal, block: Block) -> None:
    (line,) = block.lines
    assert shell.start(*words_of(line)).wait() == int(block.word), line


def run_kill(shell: Terminal, block: Block) -> None:
    line, kill = block.lines
    assert kill == "kill -9 $!"
    assert line.endswith(" &")
    command = shell.start(*words_of(line.removesuffix(" &")))
    command.wait_for(rf"^{re.escape(block.word)}\b", of="out")
    command.process.kill()
    assert command.wait() == -signal.SIGKILL
    assert shell.leftovers() == []  # waits for what is ending


def run_script(shell: Terminal, block: Block) -> None:
    (shell.directory / block.word).write_text(block.text)


def run_edit(shell: Terminal, block: Block) -> None:
    script = shell.directory / block.word
    text = script.read_text()
    old, new = ("\n".join(each[1:] for each in block.lines if each[0] == mark) for mark in "-+")
    assert text.count(old + "\n") == 1, old
    script.write_text(text.replace(old + "\n", new + "\n"))


def run_diff(shell: Terminal, block: Block) -> None:
    """I4. Goal: the changed script trains as the plain one. Method: run both and compare the
    printed losses; 1e-3 is what they print."""
    scripts = []
    for name, mark in (("before", "-"), ("after", "+")):
        text = "\n".join(each[1:] for each in block.lines if each[0] in f" {mark}")
        scripts.append(shell.directory / f"{name}.py")
        scripts[-1].write_text(text + "\n")
    before_py, after_py = map(str, scripts)
    if block.word == "fsdp2":
        torchrun = [
            "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--log-dir", str(shell.directory / "torchrun"), before_py,  # else it leaves one behind
        ]  # fmt: skip
        plain = shell.start_program([sys.executable, "-m"], torchrun, {"OMP_NUM_THREADS": "1"})
        outputs = [succeed(plain).out]
    else:
        one = [sys.executable, "-c", "import sys, tests.processes.test_readme as t; t.plain()"]
        outputs = [succeed(shell.start_program(one, [before_py], {})).out]
    workers = "2" if block.word == "fsdp2" else "1"
    outputs.append(succeed(shell.start("run", "--workers", workers, after_py)).out)
    before, after = (
        [float(text) for text in re.findall(r"loss (\S+)", output)] for output in outputs
    )
    assert len(before) == 3
    assert before[-1] < before[0]
    assert after == pytest.approx(before, abs=1e-3)


def plain() -> None:
    """Run a script in this process, by one thread."""
    with alone():
        runpy.run_path(sys.argv[1], run_name="__main__")


def run_programs(shell: Terminal, block: Block) -> None:
    """The diff before it has run them: only look that they are there."""
    scripts = re.findall(r"\S+\.py\b", block.text)
    assert scripts
    assert all((shell.directory / each).is_file() for each in scripts)


def run_config(shell: Terminal, block: Block) -> None:
    (shell.directory / "luwu.toml").write_text(block.text)
    done = succeed(shell.start("config", "--config", "luwu.toml"))
    for key in re.findall(r"^(\w+) =", block.text, re.MULTILINE):
        assert re.search(rf"^{key}\b.*# file luwu\.toml$", done.out, re.MULTILINE), done.out


RUN: dict[str, Callable[[Terminal, Block], None]] = {
    "commands": run_commands,
    "read": run_read,
    "fails": run_fails,
    "kill": run_kill,
    "script": run_script,
    "edit": run_edit,
    "diff": run_diff,
    "programs": run_programs,
    "config": run_config,
}
APART = {"serve", "join", ""}  # tests of their own


# --- Tests ----------------------------------------------------------------------------------------


SLOW = ("first-model.md", "kill-9.md", "port-fsdp2.md")
"""Pages that are run with the marked tests: they start many runs, which others here show too."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.name in SLOW)) for page in PAGES],
    ids=lambda page: page.name,
)
def test_pages_blocks_run(page: Path, shell: Terminal) -> None:
    """Goal: a reader who does what the page says gets what it says."""
    found = blocks_of(page)
    assert found
    for each in found:
        if each.kind in APART:
            assert each.kind or each.language in ("sh", "text"), each
            continue
        RUN[each.kind](shell, each)
    if page.name == "first-run.md":
        assert list((shell.directory / "luwu-runs").glob("*/report.html"))
        assert (shell.directory / "gpt-state" / "CONFIG").is_file()
    if page.name == "first-model.md":
        assert (shell.directory / "my-model" / "model.safetensors").is_file()


@pytest.mark.parametrize("line", MAKE_LINES)
def test_pages_make(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "make", line
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    is_without_setup = arguments in (["gpu-check"], ["docs"])  # they must change no torch
    assert ("setup.py" in done.stdout) != is_without_setup
    assert ("benchmarks.gpu_check" in done.stdout) == (arguments == ["gpu-check"])


def test_pages_two_machines(shell: Terminal) -> None:
    blocks = {each.kind: each for each in blocks_of(ROOT / "docs/deploy/README.md")}
    serve, join = blocks["serve"], blocks["join"]
    old, _, new = serve.word.partition("=")
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


def test_readme_is_one_screen() -> None:
    """Goal: the README stays what a stranger reads: 6 KB, four new lines in a script, pictures
    that are there, a table of at most eight rows."""
    text = README.read_text(encoding="utf-8")
    assert len(text.encode()) <= 6 * 1024
    (diff,) = (each for each in blocks_of(README) if each.kind == "diff")
    assert [line[0] for line in diff.lines if line[0] in "+-"] == ["+", "+", "+", "-", "+"]
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    assert all((ROOT / each).read_text().startswith("<svg") for each in pictures)
    assert 3 <= len(re.findall(r"^\|", text, re.MULTILINE)) <= 2 + 8


def test_table_of_keys_is_in_step() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- config:begin -->\n(.*)\n<!-- config:end -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == keys_table(), "python -m tests.pages"

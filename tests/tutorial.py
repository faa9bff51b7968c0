"""docs/tutorial-smartnics.md: its files are written, its commands run, and what they print put in.

    python -m tests.tutorial            write the page
    python -m tests.tutorial --check    fail if it is not what it should be

An HTML comment before a block, which readers do not see, says what it is:

    <!-- file: NAME -->      a file; what comes after finds it
    <!-- output -->          what the block before printed; `<!-- output: 4-9 -->` its lines 4 to 9,
                             with dots for the others

Blocks of `sh` hold `luwu` commands.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

from luwu.commands.main import main as luwu

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial-smartnics.md"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<how>[^>]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def made(text: str, directory: Path) -> str:
    """The page as it should be; its files are left in the directory. Raises AssertionError."""
    printed = ""

    def block(found: re.Match[str]) -> str:
        nonlocal printed
        how, language, body = found["how"] or "", found["language"], found["text"]
        kind, _, more = how.partition(": ")
        if kind == "file":
            (directory / more).write_text(body, encoding="utf-8")
        elif language == "sh":
            printed = "".join(map(_command, body.splitlines()))
        elif kind == "output":
            return f"<!-- {how} -->\n```text\n{_shown(printed, more)}```"
        else:
            raise AssertionError(f"a block of {language} is of no known kind: {how!r}")
        return found[0]

    with contextlib.chdir(directory):
        return _BLOCK.sub(block, text)


def _command(line: str) -> str:
    program, *words = shlex.split(line)
    assert program == "luwu", line
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = luwu(words)
    assert code == 0, line
    return said.getvalue()


def _shown(printed: str, lines: str) -> str:
    every = [line.rstrip() for line in printed.splitlines()]
    if not lines:
        first, last = 1, len(every)
    else:
        first, last = map(int, lines.split("-"))
    shown = every[first - 1 : last]
    before, after = ["..."] if first > 1 else [], ["..."] if last < len(every) else []
    return "".join(f"{line}\n" for line in [*before, *shown, *after])


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="luwu-tutorial-") as name:
        expected = made(text, Path(name))
    if text == expected:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.name}: not up to date; run python -m tests.tutorial", file=sys.stderr)
        return 1
    PAGE.write_text(expected, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

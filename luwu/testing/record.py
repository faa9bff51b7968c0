"""The processes that a test started: their output, for a report, and their leftovers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from luwu.testing.settings import setting

LINES_MAX: Final = 50
READ_BYTES_MAX: Final = 1024 * 1024
_ROLES: Final = ("node", "switch")
_IS_QUIET: Final = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO) ")
RECORD: Final = pytest.StashKey["Record"]()


class Record:
    """One for each test that uses a fixture of luwu."""

    def __init__(self, item: pytest.Item, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.leaks: list[str] = []
        self.failed = False
        self.path = tmp_path_factory.mktemp("luwu")
        """The test's run directory."""
        self._keep = setting(item.config, "keep")
        self._count = 0

    def folder(self, name: str) -> Path:
        """A path below the run directory that is free."""
        self._count += 1
        return self.path / f"{name}-{self._count}"

    def sections(self, shown: str, *, is_whole: bool) -> Iterator[tuple[str, str]]:
        """(title, text) for the report of a failed test.

        Each traceback is in the report once: `shown` is what the report begins with. Of switch and
        node only warnings and errors are shown, and nothing of the launcher, unless `is_whole`.
        """
        from luwu.launch.processes.console import LAUNCHER, tail

        yield "luwu run directory", str(self.path)
        known = written_tracebacks(self.path)
        repeated = {each for each in known if is_shown(each, shown)}
        logs = self._logs()
        for log in logs if is_whole else [each for each in logs if each.stem != LAUNCHER]:
            text = tail(log, lines_max=READ_BYTES_MAX, bytes_max=READ_BYTES_MAX)
            for each in repeated:
                text = text.replace(each, "")
            repeated |= {each for each in known if each in text}
            lines = text.strip("\n").splitlines()
            if log.name.startswith(_ROLES) and not is_whole:
                lines = [line for line in lines if not _IS_QUIET.match(line)]
            if lines:
                title = f"luwu {log.stem}: last {LINES_MAX} lines of {log}"
                yield title, "\n".join(lines[-LINES_MAX:])

    def check(self) -> None:
        """Fail the test if something is left."""
        if self.leaks:
            text = "\n".join(f"  {each}" for each in self.leaks)
            pytest.fail(f"the test left something behind:\n{text}", pytrace=False)

    def forget(self) -> None:
        """Remove the files of a test that is over, unless its failure may be looked into."""
        if not self.failed and not self._keep:
            shutil.rmtree(self.path, ignore_errors=True)

    def _logs(self) -> list[Path]:
        found = []
        for folder, _, names in os.walk(self.path):
            if Path(folder).name == "logs":
                found += [Path(folder, name) for name in names if name.endswith(".log")]
        return sorted(found)


def written_tracebacks(folder: Path) -> set[str]:
    """The tracebacks of every run directory below a folder."""
    from luwu.base.json_file import read_json  # a suite without luwu's fixtures needs none of it

    found = (read_json(path) for path in folder.rglob("errors/*.json"))
    return {each["traceback"] for each in found if each and each["traceback"]}


def once(text: str, tracebacks: Iterable[str]) -> str:
    """A text with the last occurrence of each traceback alone."""
    for each in tracebacks:
        before, found, after = text.rpartition(each)
        text = before.replace(f"{each}\n", "") + found + after
    return text


def is_shown(traceback: str, report: str) -> bool:
    """True if pytest's report of a failure, which indents and marks lines, has a traceback."""
    return _bare(traceback) in _bare(report)


def _bare(text: str) -> str:
    return "\n".join(line.removeprefix("E ").strip() for line in text.splitlines())

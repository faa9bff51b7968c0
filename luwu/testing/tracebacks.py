"""Tracebacks that processes of a run wrote down, and texts that show each of them once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from luwu.base.json_file import read_json


def written_tracebacks(folder: Path) -> set[str]:
    """The tracebacks of every run directory below a folder."""
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

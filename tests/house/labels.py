"""Numbered rules, as I1 or S5: each is defined once, and what is cited is defined.

A definition is a line of a docstring, comment or page that begins with the label and two spaces, or
a row of a table, or an item of a list, that begins with it:

    S1  A rank counts once in a slot.        | G1 | no decided step is lost |
    - **I1 Exactly once.** For each step

Every other place of a docstring, comment or page that holds a label cites it. The equations of the
performance model are numbered by themselves: within `luwu/predict`, its pages and its tests a
label is one of theirs, a group of published results that calibrate it (C1), or one of I1 to I8.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.source import statements

FOLDERS = ("luwu", "switch_emu", "workers", "tests", "benchmarks", "docs")
LABEL = r"[A-Z]{1,2}\d{1,2}"
DEFINED = re.compile(
    rf"(?:^[ \t]*(?:[*#/]+ ?)?|(?<=\S)  +)(?P<a>{LABEL})(?= {{2,}}\S)"  # S1  A rank counts
    rf"|^\| (?P<b>{LABEL}) \|"
    rf"|^- \*\*(?P<c>{LABEL}) ",
    re.MULTILINE,
)
CITED = re.compile(rf"(?<![\w.#/\-+]){LABEL}(?![\w/]|\.\d|-\d)")
NO_LABELS = re.compile(r"(BF|F|FP|I|U|C)(8|16|32|64)$|[EU]\d\d$|(TP|PP|DP)\d+$")
"""Number formats, error codes, a card and parallel degrees look like labels."""
MADE = "docs/predict/equations.md"
"""Made from docstrings: what it holds is defined there."""
PREDICT = re.compile(
    r"luwu/predict/|docs/predict|docs/design/0029-|tests/predict/|benchmarks/.*predict"
)
INVARIANT = re.compile(r"I[1-8]$")
GROUPS = "luwu/predict/data/calibration"
GROUP = re.compile(rf'^group = "({LABEL})\b', re.MULTILINE)


class Place(NamedTuple):
    """Where a label stands."""

    label: str
    path: str
    line: int

    @property
    def of_predict(self) -> bool:
        return PREDICT.match(self.path) is not None and not INVARIANT.match(self.label)

    def __str__(self) -> str:
        return f"{self.label} in {self.path}:{self.line}"


def problems(root: Path) -> list[str]:
    """Labels that are defined twice, and those that are cited and not defined."""
    defined: dict[tuple[str, bool], Place] = {}
    cited: list[Place] = []
    found = []
    for path in sorted((root / GROUPS).glob("*.toml")):
        for label in GROUP.findall(path.read_text(encoding="utf-8")):
            defined.setdefault((label, True), Place(label, path.name, 0))
    for path, line, text in _texts(root):
        here = set()
        for match in DEFINED.finditer(text):
            label, start = match[match.lastgroup or 0], match.start(match.lastgroup or 0)
            place = Place(label, path, line + text.count("\n", 0, start))
            here.add(start)
            first = defined.setdefault((label, place.of_predict), place)
            if first is not place:
                found.append(f"{first} is defined again in {place.path}:{place.line}")
        for match in CITED.finditer(text):
            if match.start() not in here and not NO_LABELS.match(match[0]):
                cited.append(Place(match[0], path, line + text.count("\n", 0, match.start())))
    found += [f"{p} is not defined" for p in cited if (p.label, p.of_predict) not in defined]
    return found


def _texts(root: Path) -> Iterator[tuple[str, int, str]]:
    """(path, line, text) of docstrings, comments and pages."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in [*paths, *sorted(root.glob("*.md"))]:
        place = path.relative_to(root).as_posix()
        if place in (MADE, "tests/house/labels.py"):
            continue
        if path.suffix == ".py":
            for line, text in _prose(path.read_text(encoding="utf-8")):
                yield place, line, text
        elif path.suffix == ".md":
            yield place, 1, path.read_text(encoding="utf-8")
        elif path.suffix in (".c", ".h"):
            source = path.read_text(encoding="utf-8")
            for match in re.finditer(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL):
                yield place, source.count("\n", 0, match.start()) + 1, match[0]


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, those of attributes included, and comments of a Python file."""
    if not CITED.search(source):
        return
    for node in statements(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, text
    if not any("#" in line and CITED.search(line) for line in source.splitlines()):
        return  # to tokenize is slow
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string

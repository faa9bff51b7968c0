"""docs/predict/equations.md: the equations of the performance model, from its modules' docstrings.

    python -m tests.equations            write the page
    python -m tests.equations --check    fail if it is not what it should be

An equation stands in the docstring of the module that computes it, as `T1  what  form`; its number
occurs in no other, and the functions that compute it name it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "luwu" / "predict", ROOT / "docs" / "predict" / "equations.md"
HEAD = """\
# Equations of the performance model

As they stand in the docstrings of `luwu/predict`, with their sources. Seconds, bytes, and rates of
them; Psi is the number of parameters. Made by `python -m tests.equations`; do not edit.
"""
NUMBER = re.compile(r"(?<![\w-])([A-Z]{1,2}\d{1,2})(?= {2,})")


def docstrings() -> Iterator[tuple[Path, str]]:
    """Modules with equations, and what they say of themselves."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if NUMBER.search(text):
            yield path, text


def problems() -> list[str]:
    """Numbers that stand for two equations."""
    seen: dict[str, Path] = {}
    found = []
    for path, text in docstrings():
        for number in NUMBER.findall(text):
            if seen.setdefault(number, path) != path:
                found.append(f"{number} stands in {seen[number].name} and in {path.name}")
    return found


def page() -> str:
    """The page's text."""
    lines = [HEAD]
    for path, text in docstrings():
        first, _, rest = text.partition("\n")
        name = path.relative_to(ROOT)
        lines += [f"## {first.rstrip('.')}", "", f"[{name}](../../{name})", ""]
        lines += ["```text", rest.strip("\n"), "```", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    found = problems()
    if not found and "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    elif not found and (not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()):
        found = [f"{PAGE.name} is not up to date: run python -m tests.equations"]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

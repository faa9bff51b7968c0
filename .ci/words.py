"""Words that texts for users do not use, each with plainer ones: a part of `make lint`.

Checked are the pages (but design notes, which are for developers), messages, help texts and the
table of errors: string literals with a blank in them, and docstrings; code blocks excepted. A
program sends and reports, so it does not "say"; and a process has a name, which "nobody" hides.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAINER = {
    r"nobody|somebody|whoever|who has": "the name of the process; no process, another user",
    r"stands?": "is, is in, is listed",
    r"told|said": "received, reported, is configured",
    r"(?:is|are|was|were|be|been) refused": "is rejected",
    r"anew|mended": "again, repaired",
    r"by itself": "automatically, alone, without",
    r"shall": "must, does",
}
_WRONG = re.compile("|".join(rf"\b(?:{each})\b" for each in PLAINER), re.IGNORECASE)
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


def main() -> int:
    """Print each place with a word of the list; 1 if there is one."""
    found = [f"{place}: {word!r}: write {_advice(word)}" for place, word in places(ROOT)]
    print("\n".join(found) or "Words: none of the list.")
    return 1 if found else 0


def places(root: Path) -> Iterator[tuple[str, str]]:
    """Each use of a word of the list in a checkout: (file:line, word)."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    for page in pages:
        if page.parent.name != "design":
            yield from _in_text(page, _CODE.sub(_blank, page.read_text(encoding="utf-8")))
    table = root / "luwu" / "base" / "error_table.toml"
    yield from _in_text(table, table.read_text(encoding="utf-8"))
    for package in ("luwu", "switch_emu", "workers"):
        for module in sorted((root / package).rglob("*.py")):
            yield from _in_strings(module)


def _in_text(file: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for match in _WRONG.finditer(line):
            yield f"{file}:{number}", match[0]


def _in_strings(module: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            text = _CODE.sub(_blank, node.value) if id(node) in docstrings else node.value
            for number, line in enumerate(text.split("\n"), node.lineno):
                for match in _WRONG.finditer(line):
                    yield f"{module}:{number}", match[0]


def _blank(code: re.Match[str]) -> str:
    """The lines of a code block without their text, so that numbers of lines stay."""
    return "\n" * code[0].count("\n")


def _advice(word: str) -> str:
    return next(
        plainer for each, plainer in PLAINER.items() if re.fullmatch(each, word, re.IGNORECASE)
    )


if __name__ == "__main__":
    sys.exit(main())

"""How much there is of what makes a project dear, and the bounds of `bounds.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.source import PRODUCT

BOUNDS: Final = "tests/house/bounds.toml"
KEY = re.compile(r"^\| `", re.MULTILINE)
"""A row of the table of keys, which is generated."""


class Amount(NamedTuple):
    """One amount beside its bound."""

    what: str
    found: int
    bound: int
    slack: int
    """A bound that is further above what there is has to be lowered."""

    @property
    def problem(self) -> str:
        """What is wrong, as a sentence; empty if nothing is."""
        if self.found > self.bound:
            return f"{self.what}: {self.found}, above the bound {self.bound} of {BOUNDS}"
        if self.found < self.bound - self.slack:
            return f"{self.what}: {self.found}; lower the bound {self.bound} of {BOUNDS}"
        return ""


def amounts(root: Path) -> list[Amount]:
    """All amounts of the tree below `root`, in the order of `bounds.toml`."""
    bounds = tomllib.loads((root / BOUNDS).read_text(encoding="utf-8"))
    return [
        Amount(what, _COUNTED[what](root), row["bound"], row.get("slack", 0))
        for what, row in bounds.items()
    ]


def product_lines(root: Path) -> int:
    """Lines of Python and C in `luwu`, `switch_emu` and `workers`."""
    return _lines(path for folder in PRODUCT for path in (root / folder).rglob("*.[pc]*"))


def lines_of_tests(root: Path) -> int:
    """Lines of Python in `tests`."""
    return _lines((root / "tests").rglob("*.py"))


def words(root: Path) -> int:
    """Words of README.md, CONTRIBUTING.md and all pages in `docs`, generated ones too."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def feature_rows(root: Path) -> int:
    """Rows of docs/features.toml."""
    groups = tomllib.loads((root / "docs/features.toml").read_text(encoding="utf-8"))["group"]
    return sum(len(group["rows"]) for group in groups)


def keys(root: Path) -> int:
    """Configuration keys that docs/configuration.md lists."""
    return len(KEY.findall((root / "docs/configuration.md").read_text(encoding="utf-8")))


def messages(root: Path) -> int:
    """Messages of the protocol, each of which has a code: `@message(CODE)`."""
    return (root / "luwu/wire/messages.py").read_text(encoding="utf-8").count("\n@message(")


def dependencies(root: Path) -> int:
    """Packages without which the project cannot be installed."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return len(project["dependencies"])


_COUNTED: Final[dict[str, Callable[[Path], int]]] = {
    "product lines": product_lines,
    "test lines": lines_of_tests,
    "words of documents": words,
    "rows of features": feature_rows,
    "configuration keys": keys,
    "messages": messages,
    "required dependencies": dependencies,
}


def _lines(paths: Iterable[Path]) -> int:
    files = [path for path in paths if path.suffix in (".py", ".c")]
    return sum(path.read_bytes().count(b"\n") for path in files)

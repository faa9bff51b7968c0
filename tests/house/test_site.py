"""The site of `make docs`: its menu has every page, and it is built without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.docstrings import public_names

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MADE = {"campaigns.md", "cli.md", "contributing.md", "metrics.md", "results.md"}
"""Pages that .ci/mkdocs_hooks.py adds."""


def leaves(entry: Any) -> Iterator[str]:
    """The pages of a part of the menu."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(each)


def test_site_menu_has_every_page() -> None:
    """Goal: a page that is added is found; design notes are listed by their own index."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    menu = list(leaves(settings["nav"]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(menu) == len(set(menu))
    assert set(menu) - MADE == {each for each in pages if not each.startswith("design/0")}
    assert set(menu) >= MADE


def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Goal: `make docs` works: no broken link or anchor, no page outside of the menu, and the API
    shows every public name with its example. Method: a strict build into another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--quiet"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    page = (tmp_path / "api.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<h\d id="(luwu[\w.]*)"', page)) | {"luwu.optim"}
    assert set(public_names()) <= shown
    text = (tmp_path / "cli.html").read_text(encoding="utf-8")
    assert "--memory-budget" in text

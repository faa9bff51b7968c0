"""The pages name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import luwu
from luwu.commands.main import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("deploy/*.md")]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_is_there(page: Path) -> None:
    """Goal: every luwu.name is one, every `luwu verb` too, and every linked file exists."""
    text = page.read_text(encoding="utf-8")
    for chain in set(re.findall(r"\bluwu((?:\.[A-Za-z_]\w*)+)\(", text)):
        found = luwu
        for name in chain[1:].split("."):
            assert hasattr(found, name), f"luwu{chain}"
            found = getattr(found, name)
    for verb in set(re.findall(r"^luwu ([a-z]+)\b", text, re.MULTILINE)):
        assert verb in VERBS, f"luwu {verb}"
    for target in set(re.findall(r"\]\(([^)#:]+)\)", text)):
        assert (page.parent / target).exists(), target

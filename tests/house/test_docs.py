"""The pages name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import luwu
from luwu.commands.table import VERBS
from tests.helpers.docstrings import API_PAGE, public_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs").glob("deploy/*.md"),
        *(ROOT / "docs").glob("tutorials/*.md"),
    ]
)
NOTES = sorted([*(ROOT / "docs").glob("design/*.md"), *(ROOT / "benchmarks").glob("**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_is_there(page: Path) -> None:
    """Goal: every luwu.name is one, and every `luwu command` too."""
    text = page.read_text(encoding="utf-8")
    for chain in set(re.findall(r"\bluwu((?:\.[A-Za-z_]\w*)+)\(", text)):
        found = luwu
        for name in chain[1:].split("."):
            assert hasattr(found, name), f"luwu{chain}"
            found = getattr(found, name)
    for verb in set(re.findall(r"^luwu ([a-z]+)\b", text, re.MULTILINE)):
        assert verb in VERBS, f"luwu {verb}"


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Goal: every linked file of the project exists, and has the heading that the link names."""
    for target in set(re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """What links to the headings of a page of Markdown call them."""
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def test_read_the_code_names_what_it_says() -> None:
    """Goal: the files that the index offers to read have about as many lines as it says."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Read the code\n")[2].partition("\n## ")[0]
    files = re.findall(r"\]\(\.\./([\w/]+\.py)\)", section)
    said = re.search(r"about ([\d,]+) lines", section)
    assert said is not None
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert len(files) == 5
    assert abs(lines - int(said[1].replace(",", ""))) <= 200


def linked(page: Path) -> set[Path]:
    """The pages of docs/ that a page links to."""
    text = page.read_text(encoding="utf-8")
    return {page.parent / target for target in re.findall(r"\]\(([\w./-]+\.md)", text)}


def test_the_index_lists_every_page() -> None:
    """Goal: docs/README.md links to each page, and docs/design/README.md to each design note."""
    docs = ROOT / "docs"
    notes = set((docs / "design").glob("0*.md"))
    pages = set(docs.rglob("*.md")) - notes - {docs / "README.md"}
    assert pages <= linked(docs / "README.md")
    assert notes <= linked(docs / "design" / "README.md")


def test_the_api_page_has_every_public_name() -> None:
    """Goal: nothing that scripts and tests import is left out of the reference."""
    shown = re.findall(r"^::: (luwu[\w.]*)$", API_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert set(public_names()) <= set(shown)


def test_the_readme_is_one_screen_and_no_more() -> None:
    """Goal: 6 KB at most; what is longer belongs on a page of its own."""
    assert (ROOT / "README.md").stat().st_size <= 6 * 1024

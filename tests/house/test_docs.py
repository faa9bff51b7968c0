"""The pages name what is there, are up to date, and make a site; their words are those of ours."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import luwu
from luwu.commands.table import VERBS
from tests import features
from tests.helpers.docstrings import API_PAGE, public_names
from tests.house.test_setup import load

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


# ---------------------------------------------------------------------- features


FEATURES: list[dict[str, Any]] = [
    {"title": "Some", "rows": [["one", "works", ""], ["two", "rejected", "because"]]}
]


def test_features_are_shown_by_tests(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: docs/features.md is up to date, every row has a test, every mark a row."""
    assert features.main(["--check"]) == 0, capsys.readouterr().err


def test_rows_and_marks_must_fit() -> None:
    """Goal: each way in which they may not is named."""
    tests = {"one": ["tests/a.py::test", "tests/b.py::test"], "two": ["tests/c.py::test"]}
    assert features.problems(FEATURES, tests) == []
    assert "| one | works | `a.py::test` and 1 more |" in features.page(FEATURES, tests)
    assert "| two | rejected: because | `c.py::test` |" in features.page(FEATURES, tests)
    wrong: list[dict[str, Any]] = [
        {
            "title": "Some",
            "rows": [["one", "maybe", ""], ["one", "works", ""], ["nine", "works", ""]],
        }
    ]
    assert features.problems(wrong, tests) == [
        "mark 'two' is not a row of docs/features.toml",
        "row 'nine' has no test",
        "row 'one' is listed twice",
        "row 'one': 'maybe' is not one of works, rejected",
    ]


# ---------------------------------------------------------------------- security


THREATS = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
THREATS_COUNT = 22
ROWS = {
    int(found[1]): found[0]
    for found in re.finditer(r"^\| (\d+) \| .* \| .* \| .* \|$", THREATS, re.MULTILINE)
}
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", THREATS)


def functions_of(path: Path) -> set[str]:
    """Names of the tests of a file, in classes or not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_threat_has_its_row() -> None:
    assert sorted(ROWS) == list(range(1, THREATS_COUNT + 1))


@pytest.mark.parametrize("number", sorted(ROWS))
def test_every_row_names_a_test(number: int) -> None:
    """Goal: no defence is only said."""
    assert re.search(r"`[\w/]+\.py::test_\w+`", ROWS[number]), ROWS[number]


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_every_named_test_is_there(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), file
    assert name in functions_of(path), f"{file} has no {name}"


def test_nothing_that_looks_like_a_test_escapes() -> None:
    """Goal: a name that is written in another way is not passed over."""
    assert len(NAMED) == THREATS.count("::")


# ---------------------------------------------------------------------- words of texts


def test_words_are_found_in_pages_messages_and_docstrings(tmp_path: Path) -> None:
    """Goal: the check can fail. Method: a small checkout with the word in each kind of text."""
    words = load("words")
    texts = {
        "README.md": "Clear.\nNobody knows.\n",
        "CONTRIBUTING.md": "`nobody`\n\n```sh\nnobody\n```\n\nSee [this](nobody.md).\n",
        "docs/page.md": "It is refused.\n",
        "docs/design/0001-note.md": "Nobody.\n",
        "luwu/base/error_table.toml": 'meaning = "It was told."\n',
        "luwu/a.py": '"""Nobody, `nobody`."""\n\nTEXT = "made anew"\nNAME = "told"\n# nobody\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [
        (str(Path(place).relative_to(tmp_path)), word) for place, word in words.places(tmp_path)
    ]
    assert found == [
        ("README.md:2", "Nobody"),
        ("docs/page.md:1", "is refused"),
        ("luwu/base/error_table.toml:1", "told"),
        ("luwu/a.py:1", "Nobody"),
        ("luwu/a.py:3", "anew"),
    ]


# ---------------------------------------------------------------------- the site


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
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
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

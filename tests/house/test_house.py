"""tests/house: what it counts is within its bounds, and it sees what it is there to see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import labels, sizes, structure, texts
from tests.house.__main__ import COUNTS, Count
from tests.house.amounts import BOUNDS, amounts
from tests.house.source import ROOT, modules, no_syntax_tree_is_left  # noqa: F401 - for all


@pytest.mark.parametrize("count", COUNTS, ids=[count.what for count in COUNTS])
def test_there_is_none_of_what_is_counted(count: Count) -> None:
    found = count.find(ROOT)
    assert not found, "\n".join(found)


def test_amounts_are_within_their_bounds() -> None:
    """Goal: what there is only gets less, and a bound is not left above what was reached."""
    assert not [amount.problem for amount in amounts(ROOT) if amount.problem]


def test_an_amount_finds_a_planted_file(tmp_path: Path) -> None:
    """Goal: 200 more lines of the product than the bound are found, and 200 less."""
    files = {
        BOUNDS: '["product lines"]\nbound = 300\nslack = 150\n',
        "luwu/a.py": "\n" * 200,
        "switch_emu/b.c": "\n" * 100,
        "luwu/notes.pyc": "\n" * 100,
    }
    root = write(tmp_path, files)
    assert [amount.problem for amount in amounts(root)] == [""]
    write(root, {"workers/planted.py": "\n" * 200})
    assert "500, above the bound 300" in amounts(root)[0].problem
    write(root, {"workers/planted.py": "", "luwu/a.py": "\n" * 40})
    assert "140; lower the bound 300" in amounts(root)[0].problem


def write(root: Path, files: dict[str, str]) -> Path:
    """A tree of packages with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(root).parents:
            if path.suffix == ".py" and folder.name:
                (root / folder / "__init__.py").touch()
        path.write_text(text)
    return root


WIDE = "a, b, c, d, e, f, g, h, i, j, k"
BASE = "class Base:\n    pass\n"
CASES: dict[str, tuple[Callable[[Path], list[str]], dict[str, str], dict[str, str]]] = {
    "inherits": (
        structure.classes_that_inherit,
        {
            "luwu/protocol/a.py": BASE,
            "luwu/nic/core/b.py": "from luwu.protocol.a import Base\nclass Part(Base):\n    pass\n",
        },
        {
            "luwu/protocol/a.py": "from enum import Enum\nclass Base(Enum):\n    pass\n",
            "luwu/nic/core/b.py": "from luwu.protocol import a\nclass Part(a.Base):\n    pass\n",
        },
    ),
    "inherits through a package": (
        structure.classes_that_inherit,
        {
            "luwu/base/a.py": BASE,
            "luwu/base/__init__.py": "from luwu.base.a import Base\n",
            "luwu/nic/core/b.py": "import luwu.base as base\nclass Part(base.Base):\n    pass\n",
        },
        {
            "luwu/wire/a.py": BASE,
            "luwu/nic/core/b.py": "from luwu.wire import a\nclass Part(a.Base): ...\n",
        },
    ),
    "circle": (
        structure.modules_in_circles,
        {"luwu/a.py": "from luwu import b\n", "luwu/b.py": "def f():\n    import luwu.a\n"},
        {"luwu/a.py": "from luwu import b\n", "luwu/b.py": "import luwu.c\n", "luwu/c.py": ""},
    ),
    "defined twice": (
        labels.problems,
        {"luwu/a.py": '"""\nS1  a rule\n"""\n', "docs/b.md": "| S1 | another |\n"},
        {"luwu/a.py": '"""\nS1  a rule\n"""\n# by S1, in F32\n', "docs/b.md": "S1 holds.\n"},
    ),
    "not defined": (
        labels.problems,
        {"luwu/a.py": '"""\nS1  a rule\n"""\n# by S2\n'},
        {"luwu/predict/a.py": '"""\n    S1  a form\n"""\n', "luwu/a.py": '"""S1  a rule"""\n'},
    ),
    "long file": (sizes.long_files, {"luwu/a.py": "\n" * 701}, {"luwu/a.py": "\n" * 700}),
    "long function": (
        sizes.long_functions,
        {"luwu/a.py": "def f():\n" + "    f()\n" * 60},
        {"luwu/a.py": "def f():\n" + "    f()\n" * 59},
    ),
    "wide": (
        sizes.wide_signatures,
        {"luwu/a.py": f"def f({WIDE}): ...\n"},
        {"luwu/a.py": f"class A:\n  def f(  # more than ten: why\n    self, {WIDE}\n  ): ...\n"},
    ),
    "hides another": (
        structure.modules_that_hide_others,
        {"workers/profile.py": ""},
        {"workers/step_profile.py": "", "luwu/training/profile.py": ""},
    ),
    "no map": (
        texts.packages_without_map,
        {f"luwu/a/b{number}.py": "" for number in range(7)},
        {f"luwu/a/b{number}.py": "" for number in range(6)},
    ),
    "no such name": (
        texts.names_that_do_not_exist,
        {"luwu/a.py": BASE, "docs/architecture.md": "See `luwu/a.py:Bass` and `luwu/b/`.\n"},
        {"luwu/a.py": BASE, "docs/architecture.md": "See `luwu/a.py:Base`, `luwu.a`, `x = 1`.\n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_count_finds_what_is_wrong(case: str, tmp_path: Path) -> None:
    """Goal: each count is above 0 for a tree with its fault, and 0 for one without."""
    find, wrong, right = CASES[case]
    assert find(write(tmp_path / "wrong", wrong))
    assert find(write(tmp_path / "right", right)) == []

"""Public names and the examples of their docstrings: what the tests run and the API page shows.

Examples of what scripts use are doctests; those of `luwu.testing` are test files in blocks.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import luwu
from luwu import testing
from luwu.testing import plugin

ROOT = Path(__file__).resolve().parents[2]
API_PAGE = ROOT / "docs" / "api.md"
FIXTURES = ("luwu_cluster", "luwu_inproc", "luwu_run")
_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def public_objects() -> dict[str, Any]:
    """Functions, classes and the module of optimizers, by the names that scripts use."""
    named = {f"luwu.{name}": getattr(luwu, name) for name in luwu.__all__}
    return named | {f"luwu.optim.{name}": getattr(luwu.optim, name) for name in luwu.optim.__all__}


def public_of_testing() -> dict[str, str]:
    """Docstrings of what tests import and of the plugin's fixtures, by full names."""
    found = {
        f"luwu.testing.{name}": inspect.getdoc(getattr(testing, name)) or ""
        for name in testing.__all__
    }
    for node in ast.parse(inspect.getsource(plugin)).body:  # a fixture is no function any more
        if isinstance(node, ast.FunctionDef) and node.name in FIXTURES:
            found[f"{plugin.__name__}.{node.name}"] = ast.get_docstring(node) or ""
    return found


def public_names() -> list[str]:
    """All of them, as the API page lists them."""
    return sorted([*public_objects(), *public_of_testing()])


def doctest_of(name: str, thing: Any, names: dict[str, Any]) -> doctest.DocTest:
    """The example of one docstring; `names` are those that it finds."""
    text = inspect.getdoc(thing) or ""
    return doctest.DocTestParser().get_doctest(text, names, name, inspect.getsourcefile(thing), 0)


def blocks(docstring: str) -> list[str]:
    """The blocks of Python in a docstring."""
    return [textwrap.dedent(text) for text in _BLOCK.findall(docstring)]

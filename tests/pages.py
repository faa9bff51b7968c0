"""Pages of docs/ that are made from the program, all in one go: after a change of their sources.

    configuration.md         its table of keys: `luwu config --markdown`
    errors.md                `luwu explain --markdown`
    features.md              `tests.features`
    predict/equations.md     `tests.equations`
    tutorial-smartnics.md    outputs: `tests.tutorial`

    python -m tests.pages    write them

Each has a test of its own that fails if it is not up to date. `make docs` makes those that only the
site has: the command line, the metrics and the API.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from luwu.base.errors import entries
from luwu.commands.config import markdown_table
from luwu.commands.explain import page
from tests import equations, error_bars, features, tutorial

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
_KEYS = re.compile(r"(?<=<!-- config:begin -->\n).*(?=\n<!-- config:end -->)", re.DOTALL)


def main() -> int:
    """Write all of them; the exit code."""
    configuration = DOCS / "configuration.md"
    text = configuration.read_text(encoding="utf-8")
    assert len(_KEYS.findall(text)) == 1, "the marks of the table in configuration.md"
    configuration.write_text(_KEYS.sub(lambda _: markdown_table(), text), encoding="utf-8")
    (DOCS / "errors.md").write_text(page(list(entries().values())) + "\n", encoding="utf-8")
    error_bars.main([])
    return features.main([]) or equations.main([]) or tutorial.main([])


if __name__ == "__main__":
    sys.exit(main())

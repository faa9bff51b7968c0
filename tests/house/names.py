"""Names of modules that hide others."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ("workers", "benchmarks", "docs/examples")
"""Their scripts are run by path, which puts the script's folder first where Python imports from."""


def modules_that_hide_others(root: Path) -> list[str]:
    """Modules beside scripts that are named like one of the standard library."""
    return [
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if path.stem in sys.stdlib_module_names
    ]

"""Scores the model's predictions that were frozen before their published results were looked up.

    python -m benchmarks.blind [--json]
    python -m benchmarks.blind --beside docs/predict/blind-2.json --why TEXT

A frozen document is never edited: a number that was corrected after a look is not blind. `--beside`
adds a column to the second or third document, after a change of the model that was meant.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.blind import columns, score
from luwu.base.errors import ConfigError


def main(words: Sequence[str] | None = None) -> int:
    """Print the scores, or add a column; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blind", description=__doc__)
    parser.add_argument("--beside", metavar="FILE", help="add a column to this document")
    parser.add_argument("--why", metavar="TEXT", help="what changed, with --beside")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(words)
    if (asked.beside is None) != (asked.why is None):
        parser.error("--beside and --why go together")
    if asked.beside is None:
        rows = score.scored()
        print(json.dumps(rows, indent=1) if asked.json else score.text(rows))
        return 0
    try:
        add_column(Path(asked.beside), asked.why)
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


def add_column(path: Path, why: str) -> None:
    """Adds what is predicted today to a document of questions. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--beside {path}: is no document that can be read: {exc}") from exc
    if found.get("schema") != columns.SCHEMA:
        raise ConfigError(f"--beside {path}: has no columns; docs/predict/blind-2.json has")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = columns.with_column(found, today, why)
    try:
        path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--beside {path}: cannot be written: {exc.strerror}") from exc


if __name__ == "__main__":
    raise SystemExit(main())

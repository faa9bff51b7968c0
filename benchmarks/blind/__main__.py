"""Prints the model's predictions of configurations whose published results were not looked up.

    python -m benchmarks.blind [--set 1|2] [--json] [--out FILE] [--catalogue FILE]
    python -m benchmarks.blind --beside docs/predict/blind-2.json --why TEXT

The document names the commit that made it, so it is made from a checkout without changes to the
model, and it is written once: a number that was corrected after a look is not blind. `--beside`
adds a column to the second document, after a change of the model that was meant.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import luwu.predict
from benchmarks.blind import document
from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue, load

_FOLDERS = (Path(luwu.predict.__file__).parent, Path(__file__).parent)
"""The model, and the configurations."""
_GIT_S_MAX = 30


def main(words: Sequence[str] | None = None) -> int:
    """Make the document and print it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blind", description=__doc__)
    parser.add_argument("--set", type=int, choices=(1, 2), default=1, help="of the rows")
    parser.add_argument("--beside", metavar="FILE", help="add a column to this document of set 2")
    parser.add_argument("--why", metavar="TEXT", help="what changed, with --beside")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", metavar="FILE", help="write the JSON there too")
    parser.add_argument("--catalogue", metavar="FILE", help="TOML with your own hardware")
    asked = parser.parse_args(words)
    own = [] if asked.catalogue is None else [Path(asked.catalogue)]
    if (asked.beside is None) != (asked.why is None):
        parser.error("--beside and --why go together")
    try:
        if asked.beside is not None:
            add_column(load(*own), Path(asked.beside), asked.why)
            return 0
        print(blind(load(*own), as_json=asked.json, out=asked.out, number=asked.set))
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


def blind(catalogue: Catalogue, *, as_json: bool, out: str | None, number: int = 1) -> str:
    """The document as text or JSON; also written to a file. Raises ConfigError."""
    if number == 1:
        found = document.document(catalogue, model_commit())
    else:
        found = document.document_2(catalogue, model_commit(), _today())
    if out is not None:
        _write("--out", Path(out), found)
    return json.dumps(found, indent=1) if as_json else document.text(found)


def add_column(catalogue: Catalogue, path: Path, why: str) -> None:
    """Adds what is predicted today to a document of the second set. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--beside {path}: is no document that can be read: {exc}") from exc
    if found.get("schema") != document.SCHEMA_2:
        raise ConfigError(f"--beside {path}: has no columns; docs/predict/blind-2.json has")
    _write("--beside", path, document.with_column(found, catalogue, _today(), why))


def _write(option: str, path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{option} {path}: cannot be written: {exc.strerror}") from exc


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def model_commit() -> str:
    """The commit of the checkout that the model is in. Raises ConfigError."""
    for folder in _FOLDERS:
        if _git(folder, "status", "--porcelain", "--", "."):
            raise ConfigError(
                f"{folder} has changes that are not committed; commit them, for blind rows name "
                "the commit that made them"
            )
    return _git(_FOLDERS[0], "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=_GIT_S_MAX,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as exc:
        raise ConfigError(
            f"{folder} is not in a git checkout whose commit can be read ({exc}); run "
            "python -m benchmarks.blind from one"
        ) from exc
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())

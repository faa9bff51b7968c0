"""Prints the model's predictions of configurations whose published results were not looked up.

    python -m benchmarks.blind [--json] [--out FILE] [--catalogue FILE]

The document names the commit that made it, so it is made from a checkout without changes to the
model, and it is written once: a number that was corrected after a look is not blind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", metavar="FILE", help="write the JSON there too")
    parser.add_argument("--catalogue", metavar="FILE", help="TOML with your own hardware")
    asked = parser.parse_args(words)
    own = [] if asked.catalogue is None else [Path(asked.catalogue)]
    try:
        print(blind(load(*own), as_json=asked.json, out=asked.out))
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


def blind(catalogue: Catalogue, *, as_json: bool, out: str | None) -> str:
    """The document as text or JSON; also written to a file. Raises ConfigError."""
    found = document.document(catalogue, model_commit())
    if out is not None:
        try:
            Path(out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"--out {out}: cannot be written: {exc.strerror}") from exc
    return json.dumps(found, indent=1) if as_json else document.text(found)


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

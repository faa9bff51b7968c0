"""`luwu predict blind`: what the model expects where nobody has looked up what was published.

The document names the commit that made it, so it is made from a checkout without changes to the
model, and it is written once: a number that was corrected after a look is not blind.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import luwu.predict
from luwu.base.errors import ConfigError
from luwu.predict.blind import document
from luwu.predict.hardware.catalogue import Catalogue

_MODEL = Path(luwu.predict.__file__).parent
_GIT_S_MAX = 30


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
    """The commit of the checkout that this package is in. Raises ConfigError."""
    if _git("status", "--porcelain", "--", "."):
        raise ConfigError(
            f"{_MODEL} has changes that are not committed; commit them, for blind rows name the "
            "commit that made them"
        )
    return _git("rev-parse", "HEAD")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=_MODEL, capture_output=True, text=True, timeout=_GIT_S_MAX,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as exc:
        raise ConfigError(
            f"{_MODEL} is in no git checkout that can be asked for its commit ({exc}); run luwu "
            "predict blind from one"
        ) from exc
    return done.stdout.strip()

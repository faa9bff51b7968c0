"""All rows, as `docs/predict/blind.json` and for people."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

from luwu.predict.check.blind.seen import blind_rows
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA = 1
PARAMETERS = "luwu/predict/data/fitted.toml"


def parameters_sha256() -> str:
    """The digest of the file of fitted numbers."""
    file = resources.files("luwu.predict") / "data" / "fitted.toml"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def document(catalogue: Catalogue, commit: str) -> dict[str, Any]:
    """The document that `python -m benchmarks.blind` writes; `commit` is that of the model."""
    return {
        "schema": SCHEMA, "commit": commit,
        "parameters": PARAMETERS, "parameters_sha256": parameters_sha256(),
        "rows": [row.to_json() for row in blind_rows(catalogue)],
    }  # fmt: skip


def text(found: dict[str, Any]) -> str:
    """The document for people."""
    lines = [f"model {found['commit']}, fitted numbers {found['parameters_sha256'][:12]}"]
    group = ""
    for row in found["rows"]:
        if row["group"] != group:
            group = row["group"]
            lines += ["", group]
        lines.append(f"  {row['name']:<74} {row['value']:>10.4g} {row['unit']}")
    return "\n".join(lines)

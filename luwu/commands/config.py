"""`luwu config`: every key with its value, and who set it."""

from __future__ import annotations

import json

from luwu.base.config import KEYS, Resolved
from luwu.commands import form


@form.command(
    "config", "luwu config", "luwu config --config luwu.toml --workers 4 > resolved.toml", keys=KEYS
)
@form.JSON
def run(resolved: Resolved, as_json: bool) -> int:
    """List all keys with the values that a run with the same file, environment and flags uses, and
    where each comes from."""
    document = resolved.document()
    width = max(len(name) for name in KEYS)
    lines = []
    for name, entry in document["keys"].items():
        value = entry["value"]
        line = f"# {name}" if value is None else f"{name:<{width}} = {json.dumps(value)}"
        lines.append(f"{line:<{width + 24}}  # {entry['origin']}")
    return form.show(document, "\n".join(lines), as_json=as_json)

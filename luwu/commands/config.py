"""`luwu config`: every key with its value, and who set it."""

from __future__ import annotations

import json

import click

from luwu.base.config import ENVIRONMENT_ONLY, KEYS, Resolved
from luwu.commands import form


@form.command(
    "config",
    "luwu config --origin",
    "luwu config --config luwu.toml --workers 4 > resolved.toml",
    keys=KEYS,
)
@click.option("--origin", is_flag=True, help="show where each value comes from")
@click.option("--json", "as_json", is_flag=True, help="print JSON, as in resolved.json")
def run(resolved: Resolved, origin: bool, as_json: bool) -> int:
    """List all keys with the values that a run with the same file, environment and flags uses."""
    document = resolved.document()
    width = max(len(name) for name in KEYS)
    lines = []
    for name, entry in document["keys"].items():
        value = entry["value"]
        shown = "# unset" if value is None else json.dumps(value)
        line = f"{name:<{width}} = {shown}" if value is not None else f"# {name}"
        if origin:
            line = f"{line:<{width + 24}}  # {entry['origin']}"
        lines.append(line)
    if origin:
        lines += ["", "# other environment variables"]
        lines += [f"# {name:<{width}} {text}" for name, text in ENVIRONMENT_ONLY.items()]
    return form.show(document, "\n".join(lines), as_json=as_json)

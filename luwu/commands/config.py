"""`luwu config`: every key with its value, and who set it."""

from __future__ import annotations

import json
from html import escape

import click

from luwu.base.config import ENVIRONMENT_ONLY, KEYS, Resolved, value_text
from luwu.base.parsers import one_of
from luwu.commands import form


@form.command(
    "config",
    "luwu config --origin",
    "luwu config --config luwu.toml --workers 4 > resolved.toml",
    keys=KEYS,
)
@click.argument("show", type=form.Value("show", one_of("show")), required=False)
@click.option("--origin", is_flag=True, help="show where each value comes from")
@click.option("--json", "as_json", is_flag=True, help="print JSON, as in resolved.json")
@click.option("--markdown", is_flag=True, help="print the table of all keys for the documents")
def run(resolved: Resolved, show: str | None, origin: bool, as_json: bool, markdown: bool) -> int:
    """List all keys with the values that a run with the same file, environment and flags uses."""
    if markdown:
        print(markdown_table())
        return 0
    document = resolved.document()
    if as_json:
        form.print_json(document)
        return 0
    width = max(len(name) for name in KEYS)
    for name, entry in document["keys"].items():
        value = entry["value"]
        shown = "# unset" if value is None else json.dumps(value)
        line = f"{name:<{width}} = {shown}" if value is not None else f"# {name}"
        if origin:
            line = f"{line:<{width + 24}}  # {entry['origin']}"
        print(line)
    if origin:
        print("\n# other environment variables")
        for variable, text in ENVIRONMENT_ONLY.items():
            print(f"# {variable:<{width}} {text}")
    return 0


def markdown_table() -> str:
    """Every key with its values, its default, the commands that take it and its meaning."""
    lines = ["| key | values | default | commands | |", "|---|---|---|---|---|"]
    for key in KEYS.values():
        values = key.shape.replace("|", " \\| ")
        default = value_text(key.name, key.default)
        shown = "" if default is None else f"`{default}`"
        verbs = ", ".join(key.verbs)
        lines.append(
            f"| `{key.name}` | {values} | {shown} | {verbs} | {escape(key.text, quote=False)} |"
        )
    return "\n".join(lines)

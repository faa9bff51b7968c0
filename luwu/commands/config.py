"""`luwu config`: every key with its value, and who set it."""

from __future__ import annotations

import json
from html import escape
from typing import Final

from luwu.base.config import ENVIRONMENT_ONLY, KEYS, value_text
from luwu.base.errors import ConfigError
from luwu.commands.flags import Flag, Parsed, Verb, resolve_parsed

VERB: Final = Verb(
    name="config",
    usage="luwu config [show] [--origin] [--json] [--markdown] [flags]",
    text="List all keys with the values that a run with the same file, environment and flags uses.",
    examples=(
        "luwu config --origin",
        "luwu config --config luwu.toml --workers 4 > resolved.toml",
    ),
    flags=(
        Flag(name="origin", text="show where each value comes from"),
        Flag(name="json", text="print JSON, as in resolved.json"),
        Flag(name="markdown", text="print the table of all keys for the documents"),
    ),
    has_all_keys=True,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    if parsed.rest not in ([], ["show"]):
        raise ConfigError(f"luwu config: {parsed.rest[0]!r} is unknown; usage: {VERB.usage_text}")
    if parsed.has("markdown"):
        print(markdown_table())
        return 0
    resolved = resolve_parsed(VERB, parsed)
    document = resolved.document()
    if parsed.has("json"):
        print(json.dumps(document, indent=1))
        return 0
    width = max(len(name) for name in KEYS)
    for name, entry in document["keys"].items():
        value = entry["value"]
        shown = "# unset" if value is None else json.dumps(value)
        line = f"{name:<{width}} = {shown}" if value is not None else f"# {name}"
        if parsed.has("origin"):
            line = f"{line:<{width + 24}}  # {entry['origin']}"
        print(line)
    if parsed.has("origin"):
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

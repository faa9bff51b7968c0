"""`luwu explain`: what an error code means, what usually causes it, and what to do next."""

from __future__ import annotations

import json
from dataclasses import asdict
from textwrap import wrap
from typing import Final

from luwu.base.error_table import Entry, entries, entry
from luwu.commands.flags import Flag, Parsed, Verb

VERB: Final = Verb(
    name="explain",
    usage="luwu explain [--json | --markdown] [CODE]",
    text="Explain the code at the end of an error message: its meaning, its usual causes and what "
    "to do next. Without CODE, list all codes.",
    examples=("luwu explain E203",),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="markdown", text="print docs/errors.md"),
    ),
    has_keys=False,
    rest="one",
)
WIDTH: Final = 88
_HEAD: Final = """\
# Errors

A command that fails ends with a message that says what was found where, and what to do next, and
with a code: `luwu explain E203` prints what stands here. The code is also in the run's
`outcome.json` and in `luwu status`. Made by `luwu explain --markdown`; do not edit.
"""


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    chosen = [entry(parsed.rest[0])] if parsed.rest else list(entries().values())
    if parsed.has("json"):
        print(json.dumps({"schema": 1, "errors": [asdict(each) for each in chosen]}, indent=1))
    elif parsed.has("markdown"):
        print(page(chosen))
    elif parsed.rest:
        print(text(chosen[0]))
    else:
        for each in chosen:
            print(f"{each.code}  {each.title}")
    return 0


def text(each: Entry) -> str:
    """An entry for people."""
    lines = [f"{each.code}  {each.title}", "", *wrap(each.meaning, WIDTH), "", "usual causes"]
    for cause in each.causes:
        lines += wrap(cause, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    lines += ["", "what to do next"]
    for step in each.next:
        lines += wrap(step, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)


def page(chosen: list[Entry]) -> str:
    """docs/errors.md."""
    lines = [_HEAD]
    for each in chosen:
        lines += [f"## {each.code}: {each.title}", "", each.meaning, "", "Usual causes:", ""]
        lines += [f"- {cause}" for cause in each.causes]
        lines += ["", "What to do next:", "", *(f"- {step}" for step in each.next), ""]
    return "\n".join(lines).rstrip()

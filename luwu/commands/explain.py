"""`luwu explain`: what an error code means, what usually causes it, and what to do next."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import wrap
from typing import Final

import click

from luwu.base.errors import Entry, entries, entry
from luwu.commands import form

WIDTH: Final = 88


@form.command("explain", "luwu explain E203")
@click.argument("code", required=False)
@form.JSON
def run(code: str | None, as_json: bool) -> int:
    """Explain the code at the end of an error message: its meaning, its usual causes and what to
    do next. Without CODE, list all codes."""
    chosen = list(entries().values()) if code is None else [entry(code)]
    titles = "\n".join(f"{each.code}  {each.title}" for each in chosen)
    document = {"schema": 1, "errors": [asdict(each) for each in chosen]}
    return form.show(document, titles if code is None else text(chosen[0]), as_json=as_json)


def text(each: Entry) -> str:
    """An entry for people."""
    lines = [f"{each.code}  {each.title}", "", *wrap(each.meaning, WIDTH), "", "usual causes"]
    for cause in each.causes:
        lines += wrap(cause, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    lines += ["", "what to do next"]
    for step in each.next:
        lines += wrap(step, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)

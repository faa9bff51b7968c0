"""Command lines taken apart as `luwu` does it, without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from luwu.commands.form import LUWU, Command, Form
from luwu.commands.table import VERBS, module_of

ROOT = Path(__file__).parents[2]


def forms() -> Iterator[tuple[str, Form]]:
    """All commands by their words, each followed by those that it consists of."""
    for name in VERBS:
        form: Form = module_of(name).run
        yield name, form
        for word, inner in getattr(form, "commands", {}).items():
            yield f"{name} {word}", inner


def parsed(name: str, *words: str) -> dict[str, Any]:
    """The arguments that a command is given. Raises ConfigError."""
    parent, command, rest = click.Context(LUWU, info_name="luwu"), module_of(name).run, [*words]
    if isinstance(command, click.Group):
        parent = click.Context(command, parent, name)
        name = rest.pop(0)
        command = command.commands[name]
    assert isinstance(command, Command)
    with command.make_context(name, rest, parent) as ctx:
        command.prepare(ctx)
        return ctx.params


def demo() -> list[str]:
    """The words of `make demo` behind `luwu`."""
    found = re.search(r"-m luwu (compare .*) \$\(ARGS\)", (ROOT / "Makefile").read_text())
    assert found is not None
    return found[1].split()


def texts(name: str, *words: str) -> dict[str, str]:
    """The texts of the keys among the flags of a command. Raises ConfigError."""
    return {**parsed(name, *words)["resolved"].given}

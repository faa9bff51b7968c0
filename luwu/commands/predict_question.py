"""The question of a command: a file, or flags that are its keys, or flags over a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from luwu.base.errors import ConfigError
from luwu.base.parsers import path
from luwu.commands import form
from luwu.predict.ask.keys import keys, table_of, with_assumed
from luwu.predict.ask.question import read_table
from luwu.predict.hardware.catalogue import Catalogue, load

CATALOGUE: Final = click.option(
    "--catalogue",
    type=form.Value("FILE", lambda text, name: load(path(text, name))),
    default=load,
    help="TOML file with your own hardware and models",
)
FILE: Final = click.argument("file", required=False, type=form.Value("FILE", path))


class Command(form.Command):
    """A command whose keys are those of a question, each once; it is given their texts."""

    def __init__(self, name: str, *, params: list[click.Parameter], **settings: Any) -> None:
        """As that of other commands."""
        first = {key.place: key for key in reversed(keys())}
        asked = [
            form.KeyFlag(key.place, key.shape, key.text, key.title, is_flag=not key.shape)
            for key in keys()
            if first[key.place] is key
        ]
        super().__init__(name, params=[*params, *asked], **settings)

    def take(self, ctx: click.Context, texts: Mapping[str, str]) -> None:
        """Pass the texts on as `asked`."""
        ctx.params["asked"] = texts


def asked_table(
    asked: Mapping[str, str], file: Path | None, catalogue: Catalogue
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """The table of a question, and what of it is assumed: nothing of a file. Raises ConfigError."""
    flags = table_of(asked, catalogue)
    if file is None:
        if not flags:
            ctx = click.get_current_context()
            raise ConfigError(
                f"{ctx.command_path} takes a file, or a question in flags; {form.usage(ctx)}"
            )
        return with_assumed(flags)
    table = read_table(file)
    for key, value in flags.items():
        own = table.get(key)
        if isinstance(own, dict) and isinstance(value, dict):
            table[key] = {**own, **value}
        else:
            table[key] = value
    return table, {}

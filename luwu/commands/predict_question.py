"""The question of a command: a file, or flags that are its keys, or flags over a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import Flag, Parsed
from luwu.predict.ask.one_line import table_of, with_assumed
from luwu.predict.ask.question import read_table
from luwu.predict.ask.question_keys import keys
from luwu.predict.hardware.catalogue import Catalogue


def _flags() -> tuple[Flag, ...]:
    found: dict[str, Flag] = {}
    for key in keys():
        flag = Flag(name=key.place, shape=key.shape, text=key.text, title=key.title)
        found.setdefault(key.place, flag)
    return tuple(found.values())


QUESTION_FLAGS: Final = _flags()
"""All keys of a question, each once."""


def asked_table(
    parsed: Parsed, catalogue: Catalogue
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """The table of a question, and what of it is assumed: nothing of a file. Raises ConfigError."""
    flags, files = table_of(parsed.flags, catalogue), parsed.rest
    if len(files) > 1 or not (files or flags):
        raise ConfigError(
            f"luwu {parsed.verb.name} takes a file, or a question in flags; usage: "
            f"{parsed.verb.usage_text}"
        )
    return (over_file(Path(files[0]), flags), {}) if files else with_assumed(flags)


def over_file(path: Path, flags: dict[str, Any]) -> dict[str, Any]:
    """The table of a file, with other values where flags have them."""
    table = read_table(path)
    for key, value in flags.items():
        own = table.get(key)
        table[key] = (
            {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value
        )
    return table

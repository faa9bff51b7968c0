"""A question of the command line: keys as flags, in place of a file or over one.

    --model llama3-70b --devices 64xh100-80 --network roce-100g --system luwu --node.disks 8

Names are matched whatever their case; `64xh100-80` is `devices` and `device`. Without a file, keys
that are left out are assumed (`[assumed]` of `data/question_keys.toml`), and the answer lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_keys import SYSTEMS, TRAINING, keys, value_of
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import data

_DEVICES: Final = re.compile(r"([0-9]+)x(.+)")


def table_of(flags: Mapping[str, str], catalogue: Catalogue) -> dict[str, Any]:
    """The table of flags by their names, such as `node.disks`. Raises ConfigError."""
    found: dict[str, Any] = {}
    for key in keys():
        if key.place not in flags:
            continue
        owner = found.setdefault(key.section, {}) if key.section else found
        text = flags[key.place]
        devices = _DEVICES.fullmatch(text) if key.place == "devices" else None
        if devices is not None:
            if "device" in flags:
                raise ConfigError(f"devices: {text!r} names a device too; leave out --device")
            found["device"] = _known("device", devices[2], catalogue)
            text = devices[1]
        if key.kind == "flag":
            owner[key.name] = text != "false"
        else:
            owner[key.name] = _known(key.kind, value_of(text), catalogue)
    return found


def with_assumed(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with what it leaves out, and that alone."""
    system = str(table.get("system"))
    known = data("question_keys.toml")["assumed"]
    assumed: dict[str, Any] = {}
    for owner in ("training", system) if system in TRAINING else (system,):
        assumed |= known.get(owner, {})
    if isinstance(assumed.get("batch"), int) and isinstance(table.get("devices"), int):
        assumed["batch"] *= table["devices"]
    whole, more = dict(table), dict[str, Any]()
    for key, value in assumed.items():
        own = table.get(key)
        if isinstance(value, dict):
            section = dict(own or {})
            more[key] = {name: each for name, each in value.items() if name not in section}
            whole[key] = {**more[key], **section}
        elif own is None:
            more[key] = whole[key] = value
    return whole, {key: value for key, value in more.items() if value != {}}


def assumed_text(assumed: Mapping[str, Any]) -> list[str]:
    """A line for people; none where nothing is assumed."""
    said = []
    for key, value in assumed.items():
        values = value if isinstance(value, dict) else {"": value}
        said += [f"{key}{'.' if name else ''}{name} {each}" for name, each in values.items()]
    return [f"assumed           {', '.join(said)}"] if said else []


def _known(kind: str, value: Any, catalogue: Catalogue) -> Any:
    """A name as it is known, where it differs in its case alone."""
    names = {"system": SYSTEMS, "software": data("software.toml")}.get(kind)
    for name in catalogue.names(kind) if names is None else names:
        if name.casefold() == str(value).casefold():
            return name
    return value

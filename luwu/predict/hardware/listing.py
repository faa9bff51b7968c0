"""What the catalogue, the software and the systems are called, with their main numbers and sources.

`listing` makes a document, `listing_text` tables of it for people.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import KINDS, keys_of
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import data
from luwu.predict.hardware.units import Dimension

SCHEMA: Final = 1
_MODEL: Final = ("parameters", "layers", "hidden", "heads", "kv_heads", "vocab", "experts")
_SOFTWARE: Final = ("kernels", "overlaps", "fused_attention", "gradient_bytes")
_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def listing(
    catalogue: Catalogue, systems: Mapping[str, str], kind: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """By kind and name: `numbers` in SI, and the `source` of each. Raises ConfigError."""
    found: dict[str, Any] = {
        "system": {name: {"numbers": {}, "sources": {"": text}} for name, text in systems.items()},
        "model": {name: _model(catalogue, name) for name in catalogue.entries["model"]},
        "software": {name: _software(entry) for name, entry in data("software.toml").items()},
    }
    found |= {
        each: {name: _entry(catalogue, each, name) for name in catalogue.entries[each]}
        for each in KINDS
        if each in catalogue.entries
    }
    if kind is not None and kind not in found:
        raise ConfigError(
            f"{kind!r} is no kind of entry{suggestion(kind, found)}; kinds are {', '.join(found)}"
        )
    return {"schema": SCHEMA, "kinds": found if kind is None else {kind: found[kind]}}


def _model(catalogue: Catalogue, name: str) -> dict[str, Any]:
    model: Transformer = catalogue.model(name)
    numbers = {key: getattr(model, key) for key in _MODEL}
    return {"numbers": numbers, "sources": {"": model.source or "given by the user"}}


def _software(entry: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"kernels": "vendor", **{key: entry[key] for key in _SOFTWARE if key in entry}}
    return {"numbers": numbers, "sources": {"": entry["source"]}}


def _entry(catalogue: Catalogue, kind: str, name: str) -> dict[str, Any]:
    entry = catalogue.entries[kind][name]
    numbers = {
        each.name: getattr(entry, each.name)
        for each in dataclasses.fields(entry)
        if type(getattr(entry, each.name)) is float
    }
    place = f"{kind}.{name}."
    known = {
        at.removeprefix(place): f"{about.source} ({about.tag})"
        for at, about in catalogue.known.items()
        if at.startswith(place)
    }
    return {"numbers": numbers, "sources": known}


# ---------------------------------------------------------------------- for people


def listing_text(document: Mapping[str, Any]) -> str:
    """A line for each entry: its numbers, and the source of the first that has one."""
    lines: list[str] = []
    for kind, entries in document["kinds"].items():
        width = max(map(len, entries))
        lines += ["", f"{kind}:"]
        for name, entry in entries.items():
            numbers = ", ".join(
                f"{key} {_shown(kind, key, value)}" for key, value in entry["numbers"].items()
            )
            source = next(iter(entry["sources"].values()), "")
            lines.append(f"  {name:<{width}}  " + "; ".join(filter(None, (numbers, source))))
    return "\n".join(lines[1:])


def _shown(kind: str, key: str, value: Any) -> str:
    """A number with its unit."""
    if not isinstance(value, float):
        return f"{value:,}" if type(value) is int else str(value)
    dimension = keys_of(KINDS[kind])[key].dimensions[0] if kind in KINDS else Dimension.COUNT
    if dimension in (Dimension.RATIO, Dimension.COUNT):
        return f"{value:g}"
    if key.endswith("_s"):
        return f"{value * 1e6:g} us"
    scaled = next(((p, value / s) for p, s in _PREFIXES if value >= s), ("", value))
    return f"{scaled[1]:.4g} {scaled[0]}{dimension.value}"

"""Names of the catalogue, of software and of systems, with their main properties and sources.

`listing` makes a document, `listing_text` lines of it for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import KINDS, keys_of
from luwu.predict.hardware.software import data
from luwu.predict.hardware.units import Dimension

SCHEMA: Final = 1
_MODEL: Final = ("parameters", "layers", "hidden", "heads", "kv_heads", "vocab", "experts")
_SOFTWARE: Final = ("kernels", "overlaps", "fused_attention", "gradient_bytes")
_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 0.0))


def listing(
    catalogue: Catalogue, systems: Mapping[str, str], kind: str | None = None
) -> dict[str, Any]:  # fmt: skip
    """By kind and name: properties, numbers in SI, and their sources. Raises ConfigError."""
    found: dict[str, Any] = {
        "system": {name: _listed({"description": text}) for name, text in systems.items()},
        "model": {
            name: _listed({key: getattr(model, key) for key in _MODEL}, {"": model.source})
            for name, model in catalogue.entries["model"].items()
        },
        "software": {
            name: _listed({key: entry[key] for key in _SOFTWARE if key in entry},
                          {"": entry["source"]})
            for name, entry in data("software.toml").items()
        },
    }  # fmt: skip
    for each in KINDS:
        if each in catalogue.entries:
            found[each] = {name: _entry(catalogue, each, name) for name in catalogue.entries[each]}
    if kind is not None and kind not in found:
        raise ConfigError(
            f"{kind!r} is no kind of entry{suggestion(kind, found)}; kinds are {', '.join(found)}"
        )
    return {"schema": SCHEMA, "kinds": found if kind is None else {kind: found[kind]}}


def _listed(properties: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Any:
    return {"properties": dict(properties), "sources": dict(sources or {})}


def _entry(catalogue: Catalogue, kind: str, name: str) -> dict[str, Any]:
    """Its numbers, without curves; the sources of these too."""
    place, entry = f"{kind}.{name}.", catalogue.entries[kind][name]
    sources = {
        at.removeprefix(place): f"{known.source} ({known.tag})"
        for at, known in catalogue.known.items()
        if at.startswith(place)
    }
    values = {key: getattr(entry, key) for key in sources}
    found: dict[str, Any] = _listed(
        {key: value for key, value in values.items() if isinstance(value, float)}, sources
    )
    return found


def listing_text(document: Mapping[str, Any]) -> str:
    """A line for each entry: its properties, and the source of the first that has one."""
    lines: list[str] = []
    for kind, entries in document["kinds"].items():
        width = max(map(len, entries))
        lines += ["", f"{kind}:"]
        for name, entry in entries.items():
            said = ", ".join(_shown(kind, *each) for each in entry["properties"].items())
            source = next(iter(entry["sources"].values()), "")
            lines.append(f"  {name:<{width}}  {said}{'; ' if source else ''}{source}")
    return "\n".join(lines[1:])


def _shown(kind: str, key: str, value: Any) -> str:
    """A property with its unit."""
    if key == "description":
        return str(value)
    if kind not in KINDS:
        return f"{key} {value:,}" if type(value) is int else f"{key} {value}"
    dimension = keys_of(KINDS[kind])[key].dimensions[0]
    if dimension in (Dimension.RATIO, Dimension.COUNT):
        return f"{key} {value:g}"
    if dimension is Dimension.SECONDS:
        return f"{key} {value * 1e6:g} us"
    prefix, scale = next(each for each in _PREFIXES if value >= each[1])
    return f"{key} {value / (scale or 1):.4g} {prefix}{dimension.value}"

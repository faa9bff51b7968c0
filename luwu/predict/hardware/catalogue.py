"""The catalogue of hardware and models: files of data, and those that a user adds.

Every number has a source, a date, and a tag: how much it can be trusted; a measured curve is a
table of sizes and rates. A user's file has the same form; it replaces single numbers of names that
are known, and `like = "A100-80"` takes the rest from another entry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partialmethod
from importlib import resources
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.foreign import read_toml
from luwu.predict.hardware.hardware import KINDS, Curve, keys_of
from luwu.predict.hardware.model import CONFIG_SUFFIX, Transformer, read_model_config
from luwu.predict.hardware.software import data
from luwu.predict.hardware.values import Dimension, check_choice, quantity_of, to_si, units_of

TAGS: Final = ("read", "stated", "paper", "derived", "memory", "assumed")
"""read in its source; stated by a document that we know; published of the system we reproduce;
computed from others; from memory, to be checked; assumed."""
_MODEL: Final = "model"


@dataclass(slots=True)
class Catalogue:
    """Entries by kind and name."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """The source of each number of an entry, with its tag; models have none."""

    def names(self, kind: str) -> list[str]:
        return sorted(self.entries.get(kind, {}))

    def find(self, kind: str, name: str, key: str = "") -> Any:
        """An entry, or a `config.json`'s model; a question has it at `key`. Raises ConfigError."""
        if kind == _MODEL and name.endswith(CONFIG_SUFFIX):
            return read_model_config(Path(name))
        found = self.entries.get(kind, {}).get(name)
        if found is None:
            names = self.names(kind)
            raise ConfigError(
                f"{key or kind}: no {kind} {name!r} is known{suggestion(name, names)}; known are "
                f"{', '.join(names) or 'none'}, and what you add by --catalogue FILE"
            )
        return found

    device = partialmethod(find, "device")
    network = partialmethod(find, "network")
    model = partialmethod(find, _MODEL)


def load(*more: Path) -> Catalogue:
    """The package's own catalogue, then files of the user. Raises ConfigError."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    folder = resources.files("luwu.predict") / "data" / "catalogue"
    for resource in sorted(folder.iterdir(), key=lambda each: each.name):
        _merge(tables, tomllib.loads(resource.read_text(encoding="utf-8")), resource.name)
    for path in more:
        _merge(tables, read_toml(path, "catalogue"), str(path))
    catalogue = Catalogue()
    for kind, entries in tables.items():
        catalogue.entries[kind] = {
            name: _made(catalogue, kind, name, _with_like(kind, name, entries)) for name in entries
        }
    return catalogue


def _merge(
    tables: dict[str, dict[str, dict[str, Any]]], more: Mapping[str, Any], file: str
) -> None:
    kinds = [*KINDS, _MODEL]
    for kind, entries in more.items():
        if kind not in kinds or not isinstance(entries, dict):
            raise ConfigError(
                f"{file}: [{kind}] is not a kind of entry{suggestion(kind, kinds)}; kinds are "
                f"{', '.join(kinds)}"
            )
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                raise ConfigError(f"{file}: {kind}.{name} is not a table of numbers")
            tables.setdefault(kind, {}).setdefault(name, {}).update(entry)


def _with_like(
    kind: str, name: str, entries: dict[str, dict[str, Any]], seen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The numbers of an entry, over those of the entry that it is like."""
    entry, seen = dict(entries[name]), (*seen, name)
    like = entry.pop("like", None)
    if like is None:
        return entry
    if not isinstance(like, str) or like not in entries or like in seen:
        raise ConfigError(
            f"{kind}.{seen[0]}.like: no other {kind} {like!r} is known"
            f"{suggestion(str(like), entries)}"
        )
    return {**_with_like(kind, like, entries, seen), **entry}


def _made(catalogue: Catalogue, kind: str, name: str, entry: Mapping[str, Any]) -> Any:
    if kind == _MODEL:
        return Transformer.parse(f"{kind}.{name}", name, entry)
    keys, values = keys_of(KINDS[kind]), dict[str, Any]()
    sources = catalogue.sources[kind, name] = {}
    for key, value in entry.items():
        place = f"{kind}.{name}.{key}"
        if key not in keys:
            raise ConfigError(
                f"{place} is unknown{suggestion(key, keys)}; a {kind} has {', '.join(keys)}"
            )
        read = _curve if len(keys[key]) == 2 else quantity_of
        values[key] = read(place, value, *keys[key])
        sources[key] = _source_of(place, value)
    for each in fields(KINDS[kind]):
        if each.default is MISSING and each.name not in ("name", *values):
            fits = units_of(keys[each.name][0])
            raise ConfigError(f"{kind}.{name}.{each.name} is missing; give it in one of {fits}")
    return KINDS[kind](name=name, **values)


def _curve(place: str, table: Any, size: Dimension, rate: Dimension) -> Curve:
    if not isinstance(table, dict) or not {"sizes", "rates", "unit"} <= table.keys():
        raise ConfigError(f"{place}: a curve needs sizes, rates and a unit")
    size_unit = table.get("size_unit", size.value)
    sizes = [to_si(f"{place}.sizes", value, size_unit, size) for value in table["sizes"]]
    rates = [to_si(f"{place}.rates", each, table["unit"], rate) for each in table["rates"]]
    return Curve(place, tuple(sizes), tuple(rates))


def _source_of(place: str, value: Any) -> str:
    """Source and tag; a user's own number may come without."""
    table = value if isinstance(value, dict) else {}
    tag = table.get("tag", "stated")
    check_choice(f"{place}.tag", tag, TAGS)
    return f"{table.get('source', 'given by the user')} ({tag})"


_MODEL_KEYS: Final = ("parameters", "layers", "hidden", "heads", "kv_heads", "vocab", "experts")
_SOFTWARE_KEYS: Final = ("kernels", "overlaps", "fused_attention", "gradient_bytes")
_PREFIXES: Final = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 0.0))


def listing(catalogue: Catalogue, systems: Mapping[str, str], kind: str | None = None) -> str:
    """A line for each entry: its main numbers, and where the first is from. Raises ConfigError."""
    found = {"system": dict(systems), "model": {}, "software": {}} | {each: {} for each in KINDS}
    for name, model in catalogue.entries[_MODEL].items():
        said = (f"{key} {getattr(model, key):,}" for key in _MODEL_KEYS)
        found[_MODEL][name] = f"{', '.join(said)}; {model.source}"
    for name, entry in data("software.toml").items():
        said = (f"{key} {entry[key]}" for key in _SOFTWARE_KEYS if key in entry)
        found["software"][name] = f"{', '.join(said)}; {entry['source']}"
    for each in KINDS:
        for name, entry in catalogue.entries[each].items():
            sources = catalogue.sources[each, name]
            numbers = ((key, getattr(entry, key)) for key in sources)
            said = (_shown(each, *one) for one in numbers if isinstance(one[1], float))
            found[each][name] = f"{', '.join(said)}; {next(iter(sources.values()))}"
    if kind is not None and kind not in found:
        raise ConfigError(
            f"{kind!r} is no kind of entry{suggestion(kind, found)}; kinds are {', '.join(found)}"
        )
    lines = []
    for each in found if kind is None else (kind,):
        width = max(map(len, found[each]))
        lines += ["", f"{each}:"]
        lines += [f"  {name:<{width}}  {text}" for name, text in found[each].items()]
    return "\n".join(lines[1:])


def _shown(kind: str, key: str, value: float) -> str:
    """A number with its unit."""
    dimension = keys_of(KINDS[kind])[key][0]
    if dimension in (Dimension.RATIO, Dimension.COUNT):
        return f"{key} {value:g}"
    if dimension is Dimension.SECONDS:
        return f"{key} {value * 1e6:g} us"
    prefix, scale = next(each for each in _PREFIXES if value >= each[1])
    return f"{key} {value / (scale or 1):.4g} {prefix}{dimension.value}"

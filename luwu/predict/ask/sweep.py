"""A question asked again and again, with keys of it replaced by each of several values.

A key is one of the question, of one of its tables, or a number of what it names in the catalogue
(`network.rate`); several change together (`devices:batch=8:64,16:128`). Several lists are asked in
all combinations, the first one slowest. A value that the question cannot have is a point without an
answer, and says why; where no point has one, that is the error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.predict.ask.answer import SCHEMA, answer, binding_text
from luwu.predict.ask.keys import SECTIONS, Value, value_of
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import KINDS, keys_of
from luwu.predict.hardware.values import quantity_of

POINTS_MAX: Final = 1000
STEP: Final = "step_s"
_COLUMNS: Final = {
    "step_s": ("step", "{:.3f} s"),
    "tokens_per_s_per_device": ("tokens/s each", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
}
"""Numbers of each row: their headings, and how they are written."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that change together, and their values."""

    keys: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]

    @property
    def name(self) -> str:
        """As it was written."""
        return ":".join(self.keys)

    @property
    def labels(self) -> list[str]:
        return [label(value) for value in self.values]


@dataclass(frozen=True, slots=True)
class Point:
    """A question, by one value of each axis; with its answer, or why there is none."""

    changes: dict[str, Value]
    labels: tuple[str, ...]
    """The values as written, one of each axis."""
    answer: dict[str, Any] | None
    refused: str = ""

    def number(self, of: str = STEP) -> float | None:
        """A number of the answer, None where there is none."""
        if self.answer is None:
            return None
        absent = 0.0 if of.startswith("parts_s.") else None  # a part not there takes no time
        return flattened(self.answer).get(of, absent)


def label(value: tuple[Value, ...]) -> str:
    """A value of an axis, as it was written."""
    return ":".join(str(each).lower() if isinstance(each, bool) else str(each) for each in value)


def parse_axis(text: str) -> Axis:
    """`KEY=v1,v2`, or `KEY1:KEY2=a:b,c:d`. Raises ConfigError."""
    name, equals, rest = text.partition("=")
    keys = tuple(each.strip() for each in name.split(":"))
    if not equals or not all(keys):
        raise ConfigError(f"over: {text!r} is not a key with values; write KEY=v1,v2,...")
    values = tuple(tuple(map(value_of, value.split(":"))) for value in rest.split(","))
    for value in values:
        if "" in value:
            raise ConfigError(f"over: a value of {name} is empty; write {name}=v1,v2,...")
        if len(value) != len(keys):
            raise ConfigError(
                f"over: {label(value)!r} has {len(value)} values, but {name} are {len(keys)} keys; "
                f"write {':'.join(['value'] * len(keys))}"
            )
        if values.count(value) > 1:
            raise ConfigError(f"over: {label(value)!r} is listed twice among the values of {name}")
    return Axis(keys, values)


def sweep(
    table: Mapping[str, Any], axes: Sequence[Axis], catalogue: Catalogue, of: str = STEP
) -> list[Point]:  # fmt: skip
    """Ask for every combination, the last axis fastest. Raises ConfigError where none can be
    answered, there are too many, or no answer has the number `of`, which is found before any
    request is played."""
    keys = [key for axis in axes for key in axis.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"over: {key} is given twice; a key has one list of values")
    if not axes:
        raise ConfigError("over: no key; write --over KEY=v1,v2,...")
    count = math.prod(len(axis.values) for axis in axes)
    if count > POINTS_MAX:
        raise ConfigError(f"over: {count:,} combinations; up to {POINTS_MAX:,} are asked for")
    if "arrivals" in table or of != STEP:
        known = dict[str, float]()
        for each in _points(table, axes, catalogue, is_short=True):
            known |= flattened(each.answer or {})
            if of in known:
                break
        if known and of not in known:
            raise ConfigError(
                f"of: {of!r} is not a number in the answer{suggestion(of, known)}; they are "
                f"{', '.join(known)}"
            )
    points = list(_points(table, axes, catalogue))
    if all(each.answer is None for each in points):
        raise ConfigError(points[0].refused)
    return points


def _points(
    table: Mapping[str, Any], axes: Sequence[Axis], catalogue: Catalogue, *, is_short: bool = False
) -> Iterator[Point]:
    """Their answers; in short with one request played."""
    for values in itertools.product(*(axis.values for axis in axes)):
        labels, changes = tuple(map(label, values)), dict[str, Value]()
        for axis, chosen in zip(axes, values, strict=True):
            changes |= zip(axis.keys, chosen, strict=True)
        try:
            asked, known = replaced(table, changes, catalogue)
            if is_short and isinstance(asked.get("arrivals"), dict):
                asked["arrivals"]["requests"] = 1
            yield Point(changes, labels, answer(make_question(asked, known)))
        except ConfigError as exc:
            yield Point(changes, labels, None, str(exc))


def replaced(
    table: Mapping[str, Any], changes: Mapping[str, Value], catalogue: Catalogue
) -> tuple[dict[str, Any], Catalogue]:
    """A question with other values, and the catalogue of what it then names, or ConfigError."""
    copy = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()
    }
    own = SECTIONS.get(str(changes.get("system", "")))
    if "system" in changes:
        copy = {key: v for key, v in copy.items() if key == own or key not in SECTIONS.values()}
    # Names before their numbers: `network.rate` is that of the network which the point names.
    for key, value in sorted(changes.items(), key=lambda item: item[0].count(".")):
        first, dot, rest = key.partition(".")
        if not dot:
            copy[key] = value
        elif isinstance(copy.get(first), dict) and "." not in rest:
            copy[first][rest] = value
        else:
            catalogue = _with_number(copy, key, value, catalogue)
    return copy, catalogue


def _with_number(table: dict[str, Any], key: str, value: Value, catalogue: Catalogue) -> Catalogue:
    """Name an entry in the table that differs in one number, and add it to the catalogue."""
    *place, kind, name = key.split(".")
    owner = table
    if kind in SECTIONS.values():
        raise ConfigError(f"{key}: the question has no [{kind}]; {_has(table)}")
    for each in place:
        if not isinstance(owner.get(each), dict):
            raise ConfigError(f"{key}: the question has no [{each}]; {_has(table)}")
        owner = owner[each]
    entry_name = owner.get(kind, table.get(kind) if kind == "network" else None)
    if kind not in KINDS or not isinstance(entry_name, str):
        names = [each for each, found in owner.items() if each in KINDS and isinstance(found, str)]
        raise ConfigError(
            f"{key}: the question names no {kind!r} that has numbers{suggestion(kind, names)}; it "
            f"names {', '.join(names) or 'none'}, and has keys of its own"
        )
    entries = catalogue.entries.get(kind, {})
    entry = entries.get(entry_name)
    if entry is None:
        return catalogue  # the question says what names are known
    every = keys_of(KINDS[kind])
    keys = {each: found for each, found in every.items() if len(found) == 1}
    if name not in keys:
        why = "is a measured curve, no number" if name in every else "is not a number"
        raise ConfigError(
            f"{key} {why} of a {kind}{suggestion(name, keys)}; they are {', '.join(keys)}"
        )
    number = quantity_of(key, value, keys[name][0])
    new = f"{entry_name}, {name} {value}"
    owner[kind] = new
    changed = {**entries, new: replace(entry, name=new, **{name: number})}
    return replace(catalogue, entries={**catalogue.entries, kind: changed})


def _has(table: Mapping[str, Any]) -> str:
    found = [f"[{key}]" for key, value in table.items() if isinstance(value, dict)]
    return f"its tables are {', '.join(found)}" if found else "it has no table"


def flattened(document: Mapping[str, Any], place: str = "") -> dict[str, float]:
    """All numbers of an answer, by name: `step_s`, `memory_bytes.states`."""
    found: dict[str, float] = {}
    for name, value in document.items():
        if name in ("schema", "asked"):
            continue
        if isinstance(value, Mapping):
            found |= flattened(value, f"{place}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{place}{name}"] = float(value)
    return found


def sweep_document(axes: Sequence[Axis], points: Sequence[Point], of: str) -> dict[str, Any]:
    """A sweep for programs; each answer is that of `luwu predict step`."""
    return {
        "schema": SCHEMA, "over": {axis.name: axis.labels for axis in axes}, "of": of,
        "points": [
            {
                "values": point.changes, "number": point.number(of), "answer": point.answer,
                "refused": point.refused or None,
            }
            for point in points
        ],
    }  # fmt: skip


def sweep_text(axes: Sequence[Axis], points: Sequence[Point], of: str) -> str:
    """A sweep for people: a row for each point."""
    columns = _COLUMNS | ({} if of in _COLUMNS else {of: (of, "{:.6g}")})
    rows = [[*(axis.name for axis in axes), *(head for head, _ in columns.values()), "bottleneck"]]
    said = dict[str, None]()
    for point in points:
        if point.answer is None:
            rows.append([*point.labels, f"rejected: {point.refused}"])
            continue
        numbers = [(point.number(key), form) for key, (_, form) in columns.items()]
        cells = ["-" if value is None else form.format(value) for value, form in numbers]
        warnings = point.answer["warnings"]
        warned = f"; {len(warnings)} warning(s)" if warnings else ""
        rows.append([*point.labels, *cells, f"{binding_text(point.answer)}{warned}"])
        said |= {f"warning: {', '.join(point.labels)}: {each}": None for each in warnings}
    cells_by_column = itertools.zip_longest(*(row[:-1] for row in rows), fillvalue="")
    widths = [max(map(len, column)) for column in cells_by_column]
    lines = [
        "  ".join([*(f"{c:>{w}}" for c, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    ]
    return "\n".join([*lines, *said])

"""A plan of faults in a file, TOML. Either what to draw from a seed,

    seed = 7
    kill = ["node", "worker"]
    stall = ["switch"]
    count = 5
    every = "30s"               # or every_steps = 8
    for = "2s"                  # how long a stall lasts

or each fault by itself, in their order:

    [[fault]]
    kill = "node"
    after_steps = 12            # and, if wished, after = "40ms" more
    [[fault]]
    stall = "worker-1"
    after = "90s"               # of the beginning
    for = "5s"

and with both, for a run that is started with it, the faults of its emulated links:

    [links]
    loss = 0.01
    duplicate = 0.05
    reorder = 16
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import parse_ns
from luwu.base.suggestion import suggestion
from luwu.chaos.plan import KINDS, STALL_NS, Cast, Fault, Moment, Wish

LINK_KEYS: Final = ("loss", "duplicate", "reorder")
_WISHES: Final = ("seed", "kill", "stall", "count", "every", "every_steps", "for")
_OF_FAULT: Final = (*KINDS, "after_steps", "after", "for")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The content of a plan's file."""

    wish: Wish | None = None
    faults: tuple[Fault, ...] = ()
    """Those that are written out; their processes may still be `worker` for the only one."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Flag of `luwu run` -> its value."""


def read_plan(file: Path, *, seed: int | None = None) -> PlanFile:
    """Read a plan; `seed` overrides its own. Raises ConfigError."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"plan: cannot read {file}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"plan: {file} is not TOML: {exc}") from exc
    where = f"plan {file}"
    links = _links(document.pop("links", {}), where)
    tables = document.pop("fault", None)
    _check_names(document, _WISHES, where)
    if tables is not None:
        if set(document) - {"seed"}:
            raise ConfigError(
                f"{where}: {', '.join(document)} is for random faults, and [[fault]] lists the "
                "faults; omit one of them"
            )
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise ConfigError(f"{where}: write [[fault]] for each fault")
        faults = [_fault(each, f"{where}: fault {n}") for n, each in enumerate(tables, 1)]
        return PlanFile(faults=tuple(faults), links=links)
    return PlanFile(wish=_wish(document, where, seed), links=links)


def resolve(faults: tuple[Fault, ...], cast: Cast) -> tuple[Fault, ...]:
    """Faults with the names of a job's processes. Raises ConfigError if a name is ambiguous."""
    resolved = []
    for each in faults:
        meant = cast.of(each.process)
        if len(meant) > 1:
            raise ConfigError(
                f"{each.kind} = {each.process!r} may be any of {', '.join(meant)}; name one"
            )
        resolved.append(
            Fault(kind=each.kind, process=meant[0], moment=each.moment, stall_ns=each.stall_ns)
        )
    return tuple(resolved)


def _wish(document: Mapping[str, Any], where: str, seed: int | None) -> Wish:
    return Wish(
        kill=_names(document.get("kill", []), f"{where}: kill"),
        stall=_names(document.get("stall", []), f"{where}: stall"),
        count=_whole(document.get("count", Wish().count), f"{where}: count", least=1),
        every_ns=_positive_ns(document.get("every"), f"{where}: every"),
        every_steps=None if "every_steps" not in document
        else _whole(document["every_steps"], f"{where}: every_steps", least=1),
        stall_ns=_positive_ns(document.get("for"), f"{where}: for") or STALL_NS,
        seed=_whole(document.get("seed", 0), f"{where}: seed") if seed is None else seed,
    )  # fmt: skip


def _fault(row: Mapping[str, Any], where: str) -> Fault:
    _check_names(row, _OF_FAULT, where)
    kinds = [kind for kind in KINDS if kind in row]
    if len(kinds) != 1:
        raise ConfigError(f"{where}: give either kill or stall, with the process")
    kind = kinds[0]
    (process,) = _names([row[kind]], f"{where}: {kind}")
    if "after" not in row and "after_steps" not in row:
        raise ConfigError(f'{where}: give the time: after_steps = 12, or after = "30s"')
    if kind == "kill" and "for" in row:
        raise ConfigError(f"{where}: a kill has no duration; omit for, or write stall")
    step = None
    if "after_steps" in row:
        step = _whole(row["after_steps"], f"{where}: after_steps")
    delay_ns = parse_ns(str(row.get("after", "0")), name=f"{where}: after")
    stall_ns = _positive_ns(row.get("for"), f"{where}: for") or STALL_NS
    return Fault(
        kind=kind,
        process=process,
        moment=Moment(step=step, delay_ns=delay_ns),
        stall_ns=stall_ns if kind == "stall" else 0,
    )


def _links(values: Any, where: str) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: links is a table: [links] and loss = 0.01")
    _check_names(values, LINK_KEYS, f"{where}: links")
    return {name: str(value) for name, value in values.items()}


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(
                f"{where}: unknown key {name!r}{suggestion(name, known)}; there are "
                f"{', '.join(known)}",
                code="E201",
            )


def _names(values: Any, where: str) -> tuple[str, ...]:
    said = [values] if isinstance(values, str) else values
    if not isinstance(said, list) or not all(isinstance(each, str) for each in said):
        raise ConfigError(f'{where} is {values!r:.60}; write ["node", "worker-1"]')
    return tuple(said)


def _whole(value: Any, where: str, *, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(f"{where} is {value!r:.40}, not a whole number of at least {least}")
    return value


def _positive_ns(value: Any, where: str) -> int | None:
    if value is None:
        return None
    nanoseconds = parse_ns(str(value), name=where)
    if nanoseconds == 0:
        raise ConfigError(f"{where} is {value!r}; give a time above 0, such as 2s")
    return nanoseconds

"""Parts that all answers have: what they depend on, sources of numbers, memory."""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import words
from luwu.base.quantities import format_bytes
from luwu.predict.ask.question import AnyQuestion
from luwu.predict.ask.sensitivity import elasticities, limits
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA: Final = 3
"""3: neither break-even tokens nor steps by other software."""
SHOWN_MAX: Final = 8


def what_it_hangs_on(question: AnyQuestion) -> dict[str, Any]:
    """Inputs with an effect, those without, and those of which a tenth less cannot be."""
    found = elasticities(question)
    return {
        "elasticities": {name: value for name, value in found.items() if value},
        "no_effect": [name for name, value in found.items() if not value],
        "limits": limits(question),
    }


def sources_of(catalogue: Catalogue, places: tuple[str, ...]) -> dict[str, str]:
    """Sources of all numbers of some entries: `device.A100-40.`"""
    return {
        place: f"{known.source} ({known.tag}, {known.date})"
        for place, known in catalogue.known.items()
        if place.startswith(places)
    }


def parts_text(parts: dict[str, float], whole_s: float) -> list[str]:
    """Seconds by what they go to, a line each, for people."""
    unit, scale = ("s", 1.0) if whole_s >= 1 else ("ms", 1e3)
    return [
        f"  {words(name):<24} {seconds * scale:9.3f} {unit}  {seconds / whole_s:6.1%}"
        for name, seconds in parts.items()
        if seconds
    ]


def memory_text(document: dict[str, Any], what: str = "a device") -> str:
    """Uses of memory, as text."""
    memory, has = document["memory_bytes"], document["memory_bytes_max"]
    said = ", ".join(f"{words(name)} {format_bytes(nbytes)}" for name, nbytes in memory.items())
    known = "" if has is None else f"; it has {format_bytes(has)}"
    return f"memory of {what}: {said}{known}"


def hangs_text(document: dict[str, Any], what: str) -> list[str]:
    """Elasticities, look-ups beyond what was measured, warnings, for people."""
    shown = list(document["elasticities"].items())[:SHOWN_MAX]
    lines = [f"1 % more of this changes {what} by:"]
    lines += [f"  {name:<40} {value:+.2f} %" for name, value in shown]
    if document["no_effect"]:
        lines.append(f"without effect: {', '.join(document['no_effect'])}")
    if document["limits"]:
        lines.append(f"a tenth less or more of this cannot be: {', '.join(document['limits'])}")
    lines += [
        f"beyond what was measured: {name}: {said}"
        for name, said in document["extrapolated"].items()
    ]
    return lines + [f"warning: {each}" for each in document["warnings"]]

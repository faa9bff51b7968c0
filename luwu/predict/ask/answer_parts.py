"""Parts that all answers have: sources of numbers, memory, warnings."""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import words
from luwu.base.quantities import format_bytes
from luwu.predict.hardware.catalogue import Catalogue

SCHEMA: Final = 4
"""4: no elasticities, sources and savings; 3: no break-even tokens, no steps by other software."""


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


def doubts_text(document: dict[str, Any]) -> list[str]:
    """Look-ups beyond what was measured, and warnings, for people."""
    lines = [
        f"beyond what was measured: {name}: {said}"
        for name, said in document["extrapolated"].items()
    ]
    return lines + [f"warning: {each}" for each in document["warnings"]]

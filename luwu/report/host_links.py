"""Bytes on the links between hosts, as a table: a row per link and direction."""

from __future__ import annotations

from typing import Any

from luwu.base.quantities import format_bytes


def link_rows(document: dict[str, Any]) -> list[list[str]]:
    """Header and rows; none where the arms did not run on hosts. Bytes are those of the run."""
    arms = [arm for arm in document["arms"] if arm.get("host_links")]
    if not arms:
        return []
    table = [["link, kernel's count (our payload)", *(arm["name"] for arm in arms)]]
    for index, first in enumerate(arms[0]["host_links"]):
        for way in ("up", "down"):
            cells = [_cell(arm["host_links"][index], way) for arm in arms]
            table.append([f"{first['link']}, {way}", *cells])
    bounds = [arm["host_links_bound_step_seconds"] for arm in arms]
    if any(bound is not None for bound in bounds):
        cells = ["-" if bound is None else f"{bound * 1000:.1f} ms" for bound in bounds]
        table.append(["step time, bound by the busiest", *cells])
    return table


def _cell(link: dict[str, Any], way: str) -> str:
    kernel, ours = link["kernel"][way], link[f"{way}_bytes"]
    return format_bytes(kernel) + ("" if ours is None else f" ({format_bytes(ours)})")

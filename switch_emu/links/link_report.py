"""Traffic of emulated links, as summaries write it: a row per link and direction.

    {"link": "worker (ranks 0)", "direction": "up", "label": "emulated",
     "messages": {"sent": 12, "repeated": 0, "received": 11, "dropped": 1, "lost": 1, ...},
     "bytes": {the same}}

For messages and for bytes, sent + repeated = received + dropped + in_flight, and dropped is
lost + overflowed + cut. Bytes copied on the host are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from luwu.transport.interface import Transport
from switch_emu.links.link import LinkCounters
from switch_emu.links.linked import LinkedTransport

KINDS: Final = (
    "sent", "repeated", "received", "dropped", "lost", "overflowed", "cut", "in_flight",
)  # fmt: skip


def link_rows(
    transport: Transport, role: str, name_of: Callable[[str], str]
) -> list[dict[str, Any]]:
    """A row for each link and direction; none where nothing is emulated.

    `role`: the role at their lower ends; `name_of`: the name of a peer. Connections of one name are
    added up, such as those of a restarted worker.
    """
    if not isinstance(transport, LinkedTransport):
        return []
    totals: dict[tuple[str, str], LinkCounters] = {}
    for peer, up, down in transport.links():
        for way, counters in (("up", up), ("down", down)):
            totals.setdefault((f"{role} ({name_of(peer)})", way), LinkCounters()).add(counters)
    return [_row(name, way, counters) for (name, way), counters in sorted(totals.items())]


def _row(name: str, way: str, counters: LinkCounters) -> dict[str, Any]:
    row: dict[str, Any] = {"link": name, "direction": way, "label": "emulated"}
    for unit in ("messages", "bytes"):
        row[unit] = {kind: getattr(getattr(counters, kind), unit) for kind in KINDS}
    return row

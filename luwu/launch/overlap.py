"""How much of the update was hidden behind the backward: read from the spans of node and workers.

A page is *updated early* if its update ended before the last push of its step began; the share of
early pages is over all steps. All processes of one host share the monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def spans(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """The spans of one name in a file of events; a line cut short by a kill is passed over."""
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return
    mark = f'"name":"{name}"'
    with file:
        for line in file:
            if mark not in line:
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("name") == name and "end_ns" in record:
                yield record


def updated_before_last_push_ratio(events: Path) -> float | None:
    """Share of pages updated before their step's last push began; None without spans."""
    last_push_ns: dict[int, int] = {}
    for path in sorted(events.glob("worker-*.jsonl")):
        for span in spans(path, "push"):
            step, start_ns = span["step"], span["start_ns"]
            last_push_ns[step] = max(start_ns, last_push_ns.get(step, start_ns))
    updated = early = 0
    for span in spans(events / "node.jsonl", "update"):
        if span.get("step") in last_push_ns:
            updated += 1
            early += span["end_ns"] < last_push_ns[span["step"]]
    return early / updated if updated else None

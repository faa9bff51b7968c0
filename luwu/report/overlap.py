"""The share of updates hidden behind the backward, from the spans of node and workers.

A page is *updated early* if its update ended before the last push of its step began; the share of
early pages is over all steps. All processes of one host share the monotonic clock.
"""

from __future__ import annotations

from pathlib import Path

from luwu.report.event_files import spans


def updated_before_last_push_ratio(events: Path) -> float | None:
    """Share of pages updated before their step's last push began; None without spans."""
    last_push_ns: dict[int, int] = {}
    for path in sorted(events.glob("worker-*.jsonl")):
        for span in spans(path, "push"):
            step, start_ns = span["step"], span["start_ns"]
            last_push_ns[step] = max(start_ns, last_push_ns.get(step, start_ns))
    updated = early = 0
    for path in sorted(events.glob("node*.jsonl")):
        for span in spans(path, "update"):
            if span.get("step") in last_push_ns:
                updated += 1
                early += span["end_ns"] < last_push_ns[span["step"]]
    return early / updated if updated else None

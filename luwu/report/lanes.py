"""One step as lanes: a row per engine, when each was busy, and what limits the step.

A step of a run is measured (`luwu.report.recent`). This module is pure: spans in, lanes and a
verdict out.

    compute   forward and backward of one worker, without waits and copies inside them
    wait      the worker's training thread waits for weights
    pull      weights asked for that have not arrived
    push      gradients sent that the switch has not acknowledged
    up, down  the link of a host with a switch of its own sends, receives; at its usual rate
    sum       the switch sums
    update    the node's processors update pages
    read      the node reads pages
    write     the node writes pages, and flushes them when the step is decided

All but pull and push are engines, of which one may limit the step: pulls and pushes are under way
while others work, so a lane of theirs that is always busy says nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from luwu.base.quantities import format_seconds
from luwu.report.intervals import Intervals, union

COMPUTE, WAIT, OTHERS, UP, DOWN = "compute", "wait", "others", "up", "down"
DISK: Final = "disk"
"""The disk, shared by the lanes read and write."""
LIMITS: Final = (COMPUTE, UP, DOWN, "sum", "update", DISK)
LIMIT_RATIO: Final = 0.5
"""An engine that is busy for less of a step alone does not limit it."""
TITLES: Final = {
    COMPUTE: "compute", WAIT: "waits for weights", "pull": "pull", "push": "push",
    UP: "link: up", DOWN: "link: down",
    "sum": "switch: sum", "update": "node: update", "read": "node: read", "write": "node: write",
}  # fmt: skip
"""The lanes from the top, and what people call them."""
_BOUND: Final = {
    COMPUTE: "Compute-bound: compute is busy", UP: "Link-bound: this host sends for",
    DOWN: "Link-bound: this host receives for", "sum": "Switch-bound: the switch sums for",
    "update": "Update-bound: the node's processors update pages for",
    DISK: "Disk-bound: the node reads or writes for",
}  # fmt: skip
_MEANWHILE: Final = {**TITLES, OTHERS: "other workers compute"}
_MERGED_RATIO: Final = 1 / 1500
"""Pieces nearer than this share of a step are one to the eye."""

Span = tuple[float, float]
Piece = tuple[float, float, bool]
"""A stretch of work, in seconds from the start of the step; true if it is forward, which is pale
beside backward."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """A step."""

    step: int
    length_s: float
    pieces: Mapping[str, Sequence[Piece]]
    """When each engine was busy, by name."""
    busy: Mapping[str, float]
    """The share of the step in which each was busy; of the disk, either read or write."""
    while_waiting: Mapping[str, float]
    """Shares of the step in which the worker waited for weights and an engine was busy, or other
    workers computed."""

    @property
    def limit(self) -> str:
        """What limits the step: an engine, or `wait` where none is busy for half of it."""
        busiest = max(LIMITS, key=lambda engine: self.busy[engine])
        return busiest if self.busy[busiest] >= LIMIT_RATIO else WAIT

    def is_limit(self, engine: str) -> bool:
        """True for the lanes of what limits the step."""
        return engine == self.limit or (self.limit == DISK and engine in ("read", "write"))

    @property
    def verdict(self) -> str:
        """The step in two sentences."""
        return f"{format_seconds(self.length_s)}. {self._bound_text()}"

    def _bound_text(self) -> str:
        waits, limit = self.busy[WAIT], self.limit
        if limit == COMPUTE:
            others = self.while_waiting.get(OTHERS, 0.0) > max(0.02, waits / 2)
            why = ", mostly while other workers still compute" if others else ""
            return (
                f"{_BOUND[limit]} {self.busy[limit]:.0%}; {waits:.0%} is spent waiting for "
                f"weights{why}."
            )
        if limit != WAIT:
            return (
                f"{_BOUND[limit]} {self.busy[limit]:.0%} of it; workers wait for weights for "
                f"{waits:.0%}."
            )
        compute = self.busy[COMPUTE]
        rest = max(0.0, 1 - compute - waits)
        text = f"Compute is busy {compute:.0%}, waits for weights take {waits:.0%}"
        if rest > max(compute, waits):
            return f"{text}: most of the step is spent outside of forward and backward."
        doing = sorted(self.while_waiting.items(), key=lambda each: -each[1])[:2]
        during = " and ".join(
            f"{_MEANWHILE[name]} {ratio:.0%}" for name, ratio in doing if ratio > 0.02
        )
        if during:
            return f"{text}; meanwhile: {during}. No single engine limits the step."
        return f"{text}: on messages, on each other, or for a turn on a core."

    def document(self) -> dict[str, Any]:
        """The step as JSON."""
        return {
            "step": self.step,
            "length_s": self.length_s,
            "limit": self.limit,
            "verdict": self.verdict,
            "lanes": [
                {
                    "engine": engine,
                    "busy_ratio": self.busy[engine],
                    "is_limit": self.is_limit(engine),
                    "pieces": [list(piece) for piece in pieces],
                }
                for engine, pieces in self.pieces.items()
            ],
            "while_waiting": dict(self.while_waiting),
            "disk_ratio": self.busy[DISK],
        }


def make_lanes(
    step: int, length_s: float, spans: Mapping[str, Sequence[Span]], *,
    pale: Sequence[Span] = (), stolen: Sequence[Span] = (), others: Sequence[Span] = (),
) -> Lanes:  # fmt: skip
    """Lanes of spans by engine; times in seconds from the step's start, and what lies outside of it
    is cut off. `pale`: those of compute that are forward. `stolen`: copies that the training thread
    makes inside of compute. `others`: compute of other workers."""
    length_ns = round(length_s * 1e9)
    busy = {name: _intervals(spans.get(name, ()), length_ns) for name in TITLES}
    waits = busy[WAIT]
    compute = busy[COMPUTE].without(waits).without(_intervals(stolen, length_ns))
    forward = _intervals(pale, length_ns)
    busy[COMPUTE] = compute
    pieces = {name: _pieces(found, length_ns) for name, found in busy.items()}
    pieces[COMPUTE] = sorted([
        *_pieces(compute.within(forward), length_ns, is_pale=True),
        *_pieces(compute.without(forward), length_ns),
    ])  # fmt: skip
    beside = {name: busy[name] for name in (UP, DOWN, "sum", "update", "read", "write")}
    beside[OTHERS] = _intervals(others, length_ns)
    busy[DISK] = _intervals([*spans.get("read", ()), *spans.get("write", ())], length_ns)
    return Lanes(
        step,
        length_s,
        pieces,
        {name: found.total_ns / length_ns for name, found in busy.items()},
        {name: waits.within(each).total_ns / length_ns for name, each in beside.items()},
    )


def _intervals(spans: Sequence[Span], length_ns: int) -> Intervals:
    """What spans cover of the step."""
    times_S2 = np.clip(np.rint(np.reshape(spans, (-1, 2)) * 1e9).astype(np.int64), 0, length_ns)
    times_S2 = times_S2[times_S2[:, 1] > times_S2[:, 0]]
    return union(times_S2[:, 0], times_S2[:, 1])


def _pieces(found: Intervals, length_ns: int, *, is_pale: bool = False) -> list[Piece]:
    """With gaps closed that cannot be seen, so that a lane has a thousand pieces at most."""
    shown = union(found.starts_I, found.ends_I, gap_ns=int(length_ns * _MERGED_RATIO))
    pairs = zip((shown.starts_I / 1e9).tolist(), (shown.ends_I / 1e9).tolist(), strict=True)
    return [(start_s, end_s, is_pale) for start_s, end_s in pairs]

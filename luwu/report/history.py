"""What happened in a run, from the instants of its processes.

When each step was decided, faults and restarts at their steps, and the numbers that the script
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from luwu.base.events import CLOCK, SCALARS
from luwu.base.quantities import format_bytes
from luwu.report.chart import StepFlag
from luwu.report.recent import ProcessEvents

FLAGS_MAX: Final = 50
"""A run with more faults than these shows the first of them, and how many there were."""

_TEXTS: Final = {
    "node.abort": "the step was restarted: {text}",
    "node.skipped": "the step was skipped: its gradient norm is {grad_norm}",
    "node.too_few": "too few workers are left: {ranks}; {least} are needed",
    "switch.late": "ranks {ranks} are late: the step usually takes {usual_s:.3g} s",
    "switch.expelled": "ranks {ranks} were rejected: {text}",
}
"""Instants that are flags, by name."""


@dataclass(slots=True)
class History:
    """Filled by `take`, as an `OnInstant`."""

    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    """Numbers that rank 0 recorded with `luwu.log`, by name and step."""
    flags_count: int = 0
    degraded: dict[str, Any] | None = None
    """The optimizer nodes that the job goes on without: `nodes`, since which `step`, and a `text`
    that says why."""
    _decided: dict[int, dict[int, int]] = field(default_factory=dict)
    """Wall time of each decision, by optimizer node and step."""
    _flags: list[tuple[int, str]] = field(default_factory=list)
    """Wall time and text."""

    def take(self, process: ProcessEvents, record: Mapping[str, Any]) -> None:
        """Take in an instant."""
        name = record["name"]
        if name == "node.step":
            at_ns = process.unix_ns(record["at_ns"])
            self._decided.setdefault(process.file.rank, {})[record["step"]] = at_ns
        elif name == SCALARS and process.file.rank == 0:
            for key, value in record["values"].items():
                self.scalars.setdefault(key, {})[record["step"]] = float(value)
        elif name == CLOCK:
            if process.starts_count > 1:
                self._flag(process, record, f"{process.file.title} was started again")
        elif name == "switch.degraded":
            left_out = record["left_out"]
            nodes = f"node{'s' * (len(left_out) > 1)} {', '.join(map(str, left_out))}"
            text = f"the job goes on without optimizer {nodes}: {record['text']}"
            self.degraded = {"nodes": left_out, "step": record["step"], "text": text}
            self._flag(process, record, text)
        elif name == "switch.filling":
            text = (
                f"optimizer node {record['node']} is being filled by the others "
                f"({format_bytes(record['bytes'])})"
            )
            if self.degraded is not None:
                self.degraded = {**self.degraded, "text": f"{self.degraded['text']}; {text}"}
            self._flag(process, record, text)
        elif name == "switch.filled":
            if not record["left_out"]:
                self.degraded = None
            self._flag(process, record, f"optimizer node {record['node']} has all pages again")
        elif name in _TEXTS and (process.file.rank == 0 or process.file.kind != "node"):
            self._flag(process, record, _TEXTS[name].format_map(record))

    @property
    def decided_ns(self) -> dict[int, int]:
        """When each step was decided, by wall time: by the first node that has it, as any node
        may be lost.
        """
        merged: dict[int, int] = {}
        for node in sorted(self._decided, reverse=True):
            merged |= self._decided[node]
        return merged

    @property
    def first_step(self) -> int:
        """The first step that this run decided."""
        return min(self.decided_ns, default=0)

    @property
    def seconds(self) -> list[float]:
        """The time of each step but the first: from one decision to the next."""
        ordered = [at for _, at in sorted(self.decided_ns.items())]
        return [(later - earlier) / 1e9 for earlier, later in pairwise(ordered)]

    def flags(self) -> list[StepFlag]:
        """What happened, at the first step that was decided after it."""
        ordered = sorted(self.decided_ns.items())
        found = []
        for at_ns, text in sorted(self._flags):
            after = next((step for step, decided_ns in ordered if decided_ns >= at_ns), None)
            last = ordered[-1][0] if ordered else 0
            found.append(StepFlag(last if after is None else after, text))
        return found

    def _flag(self, process: ProcessEvents, record: Mapping[str, Any], text: str) -> None:
        self.flags_count += 1
        if len(self._flags) < FLAGS_MAX:
            self._flags.append((process.unix_ns(record["at_ns"]), text))

"""The document of a run: all that its status and its report show.

It is made from the files of the run directory, so it is the same for a run that is under way, that
has ended, that failed and that was stopped. A `Watch` reads what was appended since it last looked.

    state       running | finished | failed | stopped | gone | starting, and a text about it
    steps       the time of each step, from one decision to the next; faults and restarts as flags
    hosts       of `luwu up --hosts`, while it is under way: their ranks; also on each of them
    degraded    the optimizer nodes that the job goes on without
    step        the typical one of the last 20 steps as lanes; while the run is under way, the last
                one that ended
    memory      of each process, beside its budget
    links       bytes on each link of switch and node, and of emulated ones the rate they may have
    scalars     what rank 0 recorded with `luwu.log`
    comparison  result.json of `luwu compare`
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from luwu.base import own
from luwu.base.clock import unix_ns
from luwu.base.events import CLOCK, SCALARS
from luwu.base.foreign import taking
from luwu.base.json_file import read_json
from luwu.base.links import parse_links
from luwu.base.quantities import format_bytes
from luwu.base.tree import parse_ranks, ranges_text, tree_of_hosts
from luwu.join.connection import Connection, read_connection
from luwu.launch.processes.children import command_of, is_of_run
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.chart import StepFlag
from luwu.report.recent import (
    ProcessEvents,
    RecentEvents,
    ended_steps,
    lanes_of_step,
    step_starts_ns,
    typical_step,
)

FLAGS_MAX: Final = 50
"""A run with more faults than these shows the first of them, and how many there were."""

_TEXTS: Final = {
    "node.too_few": "too few workers are left: {ranks}; {least} are needed",
    "switch.late": "ranks {ranks} are late: the step usually takes {usual_s:.3g} s",
    "switch.expelled": "ranks {ranks} were rejected: {text}",
}
"""Instants that are flags, by name."""


@dataclass(slots=True)
class History:
    """When each step was decided, faults and restarts, and the numbers that the script recorded.
    Filled by `take`, as an `OnInstant`."""

    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    """Numbers that rank 0 recorded with `luwu.log`, by name and step."""
    ranks: str = ""
    """Those whose gradients are in the last decided step."""
    aborted: Mapping[str, Any] | None = None
    """The last abort, until a step is decided: from which `step` on which `ranks` count."""
    degraded: dict[str, Any] | None = None
    """The optimizer nodes that the job goes on without: `nodes`, since which `step`, and a `text`
    that says why."""
    _decided: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    """Wall time of each decision, by kind of process and number of a node, and step."""
    _flags: dict[object, tuple[int, str]] = field(default_factory=dict)
    """Wall time and text, by what several processes know it by."""

    def take(self, process: ProcessEvents, record: Mapping[str, Any]) -> None:
        """Take in an instant."""
        name = record["name"]
        if name in ("node.step", "switch.step", "worker.step"):
            step, kind = record["step"], process.file.kind
            decided = self._decided.setdefault((kind, process.file.rank * (kind == "node")), {})
            decided[step] = process.unix_ns(record["at_ns"])
            self.ranks, self.aborted = record.get("ranks", self.ranks), None
            if not record.get("applied", True):
                norm = f": its gradient norm is {record['grad_norm']}" if kind == "node" else ""
                self._flag(process, record, f"the step was skipped{norm}", ("step", step))
        elif name in ("node.abort", "switch.abort"):
            self.aborted, attempt = record, ("attempt", record.get("attempt"))
            self._flag(process, record, f"the step was restarted: {record['text']}", attempt)
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
        for kind in sorted(self._decided, reverse=True):  # what the first node records counts most
            merged |= self._decided[kind]
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

    @property
    def flags_count(self) -> int:
        """The number of faults and restarts."""
        return len(self._flags)

    def flags(self) -> list[StepFlag]:
        """Faults and restarts, each at the first step that was decided after it."""
        ordered = sorted(self.decided_ns.items())
        found = []
        for at_ns, text in sorted(self._flags.values())[:FLAGS_MAX]:
            after = next((step for step, decided_ns in ordered if decided_ns >= at_ns), None)
            last = ordered[-1][0] if ordered else 0
            found.append(StepFlag(last if after is None else after, text))
        return found

    def _flag(
        self, process: ProcessEvents, record: Mapping[str, Any], text: str, known_by: object = None
    ) -> None:  # fmt: skip
        flag = process.unix_ns(record["at_ns"]), text
        self._flags[known_by or flag] = flag


SCHEMA: Final = 5
"""5: without the step of the slowest worker."""
RATE_STEPS: Final = 20
"""Period over which the rate of steps is taken."""
LATE_RATIO: Final = 4
"""A step that takes so many times the median is late."""
LATE_S: Final = 2.0
"""A step that takes fewer seconds is never late."""

_STOPPED_CODE: Final = 130


class Watch:
    """Follows a run through its files."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._history = History()
        self._events = RecentEvents(run.path / "events", self._history.take)

    def document(self) -> dict[str, Any]:
        """The run as its files say now. Raises ConfigError if they are not what a run writes."""
        with taking(self.run.path):
            return self._document()

    def _document(self) -> dict[str, Any]:
        self._events.read()
        processes = processes_of(self.run)
        outcome = read_json(self.run.file("outcome.json"))
        state, text = state_now(self.run, processes, outcome)
        is_running = state == "running"
        files = (self.run.connect_file, *sorted(self.run.path.glob("connect-*.json")))
        connection = next(filter(None, map(read_connection, files)), None)
        counted = counters(self.run)
        resolved: dict[str, Any] = {}
        for path in sorted(self.run.path.glob("resolved*.json")):  # of luwu up --role, one of each
            resolved |= (read_json(path) or {}).get("keys", {})
        return {
            "schema": SCHEMA,
            "run": str(self.run.path),
            "state": state,
            "text": text,
            "outcome": outcome,
            "security": None if connection is None else connection.security,
            "at_unix_s": unix_ns() / 1e9,
            "steps": self._steps(resolved, is_running=is_running),
            "step": self._step(is_running=is_running),
            "waits_for": self._waits_for(connection) if is_running else None,
            "degraded": self._history.degraded,
            "hosts": [] if connection is None else self._hosts(connection),
            "processes": processes,
            "memory": self._memory(processes),
            "links": self._links(resolved, counted),
            "counters": counted,
            "scalars": {
                name: {"steps": sorted(values), "values": [values[k] for k in sorted(values)]}
                for name, values in self._history.scalars.items()
            },
            "keys": {name: each["value"] for name, each in resolved.items()},
            "keys_set": sorted(n for n, each in resolved.items() if each["origin"] != "default"),
            "environment": {
                "host": platform.node(),
                "system": f"{platform.system()} {platform.release()}",
                "cpu_count": os.cpu_count(),
                "python": platform.python_version(),
                "luwu": own.version(),
            },
            "comparison": read_json(self.run.file("result.json")),
        }

    # ---------------------------------------------------------------------- parts of it

    def _steps(self, resolved: Mapping[str, Any], *, is_running: bool) -> dict[str, Any]:
        decided, seconds = self._history.decided_ns, self._history.seconds
        recent = seconds[-RATE_STEPS:]
        per_s = len(recent) / sum(recent) if recent and sum(recent) > 0 else None
        wanted = resolved.get("steps", {}).get("value")
        total = int(wanted) if wanted else None
        done = max(decided, default=-1) + 1
        left = None
        if is_running and per_s and total is not None:
            left = max(0, total - done) / per_s
        return {
            "first": self._history.first_step + 1,  # the first has no decision before it
            "seconds": seconds,
            "median_s": statistics.median(seconds) if seconds else None,
            "done": done,
            "total": total,
            "per_s": per_s,
            "left_s": left,
            "last_decided_unix_s": max(decided.values(), default=0) / 1e9 or None,
            "flags": [asdict(flag) for flag in self._history.flags()],
            "flags_count": self._history.flags_count,
        }

    def _step(self, *, is_running: bool) -> dict[str, Any] | None:
        steps = ended_steps(self._events)
        if not steps:
            return None
        seconds = self._history.seconds
        usual_s = statistics.median(seconds) if seconds else None
        step = steps[-1] if is_running else typical_step(self._events, steps, usual_s)
        return lanes_of_step(self._events, step).document()

    def _waits_for(self, connection: Connection | None) -> str | None:
        """Which processes are late, if a step takes much longer than those before it, or that the
        ranks of this host are left out; None if nothing is unusual."""
        leaves = connection.leaves if connection is not None and connection.hosts > 1 else ()
        here = [leaf.ranks for leaf in leaves]
        aborted = self._history.aborted or {}
        if here and "ranks" in aborted and not _ranks(*here) & _ranks(aborted["ranks"]):
            return f"ranks {','.join(here)} of this host are left out since step {aborted['step']}"
        decided, seconds = self._history.decided_ns, self._history.seconds
        if not decided:
            return None
        usual = statistics.median(seconds[-RATE_STEPS:]) if seconds else 0.0
        since_s = (unix_ns() - max(decided.values())) / 1e9
        if since_s < max(LATE_S, LATE_RATIO * usual):
            return None
        begun = {
            each.file.title: max(step_starts_ns(each), default=-1)
            for each in self._events.of("worker")
        }
        latest = max(begun.values(), default=-1)
        behind = [name for name, step in begun.items() if step < latest]
        whom = ", ".join(behind) or ("other hosts" if here else "all processes")
        return f"no step was decided for {since_s:.0f} s; waiting for {whom}"

    def _hosts(self, connection: Connection) -> list[dict[str, str]]:
        """Where each host has a switch: the ranks of each, and which are in the last step."""
        tree = tree_of_hosts(connection.world_size, connection.hosts)
        last = _ranks(self._history.ranks)
        return [
            {
                "name": place.name, "ranks": ranges_text(place.workers),
                "ranks_in_last_step": ranges_text(last & set(place.workers)),
            }
            for place in tree.below(tree.root)
        ]  # fmt: skip

    def _memory(self, processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """By process: what it takes, what it took at most, and its budget."""
        peaks: dict[str, int] = {}
        now: dict[str, int] = {}
        for path in sorted(self.run.path.glob("memory*.json")):
            found = read_json(path) or {"peak_bytes": {}, "now_bytes": {}}
            peaks |= found["peak_bytes"]
            now |= found["now_bytes"]
        alive = {each["name"] for each in processes if each["is_alive"]}
        return [
            {
                "name": name,
                "now_bytes": now.get(name) if name in alive else None,
                "peak_bytes": peak,
                "budget_bytes": budget_bytes(self.run, name),
            }
            for name, peak in sorted(peaks.items(), key=lambda each: _place(each[0]))
        ]

    def _links(
        self, resolved: Mapping[str, Any], counted: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The links of switch and node; of the busier direction, as links are full duplex."""
        steps = max(1, len(self._history.decided_ns))
        asked = parse_links(resolved.get("link", {}).get("value") or "none")
        found = []
        for name, document in counted.items():
            for link, counts in document.get("links", {}).items():
                sent, received = (
                    counts[f"header_bytes_{way}"] + counts[f"payload_bytes_{way}"]
                    for way in ("sent", "received")
                )
                pair = asked.worker if link.startswith("ranks") else asked.node
                rates = [each for s in (pair.up, pair.down) if (each := s.rate_bytes_per_s)]
                found.append({
                    "process": name, "link": link, "sent_bytes": sent, "received_bytes": received,
                    "bytes_per_step": max(sent, received) / steps,
                    "rate_bytes_per_s": min(rates, default=None),
                    "messages": counts["messages_sent"] + counts["messages_received"],
                    "repeats": counts["repeats_sent"],
                })  # fmt: skip
        return found


def processes_of(run: RunDirectory) -> list[dict[str, Any]]:
    """The processes that a run has now, and whether each is alive."""
    return [
        {
            "name": each.name, "role": each.role, "rank": each.rank, "pid": each.pid,
            "started": each.started, "is_alive": is_of_run(each.pid, run.path.name),
        }
        for each in run.read_processes()
    ]  # fmt: skip


def counters(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """The last counters of each switch and node, by name of the process."""
    files = sorted((run.path / "counters").glob("*.json"))
    return {path.stem: read_json(path) or {} for path in files}


def budget_bytes(run: RunDirectory, name: str) -> int | None:
    """The memory that a switch or node was given; None for a worker."""
    found = read_json(run.role(f"{name}.json")) or {}
    value = found.get("spec", {}).get("memory_budget_bytes")
    return None if value is None else int(value)


def state_now(
    run: RunDirectory, processes: list[dict[str, Any]], outcome: Mapping[str, Any] | None
) -> tuple[str, str]:
    """The state of a run in one word, and in a sentence."""
    is_stopped = outcome is not None and outcome["exit_code"] == _STOPPED_CODE
    if any(each["is_alive"] for each in processes) and (outcome is None or is_stopped):
        return "running", "running"  # one of several commands may have been stopped
    if outcome is None:
        starters = [(read_json(path) or {}).get("pid") for path in run.path.glob("resolved*.json")]
        if any(pid is not None and "luwu" in command_of(pid) for pid in starters):
            return ("running", "running") if processes else ("starting", "starting")
        return "gone", "gone: no process is left, and the end of the run was not recorded"
    if outcome["exit_code"] == 0:
        return "finished", f"finished at {outcome['ended']}"
    if is_stopped:
        return "stopped", f"stopped at {outcome['ended']}: {' '.join(outcome['reason'].split())}"
    reason = str(outcome["reason"]).partition("\n")[0]
    code = outcome.get("code")
    more = f" (luwu explain {code})" if code else ""
    return (
        "failed",
        f"failed at {outcome['ended']} with exit code {outcome['exit_code']}: {reason}{more}",
    )


def _ranks(*texts: str) -> set[int]:
    return {rank for text in texts if text for rank in parse_ranks(text, "ranks")}


def _place(name: str) -> tuple[int, str]:
    kinds = ("worker", "switch", "node")
    return next((i for i, kind in enumerate(kinds) if name.startswith(kind)), 9), name

"""`luwu status`: what the processes of a run are doing, read from its directory.

With --prometheus it answers scrapes of what switch and node have counted, until Ctrl-C.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import sleep
from luwu.base.json_file import read_json
from luwu.base.parsers import whole
from luwu.base.process_memory import private_bytes
from luwu.base.quantities import format_bytes
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.join.connection import read_connection
from luwu.launch.processes.children import is_alive
from luwu.launch.processes.console import tail
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.report.prometheus import serve_metrics

POLL_S: Final = 0.2

VERB: Final = Verb(
    name="status",
    usage="luwu status [--json | --prometheus [HOST:]PORT] [RUN]",
    text="Show the processes of a run and how far it is; the latest run unless one is named.",
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="prometheus", shape="[HOST:]PORT", text="let Prometheus scrape the counts there"),
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    found = RunDirectory.find(Path(parsed.rest[0]) if parsed.rest else None)
    if "prometheus" in parsed.flags:
        return _serve_metrics(found, parsed.flags["prometheus"])
    document = status(found)
    if parsed.has("json"):
        print(json.dumps(document, indent=1))
    else:
        print(status_text(document))
    return 0


def _serve_metrics(found: RunDirectory, where: str) -> int:
    host, _, port_text = where.rpartition(":")
    port = whole(0, 65535)(port_text, "--prometheus")
    with stop_requests() as should_stop:
        bound, close = serve_metrics(host or "127.0.0.1", port, lambda: counters(found))
        print(f"http://{host or '127.0.0.1'}:{bound}/metrics", flush=True)
        try:
            while not should_stop():
                sleep(POLL_S)
        finally:
            close()
    return 0


def status(found: RunDirectory) -> dict[str, Any]:
    """The status of a run, as known now."""
    entries = [entry for path in _process_files(found) for entry in _entries(path)]
    outcome = read_json(found.file("outcome.json"))
    connection = read_connection(found.connect_file)
    processes = [
        {
            "role": entry.role,
            "rank": entry.rank,
            "pid": entry.pid,
            "started": entry.started,
            "alive": is_alive(entry.pid),
            "memory_bytes": private_bytes(entry.pid) if is_alive(entry.pid) else None,
        }
        for entry in entries
    ]
    return {
        "schema": 1,
        "run": str(found.path),
        "state": _state(processes, outcome),
        "outcome": outcome,
        "security": None if connection is None else connection.security,
        "processes": processes,
        "progress": progress(found),
        "counters": counters(found),
    }


def counters(found: RunDirectory) -> dict[str, dict[str, Any]]:
    """The last counters of each switch and node, by name of the process."""
    files = sorted((found.path / "counters").glob("*.json"))
    return {path.stem: read_json(path) or {} for path in files}


def progress(found: RunDirectory) -> dict[str, str] | None:
    """The fields of the last step that a rank 0 printed."""
    logs = sorted((found.path / "logs").glob("*worker-0.log"), key=lambda p: p.stat().st_mtime)
    for log in reversed(logs):
        for line in reversed(tail(log, lines_max=200).splitlines()):
            if "train.step " in line:
                return dict(part.split("=", 1) for part in line.split() if "=" in part)
    return None


def status_text(document: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"run     {document['run']}", f"state   {document['state']}"]
    if document["security"] is not None:
        lines.append(f"security  {document['security']}")
    width = max([7, *(len(each["role"]) for each in document["processes"])])
    for each in document["processes"]:
        memory = "gone" if not each["alive"] else format_bytes(each["memory_bytes"] or 0)
        lines.append(
            f"{each['role']:<{width}} {each['rank']:<3} pid {each['pid']:<8} "
            f"since {each['started']}  {memory}"
        )
    for name, counted in document["counters"].items():
        lines += _counters_lines(name, counted)
    if document["progress"]:
        fields = "  ".join(f"{name} {value}" for name, value in document["progress"].items())
        lines.append(f"last    {fields}")
    return "\n".join(lines)


def _counters_lines(name: str, counted: dict[str, Any]) -> list[str]:
    lines = []
    for link, count in counted["links"].items():
        again = [
            f"{count[key]} {text}"
            for key, text in (("repeats_sent", "said again"), ("duplicates_received", "twice"))
            if count[key]
        ]
        lines.append(
            f"{name:<7} {link}: {_traffic(count, 'received')} in, {_traffic(count, 'sent')} out"
            + "".join(f", {text}" for text in again)
        )
    for key, values in counted["slots"].items():
        if any(values):
            lines.append(f"{name:<7} slots: {key} {min(values)} to {max(values)}")
    held = "  ".join(
        f"{key} {format_bytes(value) if '_bytes' in key else value}"
        for key, value in counted["core"].items()
    )
    return [*lines, f"{name:<7} {held}"]


def _traffic(count: dict[str, int], way: str) -> str:
    nbytes = count[f"header_bytes_{way}"] + count[f"payload_bytes_{way}"]
    return f"{count[f'messages_{way}']} messages, {format_bytes(nbytes)}"


def _process_files(found: RunDirectory) -> list[Path]:
    return sorted(found.path.glob("processes*.json"))


def _entries(path: Path) -> list[ProcessEntry]:
    document = read_json(path) or {"processes": []}
    return [ProcessEntry(**row) for row in document["processes"]]


def _state(processes: list[dict[str, Any]], outcome: dict[str, Any] | None) -> str:
    if any(each["alive"] for each in processes):
        return "running"
    if outcome is None:
        return "gone: no process is left and none said how it ended" if processes else "starting"
    if outcome["exit_code"] == 0:
        return f"finished at {outcome['ended']}"
    reason = str(outcome["reason"]).partition("\n")[0]
    code = outcome.get("code")
    more = f" (luwu explain {code})" if code else ""
    return f"ended at {outcome['ended']} with exit code {outcome['exit_code']}: {reason}{more}"

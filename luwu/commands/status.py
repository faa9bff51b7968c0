"""`luwu status`: what a run does, read from its directory: no process of the run is asked.

--prometheus answers scrapes until Ctrl-C.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from luwu.base import loopback
from luwu.base.clock import sleep
from luwu.base.foreign import taking
from luwu.base.parsers import path, whole
from luwu.base.quantities import format_bytes, format_duration, format_seconds
from luwu.commands import form
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.monitor.watch import Watch
from luwu.report.lanes import TITLES

POLL_S: Final = 0.2
PORT: Final = whole(0, 65535)


def _host_and_port(text: str, name: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, PORT(port, name)


@form.command("status", "luwu status", "luwu status --prometheus 9400")
@click.argument("run_dir", type=form.Value("RUN", path), required=False)
@form.JSON
@click.option(
    "--prometheus",
    type=form.Value("[HOST:]PORT", _host_and_port),
    help="serve metrics to Prometheus",
)
def run(run_dir: Path | None, as_json: bool, prometheus: tuple[str, int] | None) -> int:
    """Show the processes of a run and its progress. RUN is the directory of a run; the default is
    the latest."""
    watched = Watch(RunDirectory.find(run_dir))
    if prometheus is not None:
        from luwu.monitor.prometheus import serve_metrics

        host, port = prometheus
        host = host or loopback.host("or give --prometheus HOST:PORT")
        return _until_stopped(host, serve_metrics(host, port, watched))
    document = watched.document()
    with taking(watched.run.path):
        text = status_text(document)
    return form.show(document, text, as_json=as_json)


def _until_stopped(host: str, served: tuple[int, Callable[[], None]]) -> int:
    port, close = served
    with stop_requests() as should_stop:
        print(f"http://{loopback.bracketed(host)}:{port}/metrics", flush=True)
        try:
            while not should_stop():
                sleep(POLL_S)
        finally:
            close()
    return 0


COLUMNS: Final = 80
BAR: Final = 24
"""Characters of a full bar."""


def status_text(document: Mapping[str, Any]) -> str:
    """The status. No line is longer than 80 characters."""
    lines = [*_head(document), *_processes(document), *_step(document), *_problems(document)]
    return "\n".join(line[:COLUMNS].rstrip() for line in lines)


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"run       {Path(document['run']).name}"
    yield from _wrapped(f"state     {document['text']}")
    if document["security"] is not None:
        yield f"security  {document['security']}"
    steps = document["steps"]
    total = "" if steps["total"] is None else f" of {steps['total']:,}"
    parts = [f"{steps['done']:,} decided{total}"]
    if steps["per_s"] is not None:
        parts.append(f"{steps['per_s']:.3g} steps/s")
    if steps["left_s"] is not None:
        parts.append(f"{format_duration(steps['left_s'])} left")
    yield f"steps     {', '.join(parts)}"
    degraded = document["degraded"]
    if degraded is not None:
        yield from _wrapped(f"DEGRADED  since step {degraded['step']:,} {degraded['text']}")
    last = [
        f"{name} {found['values'][-1]:.5g}"
        for name, found in document["scalars"].items()
        if found["values"]
    ]
    if last:
        yield f"last      {'  '.join(last)}"


def _wrapped(words: str) -> list[str]:
    """A row in as many lines as it takes."""
    return textwrap.wrap(words, COLUMNS, subsequent_indent=" " * 10, break_on_hyphens=False)


def _processes(document: Mapping[str, Any]) -> Iterator[str]:
    for each in document["hosts"]:
        found = each["ranks_in_last_step"] or "none"
        found = "" if found == each["ranks"] else f"; in the last step {found}"
        yield f"{each['name']:<9} ranks {each['ranks']}{found}"
    memory = {row["name"]: row for row in document["memory"]}
    for each in document["processes"]:
        row = memory.get(each["name"])
        text = "gone"
        if each["is_alive"]:
            text = f"pid {each['pid']:<8}"
            if row is not None and row["now_bytes"] is not None:
                text += f"{format_bytes(row['now_bytes']):>11}"
                if row["budget_bytes"] is not None:
                    text += f" (budget {format_bytes(row['budget_bytes'])})"
        yield f"{each['name']:<9} {text}"


def _step(document: Mapping[str, Any]) -> Iterator[str]:
    step = document["step"]
    if step is None:
        return
    yield f"step {step['step']}: {format_seconds(step['length_s'])}"
    for lane in step["lanes"]:
        if lane["pieces"]:
            bar = "#" * round(BAR * lane["busy_ratio"])
            mark = "  < limit" if lane["is_limit"] else ""
            yield f"  {TITLES[lane['engine']]:<18} {lane['busy_ratio']:>4.0%} {bar:<{BAR}}{mark}"


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    steps = document["steps"]
    if document["waits_for"]:
        yield f"WAITING   {document['waits_for']}"
    repeats = sum(row["repeats"] for row in document["links"])
    cores = [each.get("core", {}) for each in document["counters"].values()]
    spilled = sum(core.get("spilled_count", 0) for core in cores)
    counts = [f"{steps['flags_count']} faults, restarts or repeated steps"]
    counts += [f"{repeats:,} requests repeated"] if repeats else []
    counts += [f"{spilled:,} sums spilled to disk"] if spilled else []
    is_none = not steps["flags_count"] and len(counts) == 1
    yield f"problems  {'none' if is_none else ', '.join(counts)}"
    for flag in steps["flags"][-3:]:
        yield f"          step {flag['step']}: {flag['text']}"

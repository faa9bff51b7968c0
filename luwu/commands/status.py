"""`luwu status`: what a run does, read from its directory: no process of the run is asked.

--watch prints it every second, --serve shows it as a page, and --prometheus answers scrapes; all
three run until Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from luwu.base import loopback
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.foreign import taking
from luwu.base.parsers import path, whole
from luwu.commands import form
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.monitor.text import status_text
from luwu.monitor.watch import Watch

POLL_S: Final = 0.2
EVERY_S: Final = 1.0
_TOP: Final = "\x1b[H\x1b[J"
"""Clears a terminal."""

PORT: Final = whole(0, 65535)


def _host_and_port(text: str, name: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, PORT(port, name)


@click.command(
    "status", cls=form.Command, examples=("luwu status --watch", "luwu status --serve 8080")
)
@click.argument("run_dir", type=form.Value("RUN", path), required=False)
@click.option("--all", "has_all", is_flag=True, help="show all counters too")
@click.option("--watch", is_flag=True, help="repeat every second until the run ends, or Ctrl-C")
@click.option(
    "--serve",
    type=form.Value("PORT", PORT),
    help="serve a page at http://127.0.0.1:PORT that follows the run",
)
@form.JSON
@click.option(
    "--prometheus",
    type=form.Value("[HOST:]PORT", _host_and_port),
    help="serve metrics to Prometheus",
)
def run(
    run_dir: Path | None, has_all: bool, watch: bool, serve: int | None, as_json: bool,
    prometheus: tuple[str, int] | None,
) -> int:  # fmt: skip
    """Show the processes of a run and its progress. RUN is the directory of a run; the default is
    the latest."""
    watched = Watch(RunDirectory.find(run_dir))
    if prometheus is not None:
        from luwu.monitor.prometheus import serve_metrics

        host, port = prometheus
        host = host or loopback.host("or give --prometheus HOST:PORT")
        return _until_stopped(host, "/metrics", serve_metrics(host, port, watched))
    if serve is not None:
        from luwu.monitor.serve import serve_page

        host = loopback.host("or use --watch")
        return _until_stopped(host, "/", serve_page(host, serve, watched))
    if watch:
        return _watch(watched, details=has_all)
    document = watched.document()
    with taking(watched.run.path):
        text = status_text(document, details=has_all)
    print(json.dumps(document, indent=1) if as_json else text)
    return 0


def _watch(watch: Watch, *, details: bool) -> int:
    """Print the status every second until the run has ended."""
    top = _TOP if sys.stdout.isatty() else ""
    with stop_requests() as should_stop:
        while not should_stop():
            document = watch.document()
            print(top + status_text(document, details=details), flush=True)
            if document["state"] not in ("running", "starting"):
                break
            due_ns = SYSTEM_CLOCK.now_ns() + int(EVERY_S * 1e9)
            while not should_stop() and SYSTEM_CLOCK.now_ns() < due_ns:
                sleep(POLL_S)
    return 0


def _until_stopped(host: str, path: str, served: tuple[int, Callable[[], None]]) -> int:
    port, close = served
    with stop_requests() as should_stop:
        print(f"http://{loopback.bracketed(host)}:{port}{path}", flush=True)
        try:
            while not should_stop():
                sleep(POLL_S)
        finally:
            close()
    return 0

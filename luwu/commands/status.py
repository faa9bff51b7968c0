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

from luwu.base import loopback
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.foreign import taking
from luwu.base.parsers import whole
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.monitor.text import status_text
from luwu.monitor.watch import Watch

POLL_S: Final = 0.2
EVERY_S: Final = 1.0
_TOP: Final = "\x1b[H\x1b[J"
"""Clears a terminal."""

VERB: Final = Verb(
    name="status",
    usage="luwu status [--all] [--json] [RUN]\n"
    "luwu status --watch | --serve PORT | --prometheus [HOST:]PORT [RUN]",
    text="Show the processes of a run and its progress. RUN is the directory of a run; the default "
    "is the latest.",
    examples=("luwu status --watch", "luwu status --serve 8080"),
    flags=(
        Flag(name="all", text="show all counters too"),
        Flag(name="watch", text="repeat every second until the run ends, or Ctrl-C"),
        Flag(
            name="serve",
            shape="PORT",
            text="serve a page at http://127.0.0.1:PORT that follows the run",
        ),
        Flag(name="json", text="print JSON"),
        Flag(name="prometheus", shape="[HOST:]PORT", text="serve metrics to Prometheus"),
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    watch = Watch(RunDirectory.find(Path(parsed.rest[0]) if parsed.rest else None))
    if "prometheus" in parsed.flags:
        from luwu.monitor.prometheus import serve_metrics

        host, _, port_text = parsed.flags["prometheus"].rpartition(":")
        host = host or loopback.host("or give --prometheus HOST:PORT")
        port = whole(0, 65535)(port_text, "--prometheus")
        return _until_stopped(host, "/metrics", serve_metrics(host, port, watch))
    if "serve" in parsed.flags:
        from luwu.monitor.serve import serve_page

        port = whole(0, 65535)(parsed.flags["serve"], "--serve")
        host = loopback.host("or use --watch")
        return _until_stopped(host, "/", serve_page(host, port, watch))
    if parsed.has("watch"):
        return _watch(watch, details=parsed.has("all"))
    document = watch.document()
    with taking(watch.run.path):
        text = status_text(document, details=parsed.has("all"))
    print(json.dumps(document, indent=1) if parsed.has("json") else text)
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

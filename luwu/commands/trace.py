"""`luwu trace`: a run's timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from luwu.base.errors import ConfigError
from luwu.base.foreign import taking
from luwu.base.parsers import path as parse_path
from luwu.commands import form
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.aligned import parse_steps, steady_steps, steps_text
from luwu.report.timeline import write_timeline

TRACE_FILE: Final = "trace.json"
FILE: Final = form.Value("FILE", parse_path)


@form.command("trace", "luwu trace", "luwu trace --step 20:25 --out steps.json")
@click.argument("run_dir", type=form.Value("RUN", parse_path), required=False)
@click.option("--out", type=FILE, help="file to write (default: trace.json of the run)")
@click.option(
    "--step",
    type=form.Value("A:B", parse_steps),
    help="write the steps from A to B - 1; A alone is one step",
)
@click.option("--all", "has_all", is_flag=True, help="write all steps, and the start-up")
def run(run_dir: Path | None, out: Path | None, step: range | None, has_all: bool) -> int:
    """Write a timeline of five steps from the middle of a run as a Chrome trace, for
    ui.perfetto.dev or chrome://tracing. The run may be active or have failed. RUN is the directory
    of a run; the default is the latest."""
    found = RunDirectory.find(run_dir)
    events, path = found.path / "events", found.file(TRACE_FILE) if out is None else out
    if step is not None and has_all:
        raise ConfigError("--step and --all choose different steps; give one of them")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise ConfigError(f"--out: cannot write {out}: give a file in a directory that exists")
    with taking(found.path):
        steps = step if has_all or step is not None else steady_steps(events)
        written = write_timeline(events, path, steps)
    if not written.span_count and steps is not None:
        print("note    no span is of these steps")
    for note in written.notes:
        print(f"note    {note}")
    print(f"trace   {path}")
    print(f"        {steps_text(steps)}, {written.span_count:,} spans; open it in ui.perfetto.dev")
    if step is None and steps is not None:
        print("        luwu trace --step A:B shows other steps, --all the whole run")
    return 0

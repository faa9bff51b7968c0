"""`luwu trace`: the timeline of a run, or how busy its engines were, from the run's events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.aligned import ALL_STEPS, Steps, parse_steps
from luwu.report.busy import busy, summary_text
from luwu.report.overlap import updated_before_last_push_ratio
from luwu.report.timeline import write_timeline

VERB: Final = Verb(
    name="trace",
    usage="luwu trace [--out FILE] [--step A:B] [--summary] [RUN]",
    text=(
        "Write the timeline of a run, of the latest unless one is named: a Chrome trace, which\n"
        "ui.perfetto.dev and chrome://tracing open. The run need not have ended well."
    ),
    flags=(
        Flag(name="out", shape="FILE", text="where to write it; trace.json of the run"),
        Flag(name="step", shape="A:B", text="only steps from A up to, and without, B"),
        Flag(name="summary", text="print how busy each engine was, and what compute hid, instead"),
    ),
    has_keys=False,
    rest="one",
)
TRACE_FILE: Final = "trace.json"


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    found = RunDirectory.find(Path(parsed.rest[0]) if parsed.rest else None)
    steps = parse_steps(parsed.flags["step"], "--step") if "step" in parsed.flags else ALL_STEPS
    out = parsed.flags.get("out")
    if out is not None:
        check_trace(Path(out), "--out")
    if parsed.has("summary"):
        _print_summary(found, steps)
        if out is None:
            return 0
    write_trace(found, found.file(TRACE_FILE) if out is None else Path(out), print, steps)
    return 0


def check_trace(path: Path | None, name: str = "trace") -> None:
    """Refuse, before anything starts, a timeline that could not be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"{name}: cannot write {path}: give a file in a directory that exists")


def write_trace(
    run_directory: RunDirectory, path: Path, say: Callable[[str], None], steps: Steps = ALL_STEPS
) -> None:
    """Write the timeline of a run and say where it is."""
    found = write_timeline(run_directory.path / "events", path, steps)
    if not found.span_count and not steps.is_all:
        say("note    no span is of these steps")
    for note in found.notes:
        say(f"note    {note}")
    say(f"trace   {path} ({found.span_count:,} spans; open it in ui.perfetto.dev)")


def _print_summary(run_directory: RunDirectory, steps: Steps) -> None:
    events = run_directory.path / "events"
    found = busy(events, steps)
    print(summary_text(found))
    ratio = updated_before_last_push_ratio(events) if steps.is_all else None
    if ratio is not None:
        print(f"\npages updated before the last push of their step began: {ratio:.0%}")
    for note in found.survey.notes:
        print(f"note    {note}")

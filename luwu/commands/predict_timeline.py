"""`luwu predict timeline FILE --out FILE`: a predicted step in the format of real runs' timelines.

Of LuWu the project's own cores are driven in virtual time (`luwu.predict.driven.driven`), of 3-D
training each stage goes through its schedule (`luwu.predict.events.schedules`), of all other
systems a device through its units (`luwu.predict.events.data_parallel`), and what they do is
written as a run's events are. With --run-dir the events are kept, in a directory that
`luwu trace` takes for that of a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from luwu.base.errors import ConfigError
from luwu.base.parsers import path
from luwu.commands import form
from luwu.commands.predict_question import CATALOGUE, FILES, Command, asked_table
from luwu.commands.trace import check_trace
from luwu.predict.ask.one_line import assumed_text
from luwu.predict.ask.question import Question, make_question
from luwu.predict.ask.replay import agreement, play_three_d, play_units
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.events.engines import Record
from luwu.predict.events.recorded import told_by_device, told_by_stages, write_events
from luwu.predict.hardware.catalogue import Catalogue
from luwu.report.timeline import write_timeline


@click.command(
    "timeline", cls=Command, examples=("luwu predict timeline llama.toml --out step.json",)
)
@FILES
@click.option("--out", type=form.Value("FILE", path), help="write the Chrome trace to FILE")
@click.option("--run-dir", type=form.Value("DIR", path), help="keep the events, for luwu trace DIR")
@CATALOGUE
def timeline(
    asked: Mapping[str, str], files: Sequence[Path], out: Path | None, run_dir: Path | None,
    catalogue: Catalogue,
) -> int:  # fmt: skip
    """Write a predicted step as a Chrome trace, as luwu trace does for a real one."""
    table, assumed = asked_table(asked, files, catalogue)
    if out is None and run_dir is None:
        ctx = click.get_current_context()
        raise ConfigError(f"{ctx.command_path} takes a file, and --out; {form.usage(ctx)}")
    check_trace(out, "--out")
    question = make_question(table, catalogue)
    if not isinstance(question, Question):
        raise ConfigError(
            f"system: {question.system!r} has closed forms alone; a timeline is one of training, "
            "so name a system that trains"
        )
    line, told = _played(question)
    said = [*assumed_text(assumed), line]
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) if run_dir is None else run_dir / "events"
        said += _write(told, events, out)
    if run_dir is not None:
        said.append(f"events  {run_dir} (luwu trace {run_dir})")
    print("\n".join(said))
    return 0


def _played(question: Question) -> tuple[str, dict[str, Record]]:
    """A text on the steps, and the records that each process would have written."""
    on = question.as_on_topology()
    if on.nodes is not None:
        steps = play_driven_steps(on.job, on.nodes)
        line = (
            f"step    {steps.step_s:.3f} s, as the cores of worker and node decide it "
            f"({len(steps.ends_s)} played)"
        )
        return line + agreement(steps.step_s, on.answer().seconds), steps.told
    if question.system != "3d":
        record = play_units(question)
        line = f"step    {record.end_s:.3f} s, unit by unit"
        return line + agreement(record.end_s, on.answer().seconds), told_by_device(record)
    step = play_three_d(question)
    stages, end_s = question.job.pipeline, step.record.end_s
    line = f"step    {end_s:.3f} s, of a pipeline of {stages}, without straggling"
    return line + agreement(end_s, step.closed_s), told_by_stages(step.record, stages)


def _write(told: dict[str, Record], events: Path, out: Path | None) -> list[str]:
    write_events(told, events)
    if out is None:
        return []
    found = write_timeline(events, out)
    return [f"trace   {out} ({found.span_count:,} spans; open it in ui.perfetto.dev)"]

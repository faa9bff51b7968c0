"""`luwu predict timeline FILE --out FILE`: a predicted step in the format of real runs' timelines.

Of LuWu the project's own cores are driven in virtual time (`luwu.predict.driven.driven`), of 3-D
training each stage goes through its schedule (`luwu.predict.events.schedules`), of all other
systems a device through its units (`luwu.predict.events.data_parallel`), and what they do is
written as a run's events are. With --run-dir the events are kept, in a directory that
`luwu trace` takes for that of a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import CATALOGUE_FLAG, Flag, Parsed, Verb
from luwu.commands.predict_question import QUESTION_FLAGS, asked_table
from luwu.commands.trace import check_trace
from luwu.predict.ask.one_line import assumed_text
from luwu.predict.ask.question import Question, make_question
from luwu.predict.ask.replay import agreement, play_three_d, play_units
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.events.engines import Record
from luwu.predict.events.recorded import told_by_device, told_by_stages, write_events
from luwu.predict.hardware.catalogue import Catalogue
from luwu.report.timeline import write_timeline

TIMELINE: Final = Verb(
    name="predict timeline",
    usage="luwu predict timeline [FILE] [--KEY VALUE ...] --out FILE [--run-dir DIR] "
    "[--catalogue FILE]",
    text="Write a predicted step as a Chrome trace, as luwu trace does for a real one.",
    examples=("luwu predict timeline llama.toml --out step.json",),
    flags=(
        Flag(name="out", shape="FILE", text="write the Chrome trace to FILE"),
        Flag(name="run_dir", shape="DIR", text="keep the events, for luwu trace DIR"),
        CATALOGUE_FLAG,
        *QUESTION_FLAGS,
    ),
    has_keys=False,
    rest="many",
)


def timeline(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """Play the question of a file, write what was asked for, and say where. Raises ConfigError."""
    out, kept = (parsed.flags.get(name) for name in ("out", "run_dir"))
    table, assumed = asked_table(parsed, catalogue)
    if out is None and kept is None:
        raise ConfigError(f"luwu predict timeline takes a file, and --out; usage: {TIMELINE.usage}")
    if out is not None:
        check_trace(Path(out), "--out")
    question = make_question(table, catalogue)
    if not isinstance(question, Question):
        raise ConfigError(
            f"system: {question.system!r} has closed forms alone; a timeline is one of training, "
            "so name a system that trains"
        )
    line, told = _played(question)
    said = [*assumed_text(assumed), line]
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) if kept is None else Path(kept) / "events"
        said += _write(told, events, None if out is None else Path(out))
    if kept is not None:
        said.append(f"events  {kept} (luwu trace {kept})")
    return "\n".join(said)


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

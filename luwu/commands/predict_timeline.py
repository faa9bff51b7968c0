"""`luwu predict timeline FILE --out FILE`: a predicted step in the format of real runs' timelines.

The project's own cores are driven in virtual time (`luwu.predict.events.driven`), and what they do
is written as a run's events are. With --run-dir the events are kept, in a directory that
`luwu trace` takes for that of a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.commands.flags import Parsed
from luwu.commands.trace import check_trace
from luwu.predict.catalogue import Catalogue
from luwu.predict.events.driven import Driven, play_driven_steps
from luwu.predict.events.recorded import write_events
from luwu.predict.question import Question, read_question
from luwu.report.timeline import write_timeline

USAGE = "luwu predict timeline FILE --out FILE [--run-dir DIR]"


def timeline(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """Play the question of a file, write what was asked for, and say where. Raises ConfigError."""
    out, kept = (parsed.flags.get(name) for name in ("out", "run_dir"))
    if len(rest) != 1 or (out is None and kept is None):
        raise ConfigError(f"luwu predict timeline takes a file, and --out; usage: {USAGE}")
    if parsed.has("json"):
        raise ConfigError(
            "--json: what luwu predict timeline writes to --out is JSON; leave it out"
        )
    if out is not None:
        check_trace(Path(out), "--out")
    question = read_question(Path(rest[0]), catalogue)
    on = question.as_on_topology() if isinstance(question, Question) else None
    if on is None or on.nodes is None:
        raise ConfigError(
            f"system: {question.system!r} has closed forms alone; a timeline is made of luwu"
        )
    played = play_driven_steps(on.job, on.nodes)
    said = [
        f"step    {played.step_s:.3f} s, as the cores of worker and node decide it "
        f"({len(played.ends_s)} played)"
    ]
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) if kept is None else Path(kept) / "events"
        said += _write(played, events, None if out is None else Path(out))
    if kept is not None:
        said.append(f"events  {kept} (luwu trace {kept})")
    return "\n".join(said)


def _write(played: Driven, events: Path, out: Path | None) -> list[str]:
    write_events(played, events)
    if out is None:
        return []
    found = write_timeline(events, out)
    return [f"trace   {out} ({found.span_count:,} spans; open it in ui.perfetto.dev)"]

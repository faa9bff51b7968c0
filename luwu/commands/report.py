"""`luwu report`: a comparison's page again, from its `result.json`; or what a run's steps took."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.launch.processes.run_directory import RunDirectory
from luwu.report.page import write_report
from luwu.report.table import table_text

VERB: Final = Verb(
    name="report",
    usage="luwu report [--open] [RUN]",
    text=(
        "Write report.html of a comparison again, or say what the steps of luwu run took;\n"
        "of the latest run unless one is named."
    ),
    flags=(Flag(name="open", text="open it in a browser"),),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    from luwu.estimate.steps import FILE as STEPS_FILE
    from luwu.estimate.steps import steps_lines

    found = RunDirectory.find(Path(parsed.rest[0]) if parsed.rest else None)
    document = read_json(found.file("result.json"))
    if document is None:
        steps = read_json(found.file(STEPS_FILE))
        if steps is not None:
            print("\n".join(steps_lines(steps)))
            return 0
        raise ConfigError(
            f"{found.path} has neither result.json nor {STEPS_FILE}: a report is of a finished "
            f"luwu compare, or of a luwu run with two steps; its state: luwu status {found.path}"
        )
    path = write_report(found.file("report.html"), document)
    print(table_text(document))
    print(f"report  {path}")
    if parsed.has("open"):
        webbrowser.open(path.as_uri())
    return 0

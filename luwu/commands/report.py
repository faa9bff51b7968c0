"""`luwu report`: the report of a run, finished or not; or two runs side by side."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from luwu.base.foreign import taking
from luwu.base.parsers import path
from luwu.commands import form
from luwu.commands.outcome import REPORT_FILE
from luwu.estimate.steps import steps_lines
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from luwu.report.page import write_page, write_report
from luwu.report.pair import named, pair_html, pair_text
from luwu.report.table import table_text
from luwu.report.verdict import verdict

PAIR_FILE: Final = "report-{}.html"


@form.command("report", "luwu report --open", "luwu report luwu-runs/A luwu-runs/B")
@click.argument("run_dir", type=form.Value("RUN", path), required=False)
@click.argument("other", type=form.Value("RUN", path), required=False)
@click.option("--open", "is_opened", is_flag=True, help="open the report in a browser")
@click.option("--json", "as_json", is_flag=True, help="print the data of the report as JSON")
def run(run_dir: Path | None, other: Path | None, is_opened: bool, as_json: bool) -> int:
    """Write the report of a run as report.html and print its verdict. The run may be active or have
    failed. With two runs, compare them. RUN is the directory of a run; the default is the
    latest."""
    runs = [RunDirectory.find(run_dir)]
    if other is not None:
        runs.append(RunDirectory.find(other))
    with taking(" and ".join(str(each.path) for each in runs)):
        return _report(runs, is_opened=is_opened, as_json=as_json)


def _report(runs: Sequence[RunDirectory], *, is_opened: bool, as_json: bool) -> int:
    documents = [Watch(each).document() for each in runs]
    if len(runs) == 2:
        both = named(*documents)
        name = PAIR_FILE.format(runs[1].path.name)
        path = write_page(runs[0].file(name), pair_html(both))
        text = pair_text(both)
    else:
        path = write_report(runs[0].file(REPORT_FILE), documents[0])
        text = "\n".join(verdict(documents[0]))
        if documents[0]["comparison"]:
            text = table_text(documents[0]["comparison"]) + "\n\n" + text
        elif documents[0]["measured"]:
            text += "\n" + "\n".join(steps_lines(documents[0]["measured"]))
    if as_json:
        form.print_json(documents[0] if len(runs) == 1 else documents)
    else:
        print(text)
        print(f"report  {path}")
    if is_opened:
        webbrowser.open(path.as_uri())
    return 0

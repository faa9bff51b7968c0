"""`luwu report`: the report of a run, finished or not."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from luwu.base.foreign import taking
from luwu.base.parsers import path
from luwu.commands import form
from luwu.commands.outcome import REPORT_FILE
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from luwu.report.page import write_report
from luwu.report.table import table_text
from luwu.report.verdict import verdict


@form.command("report", "luwu report --open", "luwu report luwu-runs/A")
@click.argument("run_dir", type=form.Value("RUN", path), required=False)
@click.option("--open", "is_opened", is_flag=True, help="open the report in a browser")
def run(run_dir: Path | None, is_opened: bool) -> int:
    """Write the report of a run as report.html and print its verdict. The run may be active or have
    failed. RUN is the directory of a run; the default is the latest."""
    found = RunDirectory.find(run_dir)
    with taking(str(found.path)):
        document = Watch(found).document()
        written = write_report(found.file(REPORT_FILE), document)
        text = "\n".join(verdict(document))
        if document["comparison"]:
            text = table_text(document["comparison"]) + "\n\n" + text
    print(text)
    print(f"report  {written}")
    if is_opened:
        webbrowser.open(written.as_uri())
    return 0

"""Files of a run that a verb writes: what it was asked to do, how it ended, and its report."""

from __future__ import annotations

import os
from typing import Any, Final

from luwu.base.clock import utc_text
from luwu.base.config import Resolved
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.expendable import print_if_possible
from luwu.base.json_file import write_json
from luwu.launch.processes.run_directory import RunDirectory

REPORT_FILE: Final = "report.html"


def write_resolved(
    run_directory: RunDirectory, resolved: Resolved, verb: str, role: str | None = None
) -> None:
    """Keep what the run, or one role of it, was asked to do."""
    document = {**resolved.document(), "verb": verb, "started": utc_text(), "pid": os.getpid()}
    name = "resolved.json" if role is None else f"resolved-{role}.json"
    write_json(run_directory.file(name), document)


def write_outcome(
    run_directory: RunDirectory, exit_code: int, reason: str, code: str | None = None
) -> None:
    """Keep how the run ended; `code`: of the error that ended it."""
    run_directory.keep(run_directory.file("outcome.json"), {
        "schema": 1, "exit_code": exit_code, "code": code, "reason": reason, "ended": utc_text()
    })  # fmt: skip


def keep_failure(run_directory: RunDirectory, error: LuwuError) -> None:
    """Write how a run failed, and its report."""
    write_outcome(run_directory, error.exit_code, str(error), error.code)
    keep_report(run_directory)


def keep_report(run_directory: RunDirectory) -> dict[str, Any] | None:
    """Write the report of a run that has just ended; its document, or None and a warning if that
    cannot be."""
    from luwu.monitor.watch import Watch
    from luwu.report.page import write_report

    path = run_directory.file(REPORT_FILE)
    try:
        document = Watch(run_directory).document()
        write_report(path, document)
        return document
    except (OSError, ConfigError) as error:
        print_if_possible(f"luwu: no report in {path}: {error}")
        return None

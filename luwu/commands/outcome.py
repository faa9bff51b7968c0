"""Files of a run that a verb writes: what it was asked to do, and how it ended."""

from __future__ import annotations

from luwu.base.clock import utc_text
from luwu.base.config import Resolved
from luwu.base.json_file import write_json
from luwu.launch.processes.run_directory import RunDirectory


def write_resolved(
    run_directory: RunDirectory, resolved: Resolved, verb: str, role: str | None = None
) -> None:
    """Keep what the run, or one role of it, was asked to do."""
    document = {**resolved.document(), "verb": verb, "started": utc_text()}
    name = "resolved.json" if role is None else f"resolved-{role}.json"
    write_json(run_directory.file(name), document)


def write_outcome(
    run_directory: RunDirectory, exit_code: int, reason: str, code: str | None = None
) -> None:
    """Keep how the run ended; `code`: of the error that ended it."""
    run_directory.keep(run_directory.file("outcome.json"), {
        "schema": 1, "exit_code": exit_code, "code": code, "reason": reason, "ended": utc_text()
    })  # fmt: skip

"""The message of a run that failed: the first failure in full, the others in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    LuwuError,
    StateError,
    WorkerFailed,
    refusal,
)
from luwu.base.json_file import read_json
from luwu.base.tree import ranges_text
from luwu.launch.processes.children import exit_text
from luwu.launch.processes.console import tail
from luwu.launch.processes.run_directory import RunDirectory

FINAL_CODES = {2: ConfigError, 3: ConnectionFailed, 5: StateError}
"""Exit codes that starting again would not mend."""

_ROOM_BYTES = 64 * 1024
"""Without so much room, a process that starts may fail to write something."""


def error_of_code(exit_code: int, text: str, code: str | None = None) -> LuwuError:
    """The error whose exit code this is; a failed worker where it is none of ours.

    `code`: its own, where it has one.
    """
    return FINAL_CODES.get(exit_code, WorkerFailed)(text, code=code)


def role_failure(
    run: RunDirectory, role: str, code: int, document: dict[str, Any], advice: str = ""
) -> LuwuError:
    """The switch or the node ended for good."""
    log = run.log(role)
    if document and document["exit_code"] in FINAL_CODES:
        text = f"{role}: {document['message']}{advice}"
        return error_of_code(document["exit_code"], text, document.get("code"))
    if not document:
        _check_room(run, code)
    text = document.get("traceback") or tail(log) or "(its log is empty)"
    text = f"the {role} ended with {exit_text(code)}{advice}; log {log}\n{text}"
    if code in FINAL_CODES:  # it could not even write down why
        return error_of_code(code, text)
    return LuwuError(text, code=document.get("code") or "E105")


def worker_failure(
    run: RunDirectory, prefix: str, code: int, causes: Sequence[str] = ()
) -> LuwuError:
    """The workers ended with `code`: why, as far as they or their agent reported.

    `causes`: why a wait of theirs was in vain.
    """
    found = [read_json(path) for path in run.path.glob(f"errors/{prefix}worker-*.json")]
    records = sorted((each for each in found if each), key=lambda each: each["unix_ns"])
    if not records:
        _check_room(run, code)
        return WorkerFailed(_unexplained(run, prefix, code), code="E401")
    first, *others = records
    process = f"{prefix}worker-{first['rank']}"
    log = run.log(process)
    if causes and first["type"] == DeadlineError.__name__:
        waits = [
            f"worker {each['rank']} gave up its wait ({each['type']}); "
            f"log {run.log(prefix + 'worker-' + str(each['rank']))}"
            for each in records
            if each["type"] == first["type"]
        ]
        return error_of_code(first["exit_code"], "\n".join([*causes, *waits]), first.get("code"))
    said = [f"{first['message']}; log {log}"]
    if first["type"] != WorkerFailed.__name__:  # which is its agent's, and complete
        said = [
            f"worker {first['rank']} failed with {first['type']} "
            f"(exit code {first['exit_code']}); log {log}",
            first["traceback"] or tail(log) or "(its log is empty)",
        ]
    alike = [
        each["rank"]
        for each in others
        if all(each[key] == first[key] for key in ("type", "message", "traceback"))
    ]
    lines = [
        *said,
        *([f"and {len(alike)} more: rank {ranges_text(alike)}"] if alike else []),
        *(
            f"worker {each['rank']}: {each['type']}: {_first_line(each)}"
            for each in others
            if each["rank"] not in alike
        ),
    ]
    return error_of_code(first["exit_code"], "\n".join(lines), first.get("code"))


def _check_room(run: RunDirectory, code: int) -> None:
    """A process ended without a word. Raises StateError if there is no room for one."""
    probe = run.file(".room")
    try:
        if 0 < code < 128:  # else it was killed
            probe.write_bytes(bytes(_ROOM_BYTES))
    except OSError as exc:
        what = f"a process ended, as its run directory {run.path} takes no records any more"
        then = "continue with --resume, or name a --run-dir elsewhere"
        raise refusal(what, exc, then=then) from exc
    finally:
        probe.unlink(missing_ok=True)


def lost_worker(run: RunDirectory, rank: int, code: int) -> LuwuError:
    """A worker ended and could not say why."""
    process = f"worker-{rank}"
    log = run.log(process)
    pid = (read_json(run.role(f"{process}.json")) or {}).get("pid", "unknown")
    lines = [f"worker {rank} (pid {pid}) ended with {exit_text(code)}; log {log}"]
    if code < 0:
        lines[0] = f"worker {rank} (pid {pid}) was killed by signal {-code} ({exit_text(code)[7:]})"
        lines[0] += f"; log {log}"
    shown = tail(log)
    if shown:
        lines += ["its last lines:", shown]
    return WorkerFailed("\n".join(lines), code="E401")


def _unexplained(run: RunDirectory, prefix: str, code: int) -> str:
    """Neither the workers nor their agent could write down what happened."""
    log = run.log(f"{prefix}workers")
    text = tail(log)
    return f"the workers ended with {exit_text(code)}; log {log}" + (f"\n{text}" if text else "")


def _first_line(record: dict[str, Any]) -> str:
    return str(record["message"]).partition("\n")[0]

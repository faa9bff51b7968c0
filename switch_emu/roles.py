"""One job of one role, from what the launcher wrote about it until it is over.

The document (`luwu/launch/roles.py` writes it) holds the role's specification, and the files by
which it answers: `ready` when it listens, `error` when something ended it.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
import traceback
from pathlib import Path
from typing import Any

from luwu.base.errors import DISK_FAULTS, STOPPED_CODE, ConfigError, LuwuError, refusal
from luwu.base.expendable import print_if_possible
from luwu.base.job_spec import from_document
from luwu.base.json_file import read_json, write_json


def load(role: str) -> None:
    """Import what a job needs before there is one."""
    gc.disable()  # what an import makes stays
    importlib.import_module(f"switch_emu.{role}.process")
    gc.enable()


def read_document(config: Path) -> dict[str, Any]:
    """Read the launcher's document. Raises ConfigError."""
    document = read_json(config)
    if document is None:
        raise ConfigError(f"--config {config} does not exist; the launcher writes it")
    return document


def attend(
    role: str, document: dict[str, Any], stopping: threading.Event,
    over: threading.Event | None = None,
) -> int:  # fmt: skip
    """Serve the job until it is over or we are asked to stop; the exit code. `over`: set when all
    workers have left, as the process that started us knows."""
    try:
        return _serve(role, document, stopping, over or threading.Event())
    except Exception as exc:
        error = exc
        if isinstance(exc, OSError) and exc.errno in DISK_FAULTS:
            error = refusal("a file operation failed", exc)  # starting again would too
        return failed(role, error, Path(document["error"]))


def failed(role: str, error: Exception, error_file: Path | None) -> int:
    """Say and write down what ended us; the exit code."""
    exit_code = error.exit_code if isinstance(error, LuwuError) else 1
    text = traceback.format_exc()
    print_if_possible(text if exit_code == 1 else f"{type(error).__name__}: {error}")
    if error_file is not None:
        document = {
            "schema": 1, "role": role, "pid": os.getpid(), "type": type(error).__name__,
            "message": str(error), "exit_code": exit_code,
            "code": error.code if isinstance(error, LuwuError) else None, "traceback": text,
        }  # fmt: skip
        try:
            write_json(error_file, document)
        except OSError as unwritten:  # a full disk, say: the launcher has our log and exit code
            print_if_possible(f"{error_file} cannot be written: {unwritten}")
    return exit_code


def _serve(
    role: str, document: dict[str, Any], stopping: threading.Event, over: threading.Event
) -> int:
    lines: list[str] = []

    def on_listening(endpoint: str) -> None:
        ready = {"pid": os.getpid(), "endpoint": endpoint, "lines": lines}
        write_json(Path(document["ready"]), ready)
        _freeze_objects()

    given: dict[str, Any] = {
        "on_listening": on_listening, "should_stop": stopping.is_set, "is_over": over.is_set,
    }  # fmt: skip
    if role == "switch":
        from switch_emu.switch.process import SwitchSpec, serve_switch

        switch = from_document(SwitchSpec, document["spec"], "--config")
        is_finished = serve_switch(switch, **given)
    else:
        from switch_emu.node.process import plan_lines, serve_node
        from switch_emu.node.spec import NodeSpec

        node = from_document(NodeSpec, document["spec"], "--config")
        lines.extend(plan_lines(node))
        is_finished = serve_node(node, **given)
    return 0 if is_finished else STOPPED_CODE


def _freeze_objects() -> None:
    """Exclude the objects of the start, mostly modules, from garbage collection.

    Without them a full collection is cheap and frequent; with them it happens after minutes, and
    until then CPython keeps up to 2,000 freed tuples of each length: memory seems to grow.
    """
    gc.collect()
    gc.freeze()

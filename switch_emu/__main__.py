"""Run one machine of the network: `python -m switch_emu switch|node --config FILE`.

FILE is JSON: the role's specification, and where to tell that it listens or what ended it; the
launcher writes it (`luwu/launch/roles.py`). With `--until-eof` the process also ends when its
standard input does, that is, with whoever started it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import sys
import threading
import traceback
import types
import typing
from pathlib import Path
from typing import Any

from luwu.base.config import suggestion
from luwu.base.errors import STOPPED_CODE, ConfigError, LuwuError
from luwu.base.json_file import read_json, write_json
from luwu.launch.lifeline import watch

ORPHAN_PATIENCE_S = 1.5


def main(arguments: list[str] | None = None) -> int:
    """Serve until the job is over or somebody wants us to stop; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m switch_emu", description=__doc__)
    parser.add_argument("role", choices=("switch", "node"))
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--until-eof", action="store_true")
    asked = parser.parse_args(arguments)
    stopping, orphaned = threading.Event(), threading.Event()
    private_directory: str | None = None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    error_file: Path | None = None
    try:
        document = read_json(asked.config)
        if document is None:
            raise ConfigError(f"--config {asked.config} does not exist; the launcher writes it")
        error_file = Path(document["error"])
        private_directory = document["private_directory"]
        if asked.until_eof:
            watch(lambda: _end_soon(stopping, orphaned, private_directory))
        return _serve(asked.role, document, stopping)
    except LuwuError as error:
        return _failed(asked.role, error, error.exit_code, error_file)
    except Exception as error:
        return _failed(asked.role, error, 1, error_file)
    finally:
        if orphaned.is_set():
            _remove(private_directory)


def _serve(role: str, document: dict[str, Any], stopping: threading.Event) -> int:
    lines: list[str] = []

    def on_listening(endpoint: str) -> None:
        ready = {"pid": os.getpid(), "endpoint": endpoint, "lines": lines}
        write_json(Path(document["ready"]), ready)

    if role == "switch":
        from switch_emu.switch.serve import SwitchSpec, serve_switch

        switch = _spec(SwitchSpec, document["spec"])
        is_finished = serve_switch(switch, on_listening=on_listening, should_stop=stopping.is_set)
        return 0 if is_finished else STOPPED_CODE
    from switch_emu.node.serve import NodeSpec, plan_lines, serve_node

    node = _spec(NodeSpec, document["spec"])
    lines.extend(plan_lines(node))
    is_finished = serve_node(node, on_listening=on_listening, should_stop=stopping.is_set)
    return 0 if is_finished else STOPPED_CODE


def _spec(kind: Any, values: dict[str, Any]) -> Any:
    """A specification from JSON; paths are texts there. Raises ConfigError."""
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise ConfigError(f"--config: {kind.__name__} has no {name!r}{suggestion(name, hints)}")
    found = {name: _as_path(hints[name], value) for name, value in values.items()}
    missing = [
        each.name
        for each in dataclasses.fields(kind)
        if each.name not in found
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"--config: {kind.__name__} needs {', '.join(missing)}")
    return kind(**found)


def _as_path(hint: Any, value: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def _end_soon(
    stopping: threading.Event, orphaned: threading.Event, private_directory: str | None
) -> None:
    """Whoever started us is gone: end, if need be by force, and leave no socket behind."""
    orphaned.set()
    stopping.set()
    threading.Event().wait(ORPHAN_PATIENCE_S)
    _remove(private_directory)
    os._exit(1)


def _remove(private_directory: str | None) -> None:
    if private_directory is not None:
        shutil.rmtree(private_directory, ignore_errors=True)


def _failed(role: str, error: Exception, exit_code: int, error_file: Path | None) -> int:
    text = traceback.format_exc()
    print(text if exit_code == 1 else f"{type(error).__name__}: {error}", file=sys.stderr)
    if error_file is not None:
        document = {
            "schema": 1,
            "role": role,
            "pid": os.getpid(),
            "type": type(error).__name__,
            "message": str(error),
            "exit_code": exit_code,
            "traceback": text,
        }
        write_json(error_file, document)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

"""The run whose node has a state open: its directory is what export and snapshot can be given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json

IN_USE = "E204"


def advise(error: ConfigError, state: Path, verb: str) -> ConfigError:
    """The error, with the command that works if it is that a run on this host uses the state."""
    run = run_of(state) if error.code == IN_USE else None
    if run is None:
        return error
    return ConfigError(
        f"{error} Of a job that is running name its run directory: luwu {verb} {run} OUT",
        code=error.code,
    )


def run_of(state: Path) -> Path | None:
    """The directory of a run on this host whose node keeps this state, or a part of it."""
    wanted = state.resolve()
    for config in _node_configs():
        document = read_json(config)
        kept = None if document is None else document["spec"].get("state")
        if kept is not None and wanted in (Path(kept).resolve(), Path(kept).resolve().parent):
            return config.parent.parent
    return None


def _node_configs() -> Iterator[Path]:
    """The specifications of the nodes that run on this host."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"switch_emu" in words and b"node" in words and b"--config" in words:
            yield Path(os.fsdecode(words[words.index(b"--config") + 1]))

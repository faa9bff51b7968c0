"""Values as files: how arguments reach a worker process and results come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from luwu.base.values import pack_value, unpack_value

_FILE: Final = "value"


def save_value(folder: Path, value: object, *, name: str) -> None:
    """Write a value; `name` is what messages call it, such as `args`. Raises ConfigError."""
    data = pack_value(value, name=name)
    folder.mkdir(parents=True)
    partial = folder / f"{_FILE}.partial"
    partial.write_bytes(data)
    partial.rename(folder / _FILE)


def load_value(folder: Path) -> Any:
    """Read a value. Raises FileNotFoundError, RemoteProtocolError."""
    return unpack_value((folder / _FILE).read_bytes())

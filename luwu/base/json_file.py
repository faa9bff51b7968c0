"""JSON files that are written whole or not at all, and read with a clear word when they are not;
and lines of files that grow, the last of which may be cut."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.foreign import parse_json, read_file

PARTIAL: Final = ".partial"


def write_json(path: Path, document: object, *, mode: int = 0o644) -> None:
    """Write a JSON file whole or not at all."""
    text = json.dumps(document, indent=1) + "\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}{PARTIAL}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as exc:
        exc.filename = str(path)  # a write names none, and the partial file says little
        del exc.filename2
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def remove_partial(directory: Path, pid: int) -> None:
    """Remove what a process that was killed has begun to write, anywhere below a directory."""
    for path in directory.rglob(f".*.{pid}.*{PARTIAL}"):
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file. Raises ConfigError."""
    try:
        document = parse_json(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        what = f"{getattr(exc, 'strerror', exc)!s:.200}"
        raise ConfigError(f"cannot read {path}: {what}; it was not written by luwu") from exc
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no JSON object; it was not written by luwu")
    return document


def json_object(line: bytes | str) -> dict[str, Any]:
    """The object in a line; an empty one if there is none, as in a line that is cut."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

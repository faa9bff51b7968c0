"""Files that may come from anywhere: opened without a wait, read up to a size, parsed with limits.

Whatever is where a file of ours is expected costs time and memory in proportion to its size,
which is bounded. An OSError says why a file is not read, a ValueError why its text is not taken:

    a FIFO, a device, a directory     not an ordinary file
    JSON and TOML                     at most 64 deep, 64 bits an integer, each name once
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from luwu.base.errors import ConfigError, LuwuError
from luwu.base.limits import (
    COUNT_MAX,
    DEPTH_MAX,
    FILE_BYTES_MAX,
    INT64_MAX,
    LINE_BYTES_MAX,
    TOML_BYTES_MAX,
    VALUES_MAX,
)

MALFORMED: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError
)  # fmt: skip
"""Errors of code that takes a document for one of ours, when it has another form."""
_TOML_TEXT: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\\?\Z)|' + r"'''.*?(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*"?|' + r"'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""A text or a comment. Each begun is matched, also one without end, so a search is linear."""


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of an ordinary file. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
        os.set_blocking(descriptor, True)  # io_uring takes the flag for a refusal to wait
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of an ordinary file that has at most so many. Raises OSError."""
    with os.fdopen(open_file(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            what = f"it has {size} bytes, at most {bytes_max} are read"
            raise OSError(errno.EINVAL, what, str(path))
        return file.read(size)


def open_lines(path: Path) -> IO[bytes]:
    """A file of lines that processes append to, of any size, to be read. Raises OSError."""
    descriptor = open_file(path)
    size = os.fstat(descriptor).st_size
    if size > FILE_BYTES_MAX and os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{size} bytes with holes are no lines of ours", str(path))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.fdopen(descriptor, "rb")


def lines_of(path: Path) -> Iterator[bytes]:
    """Its lines; one that is too long comes in pieces. Raises OSError."""
    with open_lines(path) as file:
        yield from iter(lambda: file.readline(LINE_BYTES_MAX), b"")


class LogFollower:
    """New whole lines of a growing file, each time it is asked."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._rest = b""
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def lines(self, *, is_last: bool = False) -> Iterator[str]:
        """The lines completed since the last call; at the end of all, an incomplete one too."""
        with contextlib.suppress(OSError), open_lines(self._path) as file:
            file.seek(self._offset)
            while data := file.read(LINE_BYTES_MAX):
                self._offset += len(data)
                *lines, self._rest = (self._rest[:LINE_BYTES_MAX] + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        if is_last and self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""


def parse_json(data: bytes | memoryview) -> Any:
    """The value of a JSON text. Raises ValueError."""
    text = str(data, "utf-8")
    if text.count(",") > VALUES_MAX:
        raise ValueError(f"it has more than {VALUES_MAX} values")
    with _refusing():
        found = _checked(json.loads(text, object_pairs_hook=_unique))
    if re.search(r"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(found, ensure_ascii=False).encode(errors="surrogateescape")
        except UnicodeEncodeError as exc:
            raise ValueError("a text in it has half a character") from exc
    return found


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError."""
    text = str(data, "utf-8")
    # tomllib takes time with the square of a name's parts, which are on one line.
    pieces = re.split(r"[\n=,\[\]{}]", _TOML_TEXT.sub('""', text))
    if max(piece.count(".") for piece in pieces) > DEPTH_MAX:
        raise ValueError(f"a name has more than {DEPTH_MAX} parts")
    with _refusing():
        found: dict[str, Any] = _checked(tomllib.loads(text))
    return found


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table of a user's file; `what`: its name in messages, as `plan`. Raises ConfigError."""
    try:
        return parse_toml(read_file(path, TOML_BYTES_MAX))
    except OSError as exc:
        raise ConfigError(f"{what}: cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError(f"{what}: {path} is not TOML: {exc!s:.200}") from exc


def typed(value: Any, kind: type) -> Any:
    """A value of that type and of no type derived from it. Raises ValueError."""
    if type(value) is not kind:
        raise ValueError(f"{value!r:.40} is not {kind.__name__}")
    return value


def natural(value: Any, most: int = INT64_MAX) -> int:
    """A whole number from 0 on, of a document from anywhere. Raises ValueError."""
    number: int = typed(value, int)
    if not 0 <= number <= most:
        raise ValueError(f"{number!r:.40} is not an integer from 0 to {most}")
    return number


def counted(value: Any) -> int:
    """A count that goes on from here and never goes back. Raises ValueError."""
    return natural(value, COUNT_MAX)


def plain_text(value: Any) -> str:
    """A text that can be sent and printed: JSON can spell half a character. Raises ValueError."""
    text: str = typed(value, str)
    text.encode()
    return text


@contextmanager
def taking(place: Path | str, error: type[LuwuError] = ConfigError) -> Iterator[None]:
    """Raises `error` if what was read at a place has another form than what we write."""
    try:
        yield
    except (OSError, *MALFORMED) as exc:
        said = f"{type(exc).__name__}: {exc!s:.200}"
        raise error(f"{place} cannot be read: it is not as luwu writes it ({said})") from exc


@contextmanager
def _refusing() -> Iterator[None]:
    """Raises ValueError with words of ours for what the parsers of Python refuse in theirs."""
    try:
        yield
    except RecursionError as exc:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep") from exc
    except ValueError as exc:
        if "int_max_str_digits" in str(exc):
            raise ValueError("it has an integer of more than 64 bits") from exc
        raise


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r:.80} is listed twice")
    return document


def _checked(value: Any) -> Any:
    """The value, if it is nested little and its integers are small. Raises ValueError."""
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for each in level:
            if type(each) is dict:
                below.extend(each.values())
            elif type(each) is list:
                below.extend(each)
            elif type(each) is int and not -INT64_MAX <= each <= 2 * INT64_MAX + 1:
                raise ValueError("it has an integer of more than 64 bits")
        level = below
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEPTH_MAX} deep")

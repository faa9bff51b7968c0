"""The file format of records: what cores were given, and what they answered.

A file is xz over a stream of msgpack: first one map, then one array for each history.

    {"format": 1, "protocol": 7, "commit": ..., "command": ..., "events": ..., "types": ...}
    [name, [life, ...]]                                     a history
    [kind, [value, ...], [event, ...]]                      a life: one core, from made to the end
    [event, [value, ...], [action, ...], state or nil]      an event

    events   kind -> event -> its parameters; `__init__` is one
    types    name -> fields
    kind     of process: a key of `adapter.CORES`
    state    [when it wants a tick, whether it is finished], where that is not as it was before; a
             call that raised has {"raised": name of the class} for its actions

Values are as `values.py` says. Nothing in a record is code, and nothing is read but by msgpack.
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

FORMAT: Final = 1
RECORDS: Final = Path(__file__).parent / "records"
"""Those of the repository."""


@dataclass
class Life:
    """One core, from when it was made to its end."""

    kind: str
    made: list[Any]
    events: list[Any] = field(default_factory=list)


@dataclass
class Recorded:
    """One history: the lives of all its cores, in the order in which they were made."""

    name: str
    lives: list[Life] = field(default_factory=list)

    def packed(self) -> bytes:
        """As it stands in a file."""
        lives = [[life.kind, life.made, life.events] for life in self.lives]
        data: bytes = msgpack.packb([self.name, lives])
        return data


@dataclass
class Head:
    """What is said of all histories of a file."""

    protocol: int
    commit: str = ""
    command: str = ""
    events: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    types: dict[str, list[str]] = field(default_factory=dict)


def write(path: Path, head: Head, histories: Sequence[Recorded]) -> None:
    """Write a file of records."""
    data = msgpack.packb({"format": FORMAT, **vars(head)})
    data += b"".join(history.packed() for history in histories)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    path.write_bytes(lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_SHA256, filters=filters))


def read(path: Path) -> tuple[Head, Iterator[Recorded]]:
    """The head of a file, and its histories one by one."""
    unpacker = msgpack.Unpacker(
        io.BytesIO(lzma.decompress(path.read_bytes())), max_buffer_size=1 << 30
    )
    found = unpacker.unpack()
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not of format {FORMAT}; record it again")
    return Head(**found), (_history(each) for each in unpacker)


def _history(found: list[Any]) -> Recorded:
    name, lives = found
    return Recorded(name, [Life(*each) for each in lives])

"""The events of a run as they lie on disk, read one at a time.

Each process has a file of JSON lines (`luwu.base.events`): spans with start and end, instants, and
at each start of the process a `clock` record. What a line may be:

    a record                          read
    the last one, cut short           a process was killed while it wrote: passed over, counted
    cut short, a clock behind it      the same, and the process was started again: both
    anything else                     refused with file and line
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.events import CLOCK, NODE_ABOUT
from luwu.base.foreign import lines_of
from luwu.base.json_file import json_object

_LINE_START: Final = b'{"name":"'
_CLOCK_START: Final = _LINE_START + CLOCK.encode() + b'"'
_KINDS: Final = ("worker", "switch", "node")


@dataclass(frozen=True, slots=True)
class EventFile:
    """The events of one process."""

    path: Path
    kind: str
    """`worker`, `switch`, `node` or another."""
    rank: int

    @property
    def title(self) -> str:
        """For people: `worker 0`, `node`."""
        return self.path.stem.replace("-", " ")


def event_files(folder: Path) -> list[EventFile]:
    """The files of a run: workers by rank, then switch, node and others."""
    files = []
    for path in folder.glob("*.jsonl"):
        kind, _, which = path.stem.partition("-")  # a rank; of a switch in a tree, its name
        files.append(EventFile(path, kind, int(which) if which.isdecimal() else 0))
    place = {kind: index for index, kind in enumerate(_KINDS)}
    files.sort(key=lambda f: (place.get(f.kind, len(_KINDS)), f.rank, f.path.name))
    if not files:
        raise ConfigError(f"no events in {folder}; name the directory of a run", code="E202")
    return files


# ---------------------------------------------------------------------- one file


def records(
    path: Path, *, mark: bytes = b"", on_cut: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """The records of a file; with `mark`, only of lines that hold it. Raises ConfigError.

    `on_cut` is called for each line cut short by a kill.
    """
    for number, line in enumerate(lines_of(path), start=1):
        if mark not in line:
            continue
        record = json_object(line)
        if not record:
            again = line.rfind(_CLOCK_START)
            cut, rest = (line[:again], line[again:]) if again > 0 else (line, b"")
            record = json_object(rest)
            is_cut = cut.startswith(_LINE_START[: len(cut)])
            if not is_cut or (not record and line.endswith(b"\n")):
                raise garbage(path, number, "no JSON object")
            on_cut()
            if not record:
                return
        wrong = _what_is_wrong(record)
        if wrong:
            raise garbage(path, number, wrong)
        yield record


def spans(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """The spans of one name in a file, with their own times; none if there is no file."""
    if not path.exists():
        return
    for record in records(path, mark=f'"name":"{name}"'.encode()):
        if record["name"] == name and "end_ns" in record:
            yield record


def _what_is_wrong(record: Mapping[str, Any]) -> str:
    """The reason why this is no record; empty if it is one."""
    if not isinstance(record.get("name"), str):
        return "no record with a name"
    start_ns, end_ns = record.get("start_ns"), record.get("end_ns")
    is_span = type(start_ns) is int and type(end_ns) is int and start_ns <= end_ns
    if not is_span and not (start_ns is None and end_ns is None):
        return f"start_ns and end_ns are {start_ns!r} and {end_ns!r}"
    if record["name"] == CLOCK:
        fields = [type(record.get(name)) for name in ("monotonic_ns", "unix_ns", "boot")]
        return "" if fields == [int, int, str] else "no whole clock record"
    if record["name"] == NODE_ABOUT and not are_units(record.get("units")):
        return "units are not a list of names and counts"
    if not is_span and type(record.get("at_ns")) is not int:
        return f"at_ns is {record.get('at_ns')!r}"
    return ""


def garbage(path: Path, number: int, what: str) -> ConfigError:
    """The refusal of a line."""
    return ConfigError(
        f"{path}:{number}: {what}; luwu did not write this line, or it was changed. Remove it to "
        "read the rest"
    )


class Units:
    """Names of units by the numbers of their extents, which follow each other."""

    def __init__(self, rows: Sequence[tuple[str, int]] = ()) -> None:
        """`rows`: name and number of extents of each unit, in order."""
        self._names = [name for name, _ in rows]
        self._ends = list(accumulate(count for _, count in rows))

    def name_of(self, extent: object) -> str | None:
        """The unit of an extent; None if it is unknown."""
        if type(extent) is not int or extent < 0:
            return None
        index = bisect_right(self._ends, extent)
        return self._names[index] if index < len(self._names) else None


def are_units(rows: Any) -> bool:
    """True for the `units` of a record: `[["root", 3], ["blocks.0", 2]]`."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and [type(each) for each in row] == [str, int] and row[1] >= 0
        for row in rows
    )

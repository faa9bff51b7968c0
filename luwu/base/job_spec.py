"""The specification of a job, for all its processes: one value, one encoder.

    JobSpec      in the connection file (`luwu.join.connection.Connection`), and in what a node or
                 switch is started with (`switch_emu.process.role_spec.RoleSpec`)

`document_of` makes JSON of such a value and `from_document` reads it. Paths are texts there, links
and retry policies dictionaries, tuples lists.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from luwu.base.errors import ConfigError, suggestion
from luwu.base.json_file import read_json
from luwu.base.retry import RetryPolicy

SpecT = TypeVar("SpecT")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Settings that all processes of a job have in common."""

    job: int
    """Number of the job, which no other job has."""
    chunk_bytes: int
    grace_s: float = 600.0
    """How long a member waits for others that are away."""
    arena_bytes: int = 0
    """Shared memory of each child for what it sends, where links are shm://; 0: none is shared."""
    extent_chunks: int = 1
    """Chunks that travel together at most (`luwu.layout.Layout`)."""
    replicas: int = 1
    """Optimizer nodes that hold each page."""
    retry: RetryPolicy | None = None
    """How patient a child is with its parent, where their link is emulated; None: as usual."""
    insecure: bool = False
    """The user allowed connections to leave this machine without keys."""

    @property
    def extent_bytes(self) -> int:
        """The most float32 gradient that travels in one message."""
        return self.extent_chunks * self.chunk_bytes


def common(kind: type, source: object) -> dict[str, Any]:
    """The values in `source` of those fields that a dataclass `kind` has too. A setting that is
    called the same in both is passed on by this, and needs no line where it is."""
    names = (each.name for each in dataclasses.fields(kind))
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def document_of(spec: JobSpec) -> dict[str, Any]:
    """A specification as JSON takes it; `from_document` reads it."""
    return {name: _plain(value) for name, value in dataclasses.asdict(spec).items()}


def from_document(kind: type[SpecT], document: Mapping[str, Any], where: str) -> SpecT:
    """The specification, or a value in one, that `document_of` wrote at a place of that name.

    Raises ConfigError for what is unknown, missing or of another type.
    """
    hints = typing.get_type_hints(kind)
    for name in document:
        if name not in hints:
            raise ConfigError(f"{where}: unknown {name!r:.80}{suggestion(name, hints)}")
    missing = [
        each.name
        for each in dataclasses.fields(kind)  # type: ignore[arg-type]
        if each.name not in document
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} missing; copy what luwu up printed")
    found = {
        name: _as_hinted(hints[name], value, f"{where}: {name}") for name, value in document.items()
    }
    return kind(**found)


def read_again(file: Path, job: int) -> dict[str, Any]:
    """The document of the connection file of a job. Raises ConfigError if that is not there."""
    document = read_json(file)
    if document is None:
        raise ConfigError(f"there is no {file}: the job is dialled where it was")
    if document.get("job") != job:
        raise ConfigError(
            f"{file} is of job {document.get('job')}, not {job}, which is dialled where it was"
        )
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


_IN_WORDS: Final = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a text",
    type(None): "null",
}  # fmt: skip


def _as_hinted(hint: Any, value: Any, where: str) -> Any:
    """A value of JSON as a field of this type has it. Raises ConfigError."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        if kind is Path and isinstance(value, str):
            return Path(value)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
            return from_document(kind, value, where)
        of = typing.get_args(kind)
        if typing.get_origin(kind) is tuple and isinstance(value, list):  # JSON has no tuples
            return tuple(_as_hinted(of[0], each, where) for each in value)
        if typing.get_origin(kind) is typing.Literal and value in of:
            return value
    expected = " or ".join(_IN_WORDS.get(kind, "as luwu writes it") for kind in kinds)
    raise ConfigError(f"{where} is {value!r:.60}, not {expected}")

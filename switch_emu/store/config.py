"""The configuration of a store: fields and page kinds; it never changes.

A *page* is the disk record of one chunk. Its record is a list of fields; each field starts on a
multiple of 64 bytes. A field and the gap behind it are a *part*, covered by one checksum:

    adamw    | weight ..... | m ..... | v ..... | updates,gap |
             0              ^ multiples of 64   ^             record_bytes

A kind fixes its sizes, so the shorter last page of a region has its own kind; a model has a few.
The configuration is written once, when the store is made.

    luwu-store 1 0f3c...9a          format version, xxh3-128 of everything behind this line
    { "store_uuid": ..., "pages": [[3814, 0, 262144], [1, 1, 4096]], ... }

Pages are written as runs of (count, kind index, elements), so a million pages stay short.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import xxhash

from luwu.base.dtypes import DTYPES, PAGE_DTYPES
from luwu.base.errors import ConfigError, PageCorruptError, StateError
from luwu.base.foreign import parse_json, taking
from luwu.base.limits import CHUNK_COUNT_MAX
from luwu.base.quantities import decimal

FORMAT_VERSION = 1
"""Raised with any change that an older program would misread."""

FIELD_ALIGN_BYTES = 64
"""Fields start on a cache line: fastest for vectorised kernels."""


def _aligned(count: int) -> int:
    return -(-count // FIELD_ALIGN_BYTES) * FIELD_ALIGN_BYTES


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a page record."""

    name: str
    dtype: str
    elems: int

    def __post_init__(self) -> None:
        if self.dtype not in PAGE_DTYPES:
            raise ConfigError(
                f"field {self.name!r}: dtype {self.dtype!r} cannot be stored; "
                f"use one of {', '.join(PAGE_DTYPES)}"
            )
        if self.elems < 1:
            raise ConfigError(f"field {self.name!r}: elems must be at least 1, got {self.elems}")

    @property
    def field_bytes(self) -> int:
        """Bytes without the gap behind it."""
        return self.elems * DTYPES[self.dtype].nbytes


@dataclass(frozen=True)
class PageKind:
    """The fields of a page record, in their order on disk."""

    name: str
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [item.name for item in self.fields]
        if not names or len(set(names)) != len(names):
            raise ConfigError(
                f"page kind {self.name!r} has the fields {names}; "
                "it needs at least one, each with a name of its own"
            )

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each field within the record; multiples of 64."""
        sizes = [_aligned(item.field_bytes) for item in self.fields]
        return tuple(accumulate(sizes[:-1], initial=0))

    @cached_property
    def record_bytes(self) -> int:
        """Bytes of a whole record; a multiple of 64."""
        return self.offsets[-1] + _aligned(self.fields[-1].field_bytes)

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) in bytes of each field with the gap behind it; they cover the record."""
        return tuple(zip(self.offsets, (*self.offsets[1:], self.record_bytes), strict=True))

    @cached_property
    def _indexes(self) -> dict[str, int]:
        return {item.name: index for index, item in enumerate(self.fields)}

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        starts = zip(self.fields, self.offsets, strict=True)
        return [(start, start + item.field_bytes) for item, start in starts]

    def index(self, field_name: str) -> int:
        """Position of a field. Raises StateError if there is no such field."""
        found = self._indexes.get(field_name)
        if found is None:
            raise StateError(
                f"page kind {self.name!r} has no field {field_name!r}; "
                f"it has {', '.join(self._indexes)}"
            )
        return found

    def has(self, field_name: str) -> bool:
        """True if there is such a field."""
        return field_name in self._indexes

    def dtype(self, field_name: str) -> str:
        """The dtype of a field. Raises StateError if there is no such field."""
        return self.fields[self.index(field_name)].dtype

    def range(self, field_name: str) -> tuple[int, int]:
        """(start, stop) in bytes of a field within the record, without the gap. Raises StateError
        if there is no such field."""
        return self._ranges[self.index(field_name)]


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """The configuration of a store, fixed when it is made. Raises ConfigError."""

    kinds: tuple[PageKind, ...]

    page_kinds: tuple[int, ...]
    """Index into `kinds` per page."""

    page_elems: tuple[int, ...]
    """Elements of each page's chunk, with padding."""

    optimizer: str
    """Name of the update kernel; another one is rejected unless requested."""

    chunk_bytes: int
    """Bytes of float32 gradient in a full chunk: the value of `--chunk`."""

    layout_hash: str
    """Hash of the layout of the model that this store holds."""

    description: bytes = b""
    """Canonical description of the job; opaque to the store."""

    store_uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies this store in all jobs: 32 hexadecimal digits."""

    def __post_init__(self) -> None:
        if not self.page_kinds:
            raise ConfigError("a store needs at least one page; give this node a chunk to own")
        if not all(0 <= index < len(self.kinds) for index in set(self.page_kinds)):
            raise ConfigError(
                f"page kinds are numbered 0 to {len(self.kinds) - 1}, "
                f"got {sorted(set(self.page_kinds))}"
            )
        if len(self.store_uuid) != 32 or set(self.store_uuid) - set("0123456789abcdef"):
            raise ConfigError(f"store_uuid must be 32 hexadecimal digits, got {self.store_uuid!r}")

    @property
    def page_count(self) -> int:
        """Pages of this store; they are numbered from 0."""
        return len(self.page_kinds)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of all records: the training state without copies or padding."""
        return sum(self.record_bytes)

    @cached_property
    def record_bytes(self) -> tuple[int, ...]:
        """Bytes of each page's record."""
        sizes = [kind.record_bytes for kind in self.kinds]
        return tuple(sizes[index] for index in self.page_kinds)

    def kind(self, page: int) -> PageKind:
        """The kind of a page. Raises StateError if there is no such page."""
        if not 0 <= page < len(self.page_kinds):
            raise StateError(
                f"page {page} does not exist; this store has 0 to {self.page_count - 1}"
            )
        return self.kinds[self.page_kinds[page]]


_MAGIC = "luwu-store"


def encode_config(config: StoreConfig) -> bytes:
    """The bytes of a CONFIG file."""
    pages = zip(config.page_kinds, config.page_elems, strict=True)
    body = json.dumps(
        {
            "store_uuid": config.store_uuid,
            "optimizer": config.optimizer,
            "chunk_bytes": config.chunk_bytes,
            "layout_hash": config.layout_hash,
            "description": config.description.hex(),
            "kinds": [
                {"name": kind.name, "fields": [[f.name, f.dtype, f.elems] for f in kind.fields]}
                for kind in config.kinds
            ],
            "pages": [[len(list(run)), kind, elems] for (kind, elems), run in groupby(pages)],
        },
        separators=(",", ":"),
    ).encode()
    line = f"{_MAGIC} {FORMAT_VERSION} {xxhash.xxh3_128_hexdigest(body)}\n"
    return line.encode() + body


def decode_config(data: bytes, *, place: str) -> StoreConfig:
    """The configuration in a CONFIG file.

    Raises: PageCorruptError if it is damaged; ConfigError if another format version wrote it.
    """
    line, _, body = data.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != _MAGIC or decimal(words[1]) is None:
        raise PageCorruptError(
            f"{place} does not start like the configuration of a store (found {line[:40]!r}). "
            "Restore the store from a checkpoint, or name another directory."
        )
    if int(words[1]) != FORMAT_VERSION:
        raise ConfigError(
            f"{place} has format version {words[1]}, this program reads {FORMAT_VERSION}; "
            "use the program that made it (if this one did, the file is damaged)"
        )
    found = xxhash.xxh3_128_hexdigest(body)
    if found != words[2]:
        raise PageCorruptError(
            f"{place}: checksum 0x{found}, expected 0x{words[2]}. The file changed after it was "
            "written; restore the store from a checkpoint."
        )
    with taking(place, PageCorruptError):
        return _decoded(parse_json(body))


def _decoded(values: dict[str, Any]) -> StoreConfig:
    if sum(count for count, _, _ in values["pages"]) > CHUNK_COUNT_MAX:
        raise ValueError(f"it has more than {CHUNK_COUNT_MAX} pages")
    return StoreConfig(
        store_uuid=values["store_uuid"],
        optimizer=values["optimizer"],
        chunk_bytes=values["chunk_bytes"],
        layout_hash=values["layout_hash"],
        description=bytes.fromhex(values["description"]),
        kinds=tuple(
            PageKind(kind["name"], tuple(Field(*item) for item in kind["fields"]))
            for kind in values["kinds"]
        ),
        page_kinds=tuple(kind for count, kind, _ in values["pages"] for _ in range(count)),
        page_elems=tuple(elems for count, _, elems in values["pages"] for _ in range(count)),
    )

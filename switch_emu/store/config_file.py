"""The CONFIG file: one line with the format and a checksum, then readable JSON.

    luwu-store 1 0f3c...9a          format version, xxh3-128 of everything behind this line
    { "store_uuid": ..., "pages": [[3814, 0, 262144], [1, 1, 4096]], ... }

Pages are written as runs of (count, kind index, elements), so a million pages stay short.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import xxhash

from luwu.base.errors import ConfigError, PageCorruptError
from luwu.base.foreign import parse_json, taking
from luwu.base.limits import CHUNK_COUNT_MAX
from luwu.base.quantities import decimal
from switch_emu.store.config import FORMAT_VERSION, Field, PageKind, StoreConfig

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
    line = f"{_MAGIC} {config.format_version} {xxhash.xxh3_128_hexdigest(body)}\n"
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

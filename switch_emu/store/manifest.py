"""meta.dat: the superblock and the two manifests, each stored twice.

    0        16 KiB                                               end
    | ring  | manifest 0 | manifest 0 | manifest 1 | manifest 1 |
              copy 0       copy 1       copy 0       copy 1

A *manifest* is one version as a whole: the record of the step, then the page table. The ring holds
the *superblock*, which names the manifest that is decided and the one that is prepared, by place,
size and checksum. A manifest is always written to the place that is not decided.

The superblock has the checksum of its manifest, so both are written before one flush; a superblock
that reached the disk without its manifest reads as "not prepared", and
"prepared" has not been reported.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import xxhash

from luwu.base.errors import PageCorruptError, StateError
from luwu.base.foreign import counted, natural, parse_json, plain_text, typed
from luwu.base.limits import CLIPS_MAX, WORLD_SIZE_MAX
from switch_emu.store.direct_io import BLOCK_BYTES, BlockFile, aligned_buffer
from switch_emu.store.records import Contributor, DecidedStep
from switch_emu.store.ring import RING_BYTES
from switch_emu.store.versions import PageTable, TableShape

STEP_RECORD_BYTES_MAX = 256 * 1024
"""Ledger, hyper-parameters and the rest of one step: 1,024 contributors take about 40 KiB."""

_MAGIC = b"LUWUMAN1"
_HEAD = struct.Struct("<8s16sQQQ")  # magic, store uuid, version, step record bytes, table bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRef:
    """The superblock's reference to a manifest."""

    version: int
    attempt: int
    place: int
    """0 or 1."""
    size: int
    digest: str
    """xxh3-128 in hexadecimal."""

    @classmethod
    def from_json(cls, values: dict[str, Any] | None) -> ManifestRef | None:
        """The reference of an entry in the superblock."""
        if values is None:
            return None
        return cls(
            version=counted(values["version"]), attempt=counted(values["attempt"]),
            place=natural(values["place"], 1), size=natural(values["size"]),
            digest=plain_text(values["digest"]),
        )  # fmt: skip


def region_bytes(shape: TableShape) -> int:
    """Bytes reserved for one copy of a manifest."""
    most = _HEAD.size + STEP_RECORD_BYTES_MAX + shape.table_bytes
    return -(-most // BLOCK_BYTES) * BLOCK_BYTES


def meta_bytes(shape: TableShape) -> int:
    """Size of meta.dat."""
    return RING_BYTES + 4 * region_bytes(shape)


def copy_offset(shape: TableShape, place: int, copy: int) -> int:
    """Offset in meta.dat of one copy of a manifest."""
    return RING_BYTES + (2 * place + copy) * region_bytes(shape)


def encode_manifest(
    step: DecidedStep, table: PageTable, *, store_uuid: str, place: int
) -> tuple[ManifestRef, memoryview]:
    """The reference to a manifest, and its bytes in an aligned buffer of whole blocks.

    Raises: StateError if the step's own record is too large.
    """
    record = json.dumps(step_values(step), separators=(",", ":")).encode()
    if len(record) > STEP_RECORD_BYTES_MAX:
        raise StateError(
            f"the record of version {step.version} has {len(record)} bytes, at most "
            f"{STEP_RECORD_BYTES_MAX} fit in a manifest; put less into hyper and extra"
        )
    pages = table.encode()
    head = _HEAD.pack(_MAGIC, bytes.fromhex(store_uuid), step.version, len(record), len(pages))
    size = len(head) + len(record) + len(pages)
    buffer = aligned_buffer(-(-size // BLOCK_BYTES) * BLOCK_BYTES)
    buffer[:size] = b"".join((head, record, pages))
    digest = xxhash.xxh3_128_hexdigest(buffer[:size])
    ref = ManifestRef(
        version=step.version, attempt=step.attempt, place=place, size=size, digest=digest
    )
    return ref, buffer


def read_manifest(
    file: BlockFile, ref: ManifestRef, shape: TableShape
) -> tuple[DecidedStep, PageTable, tuple[int, ...]]:
    """The step, its page table, and the damaged copies.

    Raises: PageCorruptError if both copies are damaged.
    """
    if not _HEAD.size <= ref.size <= region_bytes(shape):
        raise ValueError(f"a manifest of {ref.size} bytes is not one of this store")
    whole: memoryview | None = None
    damaged: list[int] = []
    found = ""
    for copy in range(2):
        data = aligned_buffer(-(-ref.size // BLOCK_BYTES) * BLOCK_BYTES)
        file.read(copy_offset(shape, ref.place, copy), data)
        found = xxhash.xxh3_128_hexdigest(data[: ref.size])
        if found == ref.digest:
            whole = data[: ref.size]
        else:
            damaged.append(copy)
    if whole is None:
        raise PageCorruptError(
            f"manifest of version {ref.version} in {file.name}: checksum 0x{found}, expected "
            f"0x{ref.digest}, in both copies. They changed after they were written; restore the "
            "store from a checkpoint."
        )
    _, _, _, record_bytes, _ = _HEAD.unpack_from(whole)
    pages_at = _HEAD.size + record_bytes
    step = step_of(parse_json(bytes(whole[_HEAD.size : pages_at])))
    return step, PageTable.decode(shape, whole[pages_at:]), tuple(damaged)


def repair_manifest(
    file: BlockFile, ref: ManifestRef, shape: TableShape, damaged: tuple[int, ...]
) -> None:
    """Rewrite damaged copies from the intact one; the caller flushes."""
    buffer = aligned_buffer(-(-ref.size // BLOCK_BYTES) * BLOCK_BYTES)
    for copy in damaged:
        file.read(copy_offset(shape, ref.place, 1 - copy), buffer)
        file.write(copy_offset(shape, ref.place, copy), buffer)


def step_values(step: DecidedStep) -> dict[str, Any]:
    """A step's record as values of JSON."""
    return {each.name: getattr(step, each.name) for each in fields(step)} | {
        "hyper": step.hyper.hex(),
        "norms": [float(norm).hex() for norm in step.norms],
        "extra": dict(step.extra),
    }


def step_of(values: Mapping[str, Any]) -> DecidedStep:
    """The step of what `step_values` makes. Raises errors of MALFORMED."""
    contributors, before = typed(values["contributors"], list), values.get("grad_norm")
    # Older records have one norm, of the mean gradient.
    norms = typed(values.get("norms", [] if before is None else [before]), list)
    if len(contributors) > WORLD_SIZE_MAX:
        raise ValueError(f"it has {len(contributors)} contributors, at most {WORLD_SIZE_MAX}")
    if len(norms) > 1 + CLIPS_MAX:
        raise ValueError(f"it has {len(norms)} norms, at most {1 + CLIPS_MAX}")
    return DecidedStep(
        version=counted(values["version"]),
        attempt=counted(values["attempt"]),
        epoch=counted(values["epoch"]),
        job=natural(values["job"]),
        generation=counted(values["generation"]),
        contributors=tuple(
            Contributor(natural(rank), natural(incarnation), natural(cursor))
            for rank, incarnation, cursor in contributors
        ),
        hyper=bytes.fromhex(values["hyper"]),
        applied=typed(values["applied"], bool),
        norms=tuple(map(float.fromhex, norms)),
        extra={plain_text(k): plain_text(v) for k, v in typed(values["extra"], dict).items()},
    )

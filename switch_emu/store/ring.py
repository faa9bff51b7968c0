"""A small record that is replaced often and can always be read back.

Four blocks of 4 KiB: records are numbered, number n goes to both copies of pair n % 2, so a write
that is cut short damages only the pair that is not in use yet:

    | n     copy 0 | n     copy 1 | n + 1 copy 0 | n + 1 copy 1 |

Reading takes the highest number that has a valid copy. Two valid copies of one number that differ
cannot come from a crash: that is an error, not a choice.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import xxhash

from luwu.base.errors import PageCorruptError
from luwu.base.foreign import parse_json
from switch_emu.store.direct_io import (
    BLOCK_BYTES,
    BUFFERED_BY_CHOICE,
    BlockFile,
    IoCounter,
    aligned_buffer,
)

RING_BYTES = 4 * BLOCK_BYTES

_MAGIC = b"LUWUREC1"
_HEAD = struct.Struct("<8s16sQQQ")  # magic, store uuid, block, record number, payload bytes
_DIGEST_BYTES = 16
_PAYLOAD_BYTES_MAX = BLOCK_BYTES - _HEAD.size - _DIGEST_BYTES


def read_record(path: Path, store_uuid: str) -> dict[str, Any]:
    """The newest record of a file that may be open. Raises PageCorruptError, OSError."""
    with BlockFile(path, BUFFERED_BY_CHOICE, IoCounter(), synced=False, read_only=True) as file:
        return RecordRing(file, store_uuid).read()


class RecordRing:
    """The record at the start of a file. The caller of `write` flushes."""

    def __init__(self, file: BlockFile, store_uuid: str) -> None:
        self._file = file
        self._uuid = bytes.fromhex(store_uuid)
        self._number = 0
        self._buffer = aligned_buffer(RING_BYTES)
        self.damaged_count = 0
        """Blocks that were written and that `read` could not use."""

    def read(self) -> dict[str, Any]:
        """The newest record. Raises PageCorruptError if none is intact."""
        self._file.read(0, self._buffer)
        found: dict[int, bytes] = {}
        self.damaged_count = 0
        for block in range(4):
            data = bytes(self._buffer[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
            record = self._decode(data, block)
            if record is None:
                self.damaged_count += any(data)
                continue
            number, payload = record
            if found.setdefault(number, payload) != payload:
                raise PageCorruptError(
                    f"{self._file.name}: the two copies of record {number} are both valid and "
                    "differ, so neither can be trusted. Restore the store from a checkpoint."
                )
        if not found:
            raise PageCorruptError(
                f"{self._file.name}: none of the 4 copies of its first record is whole. "
                "Restore the store from a checkpoint."
            )
        self._number = max(found)
        values: dict[str, Any] = parse_json(found[self._number])
        return values

    def write(self, values: dict[str, Any]) -> None:
        """Write the next record, both copies."""
        self._number += 1
        payload = json.dumps(values, separators=(",", ":")).encode()
        assert len(payload) <= _PAYLOAD_BYTES_MAX, "records are small by construction"
        for copy in range(2):
            block = 2 * (self._number % 2) + copy
            head = _HEAD.pack(_MAGIC, self._uuid, block, self._number, len(payload))
            body = head + payload
            data = (body + xxhash.xxh3_128_digest(body)).ljust(BLOCK_BYTES, b"\0")
            self._buffer[:BLOCK_BYTES] = data
            self._file.write(block * BLOCK_BYTES, self._buffer[:BLOCK_BYTES])

    def _decode(self, data: bytes, block: int) -> tuple[int, bytes] | None:
        magic, store_uuid, written_block, number, size = _HEAD.unpack_from(data)
        if (magic, store_uuid, written_block) != (_MAGIC, self._uuid, block):
            return None
        if size > _PAYLOAD_BYTES_MAX or block // 2 != number % 2:
            return None
        end = _HEAD.size + size
        if xxhash.xxh3_128_digest(data[:end]) != data[end : end + _DIGEST_BYTES]:
            return None
        return number, data[_HEAD.size : end]

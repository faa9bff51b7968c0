"""Writes safetensors files whose tensors never lie in memory as a whole.

What is written is planned first, so headers are known before the data: tensors in the order given,
each file as many as fit, a tensor never in two files. Then the bytes come in that same order, in
slices of any size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from luwu.base.closing import Closing
from luwu.tensor_files.directory import INDEX_SUFFIX, SUFFIX
from luwu.tensor_files.header import Tensor, encode_header

WRITE_BYTES: Final = 1024 * 1024
"""Small slices are gathered; larger ones go straight to the file."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to be written."""

    name: str
    tensors: tuple[Tensor, ...]
    header: bytes

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.header) + sum(tensor.nbytes for tensor in self.tensors)


def plan_shards(tensors: Sequence[Tensor], stem: str, shard_bytes_max: int) -> tuple[Shard, ...]:
    """Which tensor goes to which file; a tensor larger than `shard_bytes_max` has one of its own.

    One file is `STEM.safetensors`; several are numbered.
    """
    groups: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        if not groups or tensor.nbytes > room:
            groups.append([])
            room = shard_bytes_max
        groups[-1].append(tensor)
        room -= tensor.nbytes
    count = len(groups)
    names = [f"{stem}-{i:05}-of-{count:05}{SUFFIX}" for i in range(1, count + 1)]
    if count == 1:
        names = [f"{stem}{SUFFIX}"]
    return tuple(
        Shard(name, tuple(group), encode_header(group))
        for name, group in zip(names, groups, strict=True)
    )


class TensorWriter(Closing):
    """Takes the bytes of planned tensors in order; each file is flushed when it is complete."""

    def __init__(self, directory: Path, stem: str, shards: Sequence[Shard]) -> None:
        self.digests: dict[str, str] = {}
        """xxh3-128 of each tensor that is complete."""
        self._directory, self._stem, self._shards = directory, stem, shards
        self._shard_index = self._tensor_index = 0
        self._missing_bytes = 0
        self._digest = xxhash.xxh3_128()
        self._file: Any = None
        self._start_tensor()

    def add(self, data: memoryview) -> None:
        """The next bytes of the tensor whose turn it is."""
        assert data.nbytes <= self._missing_bytes, "a slice belongs to one tensor"
        self._digest.update(data)
        self._file.write(data)
        self._missing_bytes -= data.nbytes
        if not self._missing_bytes:
            self._note_digest()
            self._start_tensor()

    def finish(self) -> None:
        """All tensors are there: write the index of several files, as Hugging Face does."""
        assert self._shard_index == len(self._shards), "tensors are missing"
        if len(self._shards) > 1:
            places = [(tensor, shard.name) for shard in self._shards for tensor in shard.tensors]
            document = {
                "metadata": {"total_size": sum(tensor.nbytes for tensor, _ in places)},
                "weight_map": {tensor.name: name for tensor, name in places},
            }
            text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
            write_synced(self._directory / f"{self._stem}{INDEX_SUFFIX}", text.encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _start_tensor(self) -> None:
        """Open the next file where one is due; tensors without bytes are complete at once."""
        while self._shard_index < len(self._shards):
            shard = self._shards[self._shard_index]
            if self._file is None:
                self._file = _create(self._directory / shard.name, shard.nbytes)
                self._file.write(shard.header)
            if self._tensor_index < len(shard.tensors):
                self._missing_bytes = shard.tensors[self._tensor_index].nbytes
                self._digest.reset()
                if self._missing_bytes:
                    return
                self._note_digest()
            else:
                self._file.flush()
                os.fsync(self._file.fileno())
                self.close()
                self._shard_index, self._tensor_index = self._shard_index + 1, 0

    def _note_digest(self) -> None:
        tensor = self._shards[self._shard_index].tensors[self._tensor_index]
        self.digests[tensor.name] = self._digest.hexdigest()
        self._tensor_index += 1


def write_synced(path: Path, data: bytes) -> None:
    """Write a small file, and flush it."""
    with _create(path, len(data)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _create(path: Path, nbytes: int) -> Any:
    """A new file with all its space allocated, so that the disk is not found full half-way."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "wb", buffering=WRITE_BYTES)

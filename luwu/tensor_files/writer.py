"""Writes safetensors files whose tensors never lie in memory as a whole.

What is written is planned first, so headers are known before the data: tensors in the order given,
each file as many as fit, a tensor never in two files. Then the bytes come in that same order, in
slices of any size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

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


def write_tensors(
    directory: Path, stem: str, shards: Sequence[Shard], data: Iterator[memoryview]
) -> dict[str, str]:
    """Write planned files, and the index of several, as Hugging Face does; xxh3-128 of each tensor.

    `data`: the bytes of all tensors, in order; each slice belongs to one.
    """
    digests: dict[str, str] = {}
    for shard in shards:
        with _create(directory / shard.name, shard.nbytes) as file:
            file.write(shard.header)
            for tensor in shard.tensors:
                digest, missing = xxhash.xxh3_128(), tensor.nbytes
                while missing > 0:
                    part = next(data)
                    digest.update(part)
                    file.write(part)
                    missing -= part.nbytes
                assert not missing, "a slice belongs to one tensor"
                digests[tensor.name] = digest.hexdigest()
            file.flush()
            os.fsync(file.fileno())
    assert next(data, None) is None, "there are more tensors"
    if len(shards) > 1:
        places = [(tensor, shard.name) for shard in shards for tensor in shard.tensors]
        document = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor, _ in places)},
            "weight_map": {tensor.name: name for tensor, name in places},
        }
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_synced(directory / f"{stem}{INDEX_SUFFIX}", text.encode())
    return digests


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

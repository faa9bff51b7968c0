"""The scratch file: places of any length, reused; no name; errors with file, offset and remedy."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from luwu.activations.scratch_file import BLOCK_BYTES, Extents, ScratchFile
from luwu.base.errors import ConfigError, StateError, StoreFullError


def make(directory: Path) -> ScratchFile:
    return ScratchFile(directory, what="tests", remedy="delete something")


def data(value: int, nbytes: int) -> memoryview:
    return memoryview(bytearray([value]) * nbytes)


@contextmanager
def file_limit(nbytes: int) -> Iterator[None]:
    """No file of this process may be longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("seed", range(5))
def test_free_parts_are_what_nobody_has(seed: int) -> None:
    """Goal: no two takers get the same address, what is given back is found again, and in the end
    all of it is one part. Method: take and give at random, beside a map of single addresses."""
    chance = random.Random(seed)
    extents, total = Extents(), 200
    extents.give(0, total)
    owner: list[int | None] = [None] * total
    taken: dict[int, int] = {}
    for turn in range(400):
        if taken and chance.random() < 0.5:
            start = chance.choice(list(taken))
            length = taken.pop(start)
            extents.give(start, length)
            owner[start : start + length] = [None] * length
            continue
        length = chance.randint(1, 20)
        found = extents.take(length)
        free = "".join("." if each is None else "#" for each in owner)
        assert (found is None) == ("." * length not in free)
        if found is not None:
            assert found == free.index("." * length)
            owner[found : found + length] = [turn] * length
            taken[found] = length
    for start, length in taken.items():
        extents.give(start, length)
    assert extents.take(total) == 0


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Goal: places of different lengths keep their bytes; a place is used again, and the file does
    not grow while it has one."""
    with make(tmp_path) as file:
        sizes = [1, BLOCK_BYTES, 3 * BLOCK_BYTES + 7, 100_000]
        places = [file.take(nbytes) for nbytes in sizes]
        for value, (offset, nbytes) in enumerate(zip(places, sizes, strict=True)):
            file.write(offset, data(value, nbytes))
        for value, (offset, nbytes) in enumerate(zip(places, sizes, strict=True)):
            into = data(255, nbytes)
            file.read(offset, into)
            assert into == data(value, nbytes)
        length = file.disk_bytes
        assert os.fstat(file._fd).st_size == length
        for offset, nbytes in zip(places, sizes, strict=True):
            file.free(offset, nbytes)
        assert file.take(length) == 0
        assert file.disk_bytes == length


def test_it_has_no_name_and_leaves_nothing(tmp_path: Path) -> None:
    """I8. Goal: nothing in the directory from the start; no descriptor after close or the end of
    the object."""
    before = len(os.listdir("/proc/self/fd"))
    file = make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before
    other = make(tmp_path)
    del other
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.*name a directory"):
        make(tmp_path / "gone")


def test_a_full_disk_is_told_with_numbers(tmp_path: Path) -> None:
    """I6. Goal: which file, from where, by how much, why, what to do; the rest can be
    used. Method: the process may have no file beyond 64 KiB."""
    with make(tmp_path) as file, file_limit(65536):
        offset = file.take(65536)
        with pytest.raises(StoreFullError) as caught:
            file.take(4096)
        assert str(caught.value) == (
            f"the file for tests in {tmp_path} cannot grow from 64.00 KiB by 4.00 KiB: "
            "[Errno 27] File too large. No file may be larger than 65536 bytes here: raise this "
            "limit (ulimit -f) and start again, or delete something."
        )
        file.free(offset, 65536)
        assert file.take(4096) == 0


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    """I6. Goal: file and offset. Method: the file is exchanged for one that is always full, and for
    one that is shorter than what was written."""
    with make(tmp_path) as file:
        offset = file.take(5000)
        own = os.dup(file._fd)
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, file._fd)
        with pytest.raises(
            StateError, match=f"{tmp_path} cannot be written at offset 0: .*No space"
        ):
            file.write(offset, data(1, 5000))
        os.dup2(own, file._fd)
        os.truncate(file._fd, 1000)
        with pytest.raises(
            StateError, match=r"cannot be read at offset 1000: .*4000 bytes too early"
        ):
            file.read(offset, data(0, 5000))
        os.close(own)
        os.close(full)

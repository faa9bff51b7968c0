"""The spill file: equal places, reused; nothing in the directory; a full disk has a name."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.errors import StateError, StoreFullError
from switch_emu.store.spill import SpillFile

PLACE = 4096


def data(value: int, nbytes: int = PLACE) -> memoryview:
    return memoryview(bytes([value]) * nbytes)


@pytest.mark.parametrize("buffers_count", [1, 2])
def test_what_is_put_comes_back(tmp_path: Path, buffers_count: int) -> None:
    """Goal: bytes of every size up to a place, several at a time, read any number of times; places
    are handed out in order, which is what a disk likes best, and what was read is a copy."""
    spill = SpillFile(tmp_path, place_bytes=PLACE, places_count=3, buffers_count=buffers_count)
    sizes = [PLACE, 1, 1000]
    assert [spill.put(data(value, nbytes)) for value, nbytes in enumerate(sizes)] == [0, 1, 2]
    for _ in range(2):
        for place, nbytes in enumerate(sizes):
            got = spill.get(place, 0, nbytes)
            assert got == data(place, nbytes)
    assert spill.bytes_written == sum(sizes)
    assert spill.bytes_read == 2 * sum(sizes)
    spill.free(2)
    assert spill.put(data(7)) == 2
    assert got == data(2, 1000)
    spill.close()


def test_places_are_used_again_before_the_file_grows(tmp_path: Path) -> None:
    """I8. Goal: the file is as large as what was in it at once, in steps of `places_count`, and
    takes its space before it is needed, so that a full disk is found then; it has no name, and
    closing gives its space back."""
    before = len(os.listdir("/proc/self/fd"))
    spill = SpillFile(tmp_path, place_bytes=PLACE, places_count=2)
    assert os.fstat(spill._fd).st_blocks * 512 >= spill.disk_bytes == 2 * PLACE
    for value in range(50):
        spill.free(spill.put(data(value)))
    assert spill.disk_bytes == 2 * PLACE
    held = [spill.put(data(value)) for value in range(5)]
    assert os.fstat(spill._fd).st_size == spill.disk_bytes == 6 * PLACE
    assert [spill.get(place, 0, PLACE) for place in held] == [data(value) for value in range(5)]
    for place in held:
        spill.free(place)
    assert {spill.put(data(value)) for value in range(6)} == set(range(6))
    assert spill.disk_bytes == 6 * PLACE
    assert list(tmp_path.iterdir()) == []
    spill.close()
    spill.close()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """Goal: an error that names the place."""
    with pytest.raises(StateError, match=r"no spill file .* can be made in .*gone"):
        SpillFile(tmp_path / "gone", place_bytes=PLACE, places_count=1)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files that this process writes may have 200,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_told_with_numbers(tmp_path: Path) -> None:
    """I6, I8. Goal: what could not grow, from where, by how much, why, and what to do; what was
    there already stays readable, a place in hand can still be used, and nothing is left open.
    Method: a third place does not fit."""
    open_files = len(os.listdir("/proc/self/fd"))
    nbytes = 64 * 1024
    with pytest.raises(StoreFullError) as started:
        SpillFile(tmp_path, place_bytes=nbytes, places_count=4)
    assert len(os.listdir("/proc/self/fd")) == open_files
    with SpillFile(tmp_path, place_bytes=nbytes, places_count=2) as spill:
        held = [spill.put(data(value, nbytes)) for value in range(2)]
        with pytest.raises(StoreFullError) as grown:
            spill.put(data(2, nbytes))
        spill.free(held[1])
        assert spill.put(data(9, nbytes)) == held[1]
        assert [spill.get(place, 0, 1)[0] for place in held] == [0, 9]
        assert spill.disk_bytes == 2 * nbytes
    for found, start, added in (
        (grown, "128.00 KiB", "128.00 KiB"),
        (started, "0 B", "256.00 KiB"),
    ):
        text = str(found.value)
        assert f"cannot grow from {start} by {added}" in text
        assert "File too large" in text
        assert "(ulimit -f) and start the node again, or raise --memory-budget" in text


def test_what_is_being_written_can_be_read(tmp_path: Path) -> None:
    """Goal: `get` returns what was put last, whether or not the thread behind has written it; a
    place that is freed and used again in between holds the later bytes.
    Method: more places than buffers, each read at once, freed and put to again; then read all."""
    nbytes = 1024 * 1024 + 512
    spill = SpillFile(tmp_path, place_bytes=nbytes, places_count=8)
    for value in range(40):
        place = spill.put(data(value, nbytes))
        assert spill.get(place, 0, nbytes) == data(value, nbytes)
        if value < 32:
            spill.free(place)
    places = [spill.put(data(value, nbytes)) for value in range(8)]
    assert spill.disk_bytes == 16 * (nbytes + 4096 - 512)
    for value, place in enumerate(places):
        assert spill.get(place, 0, nbytes) == data(value, nbytes)
    spill.close()


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    """I6. Goal: an error of the thread that writes behind reaches whoever calls next.
    Method: its file is exchanged for one that is always full."""
    spill = SpillFile(tmp_path, place_bytes=PLACE, places_count=2)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, spill._fd)
    os.close(full)
    spill.put(data(1))
    with pytest.raises(StateError, match="spill file"):
        for _ in range(1000):
            spill.free(spill.put(data(2)))
    spill.close()

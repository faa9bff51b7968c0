"""Bytes that change on disk: found, or of no consequence; see also `test_verify.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from luwu.base.errors import PageCorruptError
from switch_emu.store import FilePageStore
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.geometry import Geometry
from tests.suites.store_suite import contents, read, record, small_config, take_step, write_pages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store at version 3, closed; versions 2 and 3 lie on the two sides."""
    with FilePageStore.create(tmp_path / "store", small_config(), durability="process") as store:
        for version in range(4):
            take_step(store, version)
    return tmp_path / "store"


def overwrite(file: Path, offset: int, data: bytes) -> None:
    """Change bytes in place."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip(file: Path, offset: int, rng: np.random.Generator) -> None:
    """Flip one bit."""
    byte = file.read_bytes()[offset]
    overwrite(file, offset, bytes([byte ^ (1 << int(rng.integers(8)))]))


def test_the_message_says_what_where_and_what_to_do(path: Path) -> None:
    """P3. Goal: the error names page, file, field, both checksums, the step and the way out."""
    overwrite(path / "side1.dat", Geometry(small_config()).offsets[5] + 20_000, b"rot")
    with FilePageStore.open(path) as store:
        with pytest.raises(PageCorruptError) as caught:
            read(store, 5, 3)
        assert read(store, 4, 3) == record(store, 4, 3)
        into = memoryview(bytearray(4096 * 4))
        store.read_field(5, 3, "weight", into)  # the rot is in m
        with pytest.raises(PageCorruptError):
            store.read_field(5, 3, "m", into)
    text = str(caught.value)
    assert text.startswith("page 5 of side1.dat, field m: checksum 0x")
    for part in ("expected 0x", "(version 3, attempt 0)", "restore the shard from a checkpoint"):
        assert part in text


@pytest.mark.parametrize("seed", range(10))
def test_every_flipped_bit_in_a_decided_page_is_found(path: Path, seed: int) -> None:
    """P3. Goal: 100 % detection where it matters. Method: flip one bit of a decided record."""
    rng = np.random.default_rng(seed)
    config = small_config()
    geometry = Geometry(config)
    page = [0, 1, 2, 4, 5][rng.integers(5)]  # pages 3 and 6 have no bytes in the side file
    body = geometry.body_bytes[config.page_kinds[page]]
    flip(path / "side1.dat", geometry.offsets[page] + int(rng.integers(body)), rng)
    with FilePageStore.open(path) as store, pytest.raises(PageCorruptError, match=f"page {page} "):
        read(store, page, 3)


def test_record_copies_that_differ_are_an_error(path: Path, tmp_path: Path) -> None:
    """Goal: two valid copies of one number that say different things are not a choice.
    Method: fork the store's history, then mix the copies of the same record number."""
    fork = tmp_path / "fork"
    shutil.copytree(path, fork)
    for place, attempt in ((path, 1), (fork, 2)):
        with FilePageStore.open(place) as store:
            store.record_attempt(attempt)
            write_pages(store, [0], 4, attempt)
    other = (fork / "LOCK").read_bytes()
    for block in (0, 2):
        overwrite(path / "LOCK", block * BLOCK_BYTES, other[block * BLOCK_BYTES :][:BLOCK_BYTES])
    with pytest.raises(PageCorruptError, match="both valid and differ"):
        FilePageStore.open(path)


def test_what_rots_in_mid_run_is_not_used(path: Path) -> None:
    """P2, P3. Goal: each kind of byte, changed under an open store: pages are found when they
    are read, records are not read and are written anew by the next two steps, and then all is
    whole. Method: every block of meta.dat and LOCK is changed, and one byte of a page."""
    with FilePageStore.open(path) as store:
        rng = np.random.default_rng(5)
        for name in ("meta.dat", "LOCK"):
            for offset in range(60, (path / name).stat().st_size, BLOCK_BYTES):
                flip(path / name, offset, rng)
        flip(path / "side1.dat", Geometry(small_config()).offsets[5] + 20_000, rng)
        assert read(store, 0, 3) == record(store, 0, 3)
        with pytest.raises(PageCorruptError, match=r"page 5 of side1\.dat, field m"):
            read(store, 5, 3)
        for version in (4, 5):
            take_step(store, version)
        store.record_attempt(1)
        assert contents(store, 5) == [record(store, page, 5) for page in range(7)]
    with FilePageStore.open(path) as store:
        assert contents(store, 5) == [record(store, page, 5) for page in range(7)]
    with FilePageStore.open(path) as store:
        assert store.notes == ()

"""Files of attachments: what a rank replaces beside a decided version."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.errors import PageCorruptError
from switch_emu.store import DecidedStep
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.records import RECORD_KEY


def decided(files: AttachmentFiles, version: int, attempt: int = 1) -> DecidedStep:
    """A version beside which two ranks have attached something."""
    for rank in range(2):
        files.put(version, attempt, rank, 0, memoryview(b"%d of %d" % (rank, version)))
    seal = files.seal(version, attempt)
    step = DecidedStep(version=version, attempt=attempt, extra={RECORD_KEY: seal})
    files.note_decided(version, step)
    return step


def content(files: AttachmentFiles, step: DecidedStep) -> dict[int, bytes]:
    with files.open(step) as opened:
        assert {rank: sum(sizes) for rank, sizes in opened.sizes.items()} == {
            rank: len(data) for rank, data in opened.read_all().items()
        }
        return opened.read_all()


@pytest.mark.parametrize("is_in_ram", [False, True])
def test_a_replacement_is_behind_what_it_replaces(is_in_ram: bool, tmp_path: Path) -> None:
    """I2, I8. Goal: one of both is there, whole; it counts for its version alone, made under its
    attempt, and goes with that. Method: the last of two counts; those of other versions, and of a
    rank that attached nothing, are nothing; an opened version stays as it was opened."""
    directory = None if is_in_ram else tmp_path
    with AttachmentFiles(directory, synced=True, decided=None) as files:
        first = decided(files, 1)
        before = files.open(first)
        for version, rank, data in ((1, 0, b"old"), (1, 0, b"+ new"), (0, 1, b"no"), (1, 7, b"no")):
            files.replace(first, version, rank, memoryview(data))
        assert content(files, first) == {0: b"0 of 1+ new", 1: b"1 of 1"}
        assert before.read_all() == {0: b"0 of 1", 1: b"1 of 1"}
        before.close()
        second = decided(files, 2, attempt=12)
        assert content(files, first)[0] == b"0 of 1+ new"  # for a reader of it
        assert content(files, second) == {0: b"0 of 2", 1: b"1 of 2"}
        files.replace(second, 2, 1, memoryview(b"+ new"))
        third = decided(files, 3)
        assert content(files, second)[1] == b"1 of 2+ new"
    if not is_in_ram:
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["kept-2-12-1.dat", "kept-2-12.dat", "kept-3-1.dat"]
        with AttachmentFiles(tmp_path, synced=True, decided=third) as files:
            assert content(files, second)[1] == b"1 of 2+ new"


def test_a_replacement_is_whole_or_not_there(tmp_path: Path) -> None:
    """I2, P3. Goal: a file that was being written counts for nothing; one that changed is named."""
    with AttachmentFiles(tmp_path, synced=False, decided=None) as files:
        step = decided(files, 1)
        (tmp_path / "kept-1-1-0.new").write_bytes(b"half")
        assert content(files, step) == {0: b"0 of 1", 1: b"1 of 1"}
        files.replace(step, 1, 0, memoryview(b"+ new"))
        path = tmp_path / "kept-1-1-0.dat"
        path.write_bytes(path.read_bytes().replace(b"new", b"old"))
        with pytest.raises(PageCorruptError, match="changed after it was written"):
            content(files, step)

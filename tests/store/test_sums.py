"""P9: a state in RAM that keeps the sums of its last steps on disk, and few of its pages."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from luwu.base.errors import ConfigError, StateError
from switch_emu.store import DecidedStep, FilePageStore, MemoryPageStore, StoreConfig, sums
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.sums import SUMS_NAME, SumShape, _narrowed
from tests.suites.store_suite import contents, read, record, small_config, sum_of, take_step

PAGES = range(7)
TRAINED = (0, 1, 2, 4, 5)
SLOTS = 3


def update(
    page: int, before: memoryview, data: memoryview, dtype: str, step: DecidedStep, note: bytes
) -> None:
    """An update whose result depends on the record before, the sum, the step and the note."""
    values = np.frombuffer(before, np.uint16)
    values *= 3
    values += np.resize(np.frombuffer(data, np.uint16), values.size)
    values += np.uint16(step.version + note[0])


class Job:
    """A store that is updated as a node does it, and what each version of it is to be."""

    def __init__(
        self, path: Path, seed: int, *, in_place: bool = False, has_zeros: bool = False
    ) -> None:
        """`has_zeros`: some sums are zeros, as those of experts that no token came to."""
        self.path, self.in_place, self.has_zeros = path, in_place, has_zeros
        self.random = Random(seed)
        self.expected: dict[int, list[bytes]] = {}
        FilePageStore.create(path, small_config(), durability="process", direct_io=False).close()
        self.store = self.opened(path)
        take_step(self.store, 0)
        self.expected[0] = contents(self.store, 0)

    def opened(self, path: Path, slots: int = SLOTS) -> LoggedPageStore:
        """The store at a path, open, its RAM loaded."""
        file = FilePageStore.open(path, durability="process", direct_io=False)
        file.redo = update
        file.keep_log(SumShape(file.config, slots, 1))
        ram = MemoryPageStore(file.config, in_place=self.in_place, has_digests=not self.in_place)
        return LoggedPageStore(file, ram)

    def write(self, pages: Sequence[int], version: int, attempt: int) -> list[bytes]:
        """Update some pages; what the version is then."""
        store, now = self.store, list(self.expected[version - 1])
        for page in pages:
            data = sum_of(store.config, page, version, attempt)
            if self.has_zeros and (page + version) % 3:
                data = memoryview(bytes(len(data)))
            dtype = "float32" if page % 3 else "bfloat16"
            whole = bytearray(now[page])
            update(
                page, memoryview(whole), data, dtype,
                DecidedStep(version=version, attempt=attempt), bytes([page]),
            )  # fmt: skip
            if store.wants_sum(page):
                store.log_sum(page, version, attempt, data, dtype, bytes([page]))
            store.write(page, version, attempt, whole)
            now[page] = bytes(whole)
        return now

    def step(self, pages: Sequence[int], *, applied: bool = True) -> None:
        """Take a step that updates some pages."""
        version, attempt = len(self.expected), self.store.attempt
        made = self.write(pages, version, attempt)
        self.expected[version] = made if applied else self.expected[version - 1]
        self.store.prepare(DecidedStep(version=version, attempt=attempt, applied=applied))
        self.store.decide(version, attempt)

    def give_up(self, pages: Sequence[int], image: Path | None = None) -> None:
        """Begin a step, and abort it; `image`: after it was prepared, and copied to there."""
        version, attempt = len(self.expected), self.store.attempt
        made = self.write(pages, version, attempt)
        if image is not None:
            self.store.prepare(DecidedStep(version=version, attempt=attempt))
            self.check_prepared(image, made)
        self.store.record_attempt(attempt + 1)
        self.store.abort(attempt)

    def some_pages(self) -> Sequence[int]:
        return sorted(self.random.sample(TRAINED, self.random.randrange(len(TRAINED) + 1)))

    def check_image(self, path: Path) -> None:
        """A copy of the directory, as a kill leaves it, opens at the version that is decided."""
        shutil.copytree(self.path, path)
        version = len(self.expected) - 1
        with FilePageStore.open(path, read_only=True) as file:
            file.redo = update
            assert contents(file, version) == self.expected[version]
            for page in PAGES:
                into = memoryview(bytearray(file.config.kind(page).fields[-1].field_bytes))
                name = file.config.kind(page).fields[-1].name
                file.read_field(page, version, name, into)
                start, stop = file.config.kind(page).range(name)
                assert bytes(into) == self.expected[version][page][start:stop]
        store = self.opened(path)
        assert contents(store, version) == self.expected[version]
        store.close()
        with FilePageStore.open(path, read_only=True) as file:  # without a log it would do
            assert contents(file, version) == self.expected[version]
        shutil.rmtree(path)

    def check_prepared(self, path: Path, made: list[bytes]) -> None:
        """A copy of the directory opens with the prepared version, which can be decided and given
        up, and goes on from there."""
        former, version = self.store, len(self.expected)
        for is_decided in (True, False):
            shutil.copytree(self.path, path)
            self.store = store = self.opened(path)
            assert store.prepared is not None
            assert contents(store, version - 1) == self.expected[version - 1]
            assert contents(store, version) == made
            assert store.digest(range(7), version) == former.digest(range(7), version)
            if is_decided:
                store.decide(version, store.attempt)
                self.expected[version] = made
            else:
                store.record_attempt(store.attempt + 1)
                store.abort(store.attempt - 1)
            self.path, home = path, self.path
            for _ in range(SLOTS):  # each page has its turn, whether it is updated or not
                self.step(())
            self.check_image(path.with_suffix(".next"))
            store.close()
            self.path = home
            for each in [each for each in self.expected if each >= version]:
                del self.expected[each]
            shutil.rmtree(path)
        self.store = former


@pytest.mark.parametrize("seed", range(6))
def test_killed_after_any_step_a_store_opens_at_it(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, P9. Goal: pages and sums on disk are each version, whatever was updated, skipped, given
    up or opened again, and whether all sums wait, some or none. Method: 30 calls from a seed; after
    each, open a copy."""
    monkeypatch.setattr(sums, "_WAITING_BYTES_MAX", (0, 40_000, 1 << 20)[seed % 3])
    job = Job(tmp_path / "store", seed, has_zeros=seed % 2 > 0)
    for call in range(30):
        what = job.random.choice(("step", "step", "step", "skip", "abort", "prepared", "open"))
        if what == "open":
            job.store.close()
            job.store = job.opened(job.path)
        elif what in ("abort", "prepared"):
            image = tmp_path / "prepared" if what == "prepared" else None
            job.give_up(job.some_pages(), image)
        else:
            job.step(job.some_pages(), applied=what == "step")
        job.check_image(tmp_path / f"image-{call}")
    job.store.close()


def test_a_page_is_written_whole_when_its_turn_comes(tmp_path: Path) -> None:
    """P9. Goal: in k steps of all pages each is written once, and its sum k - 1 times; a page
    without a sum is not written at all."""
    job = Job(tmp_path / "store", 0, in_place=True)
    config, file = job.store.config, job.store._file
    for pages in (TRAINED, TRAINED, (), ()):
        before = file.stats.bytes_written
        for _ in range(SLOTS):
            job.step(pages)
        written = file.stats.bytes_written - before
        if pages:
            # A record ends in the manifest, a sum of few elements takes a block.
            whole = sum(config.record_bytes[page] // 4096 * 4096 for page in pages)
            sums = sum(len(sum_of(config, page, 0, 0)) for page in pages)
            assert abs(written - whole - (SLOTS - 1) * sums) < SLOTS * 7 * 4096 * 2
            assert written < SLOTS * whole
    headers = SLOTS * file._sums.shape.header_bytes if file._sums else 0
    assert written <= headers
    job.check_image(tmp_path / "image")
    job.store.close()


def test_small_sums_wait_and_neighbours_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9. Goal: until a step is prepared its small sums cost no write, then one for neighbours; a
    page's last sum counts, whether it waits or not; of a step that is given up none is written."""
    job = Job(tmp_path / "store", 0)
    log, offsets = job.store._file._sums, list[int]()
    assert log is not None
    write = log._file.write

    def recorded(offset: int, data: memoryview) -> None:
        offsets.extend([offset] * (len(data) > 0))
        write(offset, data)

    monkeypatch.setattr(log._file, "write", recorded)
    pages = [page for page in TRAINED if job.store.wants_sum(page)]
    again, offset = pages[0], log.shape.offset(0, pages[0])
    most = sum(log.shape.places[page + 1] - log.shape.places[page] for page in pages)
    monkeypatch.setattr(sums, "_WAITING_BYTES_MAX", most)
    assert job.store._file.is_quick(again, 1)
    job.expected[0] = job.write(pages, 1, 0)
    assert not offsets
    assert not job.store._file.is_quick(again, 1)
    job.write([again], 1, 0)
    assert offsets == [offset]
    job.store.prepare(DecidedStep(version=1, attempt=0))
    assert len(offsets) == 3, "one for all others, and the header"
    assert offset not in offsets[1:]
    job.give_up(())
    job.give_up(pages)
    job.step(())
    assert all(each < log.shape.offset(0, 0) for each in offsets[3:])
    job.store.close()


def test_a_sum_of_zeros_takes_no_bytes(tmp_path: Path) -> None:
    """P9. Goal: a page whose sum is zeros is updated all the same, and nothing of it is written."""
    job = Job(tmp_path / "store", 0, has_zeros=True)
    file = job.store._file
    assert file._sums is not None
    header = file._sums.shape.header_bytes
    for _ in range(SLOTS):
        version, before = len(job.expected), file.stats.bytes_written
        zeros = [
            page for page in TRAINED if (page + version) % 3 and not job.store._file.has_turn(page)
        ]
        assert zeros
        job.step(zeros)
        assert job.expected[version] != job.expected[version - 1]
        assert file.stats.bytes_written - before <= header + sum(
            file.config.record_bytes[page] for page in PAGES if page not in zeros
        )
        job.check_image(tmp_path / f"image-{version}")
    job.store.close()


def test_without_the_update_a_page_that_lacks_sums_is_not_read(tmp_path: Path) -> None:
    """P9. Goal: who cannot make updates again is told so, and never given an older record."""
    job = Job(tmp_path / "store", 1)
    job.step(TRAINED)
    shutil.copytree(job.path, tmp_path / "image")
    job.store.close()
    with FilePageStore.open(tmp_path / "image", read_only=True) as file:
        lacking = [page for page in PAGES if file.lacking(page, 1)]
        assert lacking
        for page in PAGES:
            if page in lacking:
                with pytest.raises(StateError, match=f"page {page} .* start the job once"):
                    read(file, page, 1)
            else:
                assert read(file, page, 1) == job.expected[1][page]


@pytest.mark.parametrize("what", ["sum", "header", "file"])
def test_a_damaged_log_is_found_before_it_is_used(tmp_path: Path, what: str) -> None:
    """P3, G3. Goal: a flipped bit in a sum or a header, and a log that is gone, are errors."""
    job = Job(tmp_path / "store", 2)
    job.step(TRAINED)
    shutil.copytree(job.path, tmp_path / "image")
    file = job.store._file
    assert file._sums is not None
    shape = file._sums.shape
    page = next(page for page in PAGES if file.lacking(page, 1))
    offset = shape.offset(0, page) if what == "sum" else shape.header_offset(0) + 100
    job.store.close()
    path = tmp_path / "image" / SUMS_NAME
    if what == "file":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[offset] ^= 4
        path.write_bytes(data)
    expected = {
        "sum": f"the sum of page {page} in version 1 has checksum",
        "header": "the sums of version 1 are not whole",
        "file": "is missing, and version 1 needs it",
    }
    with pytest.raises(StateError, match=expected[what]):
        job.opened(tmp_path / "image")


def test_another_log_takes_the_place_of_one_that_is_settled(tmp_path: Path) -> None:
    """P2. Goal: with other slots, or no log, a store that was killed goes on where it was."""
    job = Job(tmp_path / "store", 3)
    for _ in range(4):
        job.step(TRAINED)
    version = len(job.expected) - 1
    for slots in (5, 0):
        path = tmp_path / f"image-{slots}"
        shutil.copytree(job.path, path)
        file = FilePageStore.open(path, durability="process", direct_io=False)
        file.redo = update
        file.keep_log(SumShape(file.config, slots, 1) if slots else None)
        assert (path / SUMS_NAME).exists() == bool(slots)
        assert contents(file, version) == job.expected[version]
        assert not any(file.lacking(page, version) for page in PAGES)
        file.close()
    job.store.close()


@pytest.mark.parametrize("first", [(), TRAINED])
def test_a_store_that_is_filled_forgets_what_it_had(tmp_path: Path, first: Sequence[int]) -> None:
    """P7. Goal: neither sums nor pages of before are in what follows. Method: it is filled in the
    middle of a step."""
    job = Job(tmp_path / "store", 8)
    job.step(TRAINED)
    job.write(TRAINED, 2, 0)  # some have their turn
    job.store.begin_filling(7)
    records = [record(job.store, page, 7) for page in PAGES]
    for page in PAGES:
        job.store.fill(page, records[page])
    job.expected = {version: records for version in range(8)}
    for number, pages in enumerate((first, *[()] * SLOTS, TRAINED)):
        job.step(pages)
        job.check_image(tmp_path / f"image-{number}")
    job.store.close()


@pytest.mark.parametrize("is_decided", [True, False])
def test_the_first_version_of_a_filled_store_may_be_prepared(
    tmp_path: Path, is_decided: bool
) -> None:
    """P2, P7. Goal: a node that dies as the first version with all pages waits for the others has
    that version prepared, and no other."""
    job = Job(tmp_path / "store", 10)
    job.store.begin_filling(7)
    job.expected = {version: [record(job.store, page, 7) for page in PAGES] for version in range(8)}
    for page in PAGES:
        job.store.fill(page, job.expected[7][page])
    made = job.write(TRAINED, 8, 0)
    job.store.prepare(DecidedStep(version=8, attempt=0))
    job.store.close()
    job.store = job.opened(job.path)
    assert (job.store.decided, job.store.prepared and job.store.prepared.version) == (None, 8)
    assert contents(job.store, 8) == made
    if is_decided:
        job.store.decide(8, 0)
        job.expected[8] = made
        for _ in range(SLOTS):
            job.step(())
        job.check_image(tmp_path / "image")
    else:
        job.store.record_attempt(1)
        job.store.abort(0)
        assert (job.store.decided, job.store.prepared) == (None, None)
    job.store.close()


def test_a_bit_that_flipped_in_ram_is_gone_after_an_abort(tmp_path: Path) -> None:
    """P1. Goal: replicas that differ make the step again, from what was decided."""
    job = Job(tmp_path / "store", 9)
    for _ in range(2):
        job.step(TRAINED)
    for page in PAGES:
        side = job.store._steps.entry_to_read(page, 2).side
        job.store._ram._sides[side].record(page)[17] ^= 2
    assert contents(job.store, 2) != job.expected[2]
    job.give_up(())
    assert contents(job.store, 2) == job.expected[2]
    job.store.close()


def test_another_log_waits_for_a_prepared_step(tmp_path: Path) -> None:
    """P2. Goal: what a step under way has in the log is not dropped; the error has the flags."""
    job = Job(tmp_path / "store", 7)
    job.step(TRAINED)
    job.write(TRAINED, 2, 0)
    job.store.prepare(DecidedStep(version=2, attempt=0))
    job.store.close()
    for slots in (5, 0):
        with (
            FilePageStore.open(job.path, durability="process", direct_io=False) as file,
            pytest.raises(ConfigError, match=f"step 2 was under way.* --log-steps {SLOTS} "),
        ):
            file.keep_log(SumShape(file.config, slots, 1) if slots else None)
    job.store = job.opened(job.path)
    assert job.store.prepared is not None
    job.store.close()


def test_a_store_whose_disk_failed_is_not_settled(tmp_path: Path) -> None:
    """P5. Goal: after a failed write nothing is written any more, at the end neither."""
    job = Job(tmp_path / "store", 4)
    job.step(TRAINED)
    before = {path.name: path.read_bytes() for path in job.path.iterdir()}
    job.store._file._stopped = "a write failed"
    job.store.close()
    assert {path.name: path.read_bytes() for path in job.path.iterdir()} == before


def test_a_page_that_is_not_trained_has_no_sum(tmp_path: Path) -> None:
    """Goal: frozen pages take no room in the log, and are never asked for."""
    job = Job(tmp_path / "store", 5)
    config: StoreConfig = job.store.config
    assert [page for page in PAGES if not job.store.wants_sum(page)][-1] == 6
    assert SumShape(config, SLOTS, 1).places[3] == SumShape(config, SLOTS, 1).places[4]
    assert record(job.store, 3, 0) == job.expected[0][3]
    job.store.close()


def test_a_sum_of_bfloat16_values_takes_half(tmp_path: Path) -> None:
    """Goal: float32 values that are all of bfloat16 are kept as such; one other, and none is."""
    job = Job(tmp_path / "store", 6)
    file, seen = job.store._file, list[tuple[bytes, str]]()
    assert file._sums is not None

    def redo(
        page: int, found: memoryview, data: memoryview, dtype: str, step: DecidedStep, note: bytes
    ) -> None:  # fmt: skip
        seen.append((bytes(data), dtype))

    values = np.arange(4096, dtype=np.uint32) << 16
    for attempt in (0, 1):
        values[-1] += attempt
        file.log_sum(5, 1, attempt, memoryview(values.tobytes()), "float32", b"a")
        job.store.write(5, 1, attempt, record(job.store, 5, 1))
        job.store.prepare(DecidedStep(version=1, attempt=attempt))
        file._sums.redo(file._sums._steps[1, attempt], 5, memoryview(b""), redo)
        job.store.record_attempt(attempt + 1)
        job.store.abort(attempt)
    narrow = np.arange(4096, dtype=np.uint16)
    assert seen == [(narrow.tobytes(), "bfloat16"), (values.tobytes(), "float32")]
    job.store.close()


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([0.0, 0.0], "float32", ("zeros", 0)),
        ([0.0, -0.0], "float32", ("bfloat16", 4)),
        ([0.0, 1.0], "float32", ("bfloat16", 4)),
        ([0.0, 1.1], "float32", ("float32", 8)),
        ([0.0, 0.0], "float16", ("zeros", 0)),
        ([0.0, -0.0], "float16", ("float16", 4)),
    ],
)
def test_a_sum_is_written_in_as_few_bytes_as_have_its_bits(
    values: list[float], dtype: str, found: tuple[str, int]
) -> None:
    """I3. Goal: no bit is lost, not even the sign of a zero."""
    data, name = _narrowed(memoryview(np.array(values, dtype)).cast("B"), dtype)
    assert (name, len(data)) == found

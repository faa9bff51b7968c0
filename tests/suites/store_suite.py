"""What every page store must do, and every kind of store.

The store has seven pages of four kinds, chosen for their shapes on disk: records that end on a
block, a little behind one, far behind one, and records shorter than a block. `record` gives each
(page, version, attempt) bytes of its own, so a page found where it should not be is recognised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from luwu.base.errors import StateError
from luwu.base.seeds import derive
from switch_emu.store import (
    Contributor,
    DecidedStep,
    Field,
    FilePageStore,
    MemoryPageStore,
    PageKind,
    PageStore,
    StaleAttempt,
    StoreConfig,
    TieredPageStore,
    VersionMissing,
)
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.sums import SumShape
from switch_emu.store.views import RecordRows


def adamw_kind(elems: int) -> PageKind:
    """Master weights, both moments, and one counter: it leaves a gap of 56 bytes."""
    arrays = [Field(name, "float32", elems) for name in ("weight", "m", "v")]
    return PageKind("adamw", (*arrays, Field("updates", "int64", 1)))


def sgd_kind(elems: int) -> PageKind:
    """Master weights and momentum."""
    return PageKind("sgd", (Field("weight", "float32", elems), Field("momentum", "float32", elems)))


def frozen_kind(elems: int) -> PageKind:
    """Weights that never change."""
    return PageKind("frozen", (Field("weight", "float32", elems),))


def small_config(**changes: object) -> StoreConfig:
    """Seven pages of a few KiB, of all shapes."""
    values: dict[str, object] = {
        "kinds": (adamw_kind(4096), adamw_kind(64), sgd_kind(1024), frozen_kind(64)),
        "page_kinds": (0, 1, 2, 3, 2, 0, 3),
        "page_elems": (4096, 64, 1024, 64, 1024, 4096, 64),
        "optimizer": "adamw",
        "chunk_bytes": 16 * 1024,
        "layout_hash": "layout-1",
        "description": b"\x00a job\xff",
    }
    return StoreConfig(**(values | changes))  # type: ignore[arg-type]


def record(store: PageStore, page: int, version: int, attempt: int = 0) -> bytes:
    """The bytes that belong to this page, version and attempt, gaps included."""
    rng = np.random.default_rng(derive(0, "record", page, version, attempt))
    return rng.bytes(store.config.kind(page).record_bytes)


def read(store: PageStore, page: int, version: int) -> bytes:
    """A whole record."""
    into = memoryview(bytearray(store.config.kind(page).record_bytes))
    store.read(page, version, into)
    return bytes(into)


def contents(store: PageStore, version: int) -> list[bytes]:
    """All records of a version."""
    return [read(store, page, version) for page in range(store.config.page_count)]


def write_pages(store: PageStore, pages: Iterable[int], version: int, attempt: int = 0) -> None:
    """Write some pages of a version with the bytes that belong there."""
    for page in pages:
        store.write(page, version, attempt, record(store, page, version, attempt))


def take_step(
    store: PageStore, version: int, *, attempt: int = 0, pages: Iterable[int] | None = None
) -> DecidedStep:
    """Write, prepare and decide a version; all pages unless told otherwise."""
    chosen = range(store.config.page_count) if pages is None else pages
    write_pages(store, chosen, version, attempt)
    step = DecidedStep(version=version, attempt=attempt)
    store.prepare(step)
    store.decide(version, attempt)
    return step


def sum_of(config: StoreConfig, page: int, version: int, attempt: int) -> memoryview:
    """The sum that belongs to this page, version and attempt; every third page's has 16 bits."""
    rng = np.random.default_rng(derive(0, "sum", page, version, attempt))
    return memoryview(rng.bytes((4 if page % 3 else 2) * config.page_elems[page]))


class SummingStore(LoggedPageStore):
    """A store that keeps a sum of each page that is written, as far as it wants one."""

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        for page in range(first, first + rows.count):
            if page < self.config.page_count and self.wants_sum(page):
                data = sum_of(self.config, page, version, attempt)
                dtype = "float32" if page % 3 else "bfloat16"
                self.log_sum(page, version, attempt, data, dtype, b"%d" % page)
        super().write_rows(first, version, attempt, rows)

    @classmethod
    def of(cls, file: FilePageStore, slots_count: int = 3) -> SummingStore:
        """The store of these files, which get a log."""

        def redo(
            page: int, before: memoryview, data: memoryview, dtype: str, step: DecidedStep,
            note: bytes,
        ) -> None:  # fmt: skip
            assert data == sum_of(file.config, page, step.version, step.attempt)
            assert (dtype == "float32") == bool(page % 3)
            assert int(note.rstrip(b"\0")) == page
            before[:] = record(file, page, step.version, step.attempt)

        file.redo = redo
        file.keep_log(SumShape(file.config, slots_count, 8))
        return cls(file, MemoryPageStore(file.config, has_digests=True))


STORES: dict[str, Callable[[Path, StoreConfig], PageStore]] = {
    "memory": lambda path, config: MemoryPageStore(config, has_digests=True),
    "file": FilePageStore.create,
    "buffered": lambda path, config: FilePageStore.create(
        path, config, durability="process", direct_io=False
    ),
    "tier of none": lambda path, config: TieredPageStore(FilePageStore.create(path, config), 0),
    "tier of some": lambda path, config: TieredPageStore(
        FilePageStore.create(path, config), config.state_bytes // 2
    ),
    "tier of all": lambda path, config: TieredPageStore(
        FilePageStore.create(path, config), config.state_bytes
    ),
    "logged": lambda path, config: SummingStore.of(FilePageStore.create(path, config)),
    "paced": lambda path, config: TieredPageStore(
        MemoryPageStore(config, has_digests=True), config.state_bytes // 2, disk_bytes_per_s=1e12
    ),
}


class PageStoreSuite:
    """P1 to P5 of `switch_emu/store/interface.py`, as far as one opening can show them."""

    @pytest.fixture(params=STORES)
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageStore]:
        """A new store of `small_config()`, of each kind."""
        with STORES[request.param](tmp_path / "store", small_config()) as store:
            yield store

    def test_new_store_is_empty(self, store: PageStore) -> None:
        """Goal: before the initial weights nothing is decided and nothing can be read."""
        assert store.decided is None
        assert store.prepared is None
        assert store.attempt == 0
        assert store.generation >= 1
        assert store.config.state_bytes == sum(
            store.config.kind(page).record_bytes for page in range(store.config.page_count)
        )
        with pytest.raises(StateError, match="not written in attempt 0"):
            read(store, 0, 0)

    def test_round_trip_of_every_kind(self, store: PageStore) -> None:
        """P3. Goal: records and fields come back bit for bit, gaps included."""
        take_step(store, 0)

        for page in range(store.config.page_count):
            kind = store.config.kind(page)
            expected = record(store, page, 0)
            assert read(store, page, 0) == expected
            for item in kind.fields:
                into = memoryview(bytearray(item.field_bytes))
                store.read_field(page, 0, item.name, into)
                start, stop = kind.range(item.name)
                assert bytes(into) == expected[start:stop], item.name

    def test_records_in_ram_need_no_copy(self, store: PageStore) -> None:
        """P1. Goal: a record read where it lies is what `read` gives, and one made where it goes
        is what was written; the decided version is not touched."""
        take_step(store, 0)
        for page in range(store.config.page_count):
            before = read(store, page, 0)
            lying = store.rows_in_ram(page, 1, 0)
            assert lying is None or (lying.memory.readonly and bytes(lying.memory) == before)
            place = store.rows_to_fill(page, 1, 1, 0)
            new = record(store, page, 1)
            if place is not None:
                place.memory[:] = new
            store.write(page, 1, 0, new if place is None else place.memory)
            assert read(store, page, 1) == new
            assert read(store, page, 0) == before

    def test_two_versions_can_be_read(self, store: PageStore) -> None:
        """P1. Goal: the decided version stays whole while the next is made, and until decided."""
        take_step(store, 0)
        before = contents(store, 0)

        write_pages(store, range(store.config.page_count), 1)

        assert contents(store, 0) == before
        after = contents(store, 1)
        assert after != before
        store.prepare(DecidedStep(version=1, attempt=0))
        assert (contents(store, 0), contents(store, 1)) == (before, after)
        store.decide(1, 0)
        assert contents(store, 1) == after
        with pytest.raises(StateError, match="version 0 cannot be read"):
            read(store, 0, 0)

    def test_the_last_write_counts(self, store: PageStore) -> None:
        """Goal: a page may be written twice in an attempt."""
        take_step(store, 0)
        store.write(2, 1, 0, record(store, 2, 99))
        write_pages(store, range(store.config.page_count), 1)
        assert read(store, 2, 1) == record(store, 2, 1)

    @pytest.mark.parametrize("prepared", [False, True])
    def test_abort_forgets(self, store: PageStore, prepared: bool) -> None:
        """P1. Goal: after an abort the state is that before the attempt, and a new one can go on.
        Method: abort after some writes, and after prepare; then take the step under attempt 1."""
        take_step(store, 0)
        before = contents(store, 0)
        write_pages(store, [0, 2, 5], 1)
        if prepared:
            store.prepare(DecidedStep(version=1, attempt=0))

        store.abort(0)

        assert store.prepared is None
        assert contents(store, 0) == before
        with pytest.raises(StateError, match="not written"):
            read(store, 0, 1)
        with pytest.raises(StateError, match="cannot be decided"):
            store.decide(1, 0)
        with pytest.raises(StateError, match="stale"):
            write_pages(store, [1], 1, attempt=0)
        store.record_attempt(1)
        take_step(store, 1, attempt=1, pages=[1, 2])
        expected = [record(store, p, 1, 1) if p in (1, 2) else before[p] for p in range(7)]
        assert contents(store, 1) == expected

    def test_skipped_step_flips_no_page(self, store: PageStore) -> None:
        """P4. Goal: a step with applied=False counts and changes nothing, written pages or not."""
        take_step(store, 0)
        before = contents(store, 0)
        write_pages(store, [0, 1, 2], 1)
        skipped = DecidedStep(version=1, attempt=0, applied=False, norms=(float("inf"),))
        store.prepare(skipped)
        store.decide(1, 0)

        assert store.decided == skipped
        assert contents(store, 1) == before
        take_step(store, 2)
        assert contents(store, 2) == [record(store, page, 2) for page in range(7)]

    def test_resting_pages_keep_their_bytes(self, store: PageStore) -> None:
        """P4. Goal: pages not written in a step stay. Method: ten steps, each of other pages."""
        take_step(store, 0)
        newest = [0] * 7
        rng = np.random.default_rng(4)
        for version in range(1, 11):
            pages = [page for page in range(7) if rng.random() < 0.4]
            take_step(store, version, pages=pages)
            for page in pages:
                newest[page] = version
            expected = [record(store, page, newest[page]) for page in range(7)]
            assert contents(store, version) == expected, version

    def test_a_page_that_stays_is_in_the_version_being_made(self, store: PageStore) -> None:
        """P4. Goal: once it was to stay it can be read there, as it was, and not before; an abort
        forgets that."""
        take_step(store, 0)
        write_pages(store, [1], 1)
        store.keep(4, 2, 1, 0)
        for page in (4, 5):
            assert read(store, page, 1) == record(store, page, 0)
        with pytest.raises(VersionMissing, match="page 0 has no version 1 yet"):
            read(store, 0, 1)
        with pytest.raises(StaleAttempt):
            store.keep(0, 1, 1, 1)
        with pytest.raises(StateError, match="version 2 cannot be made"):
            store.keep(0, 1, 2, 0)
        if store.is_in_place:  # P8
            return
        store.record_attempt(1)
        store.abort(0)
        with pytest.raises(VersionMissing, match="page 4 has no version 1 yet"):
            read(store, 4, 1)
        take_step(store, 1, attempt=1, pages=[0])
        store.keep(0, 1, 2, 1)
        assert read(store, 0, 2) == record(store, 0, 1, 1)
        with pytest.raises(VersionMissing, match="page 4 has no version 2 yet"):
            read(store, 4, 2)

    def test_version_zero_needs_every_page(self, store: PageStore) -> None:
        """Goal: initial weights are all there or not decided."""
        write_pages(store, range(6), 0)
        with pytest.raises(StateError, match="1 are missing"):
            store.prepare(DecidedStep(version=0, attempt=0))
        write_pages(store, [6], 0)
        with pytest.raises(StateError, match="version 0"):
            store.prepare(DecidedStep(version=0, attempt=0, applied=False))
        store.prepare(DecidedStep(version=0, attempt=0))
        store.decide(0, 0)

    def test_the_record_of_a_step_is_kept(self, store: PageStore) -> None:
        """Goal: `decided` is what was prepared, in every field."""
        take_step(store, 0)
        step = DecidedStep(
            version=1,
            attempt=0,
            epoch=3,
            job=2**40 + 1,
            generation=store.generation,
            contributors=(Contributor(0, 4, 2**50), Contributor(1, 1, 7)),
            hyper=bytes(range(256)),
            norms=(0.1,),
            extra={"torch": "2.13", "rng": "é\n"},
        )
        store.prepare(step)
        assert store.prepared == step
        store.decide(1, 0)
        assert store.decided == step
        assert store.prepared is None

    def test_calls_out_of_order_change_nothing(self, store: PageStore) -> None:
        """Goal: each forbidden call raises and the store goes on as if it had not been made."""
        take_step(store, 0)
        write_pages(store, [0], 1)
        good = record(store, 1, 1)
        forbidden = [
            lambda: store.write(1, 2, 0, good),
            lambda: store.write(1, 0, 0, good),
            lambda: store.write(1, 1, 5, good),
            lambda: store.write(7, 1, 0, good),
            lambda: store.write(-1, 1, 0, good),
            lambda: store.write(1, 1, 0, good[:-1]),
            lambda: store.read(1, 2, memoryview(bytearray(len(good)))),
            lambda: store.read(1, 0, memoryview(bytearray(len(good) + 1))),
            lambda: store.read(1, 0, memoryview(good)),
            lambda: store.read_field(1, 0, "momentum", memoryview(bytearray(256))),
            lambda: store.prepare(DecidedStep(version=2, attempt=0)),
            lambda: store.prepare(DecidedStep(version=1, attempt=1)),
            lambda: store.decide(1, 0),
            lambda: store.record_attempt(-1),
        ]
        for call in forbidden:
            with pytest.raises(StateError):
                call()
        store.prepare(DecidedStep(version=1, attempt=0))
        for call in (
            lambda: store.write(1, 1, 0, good),
            lambda: store.prepare(DecidedStep(version=1, attempt=0)),
            lambda: store.decide(1, 1),
            lambda: store.decide(2, 0),
        ):
            with pytest.raises(StateError):
                call()
        store.decide(1, 0)
        expected = [record(store, 0, 1), *(record(store, page, 0) for page in range(1, 7))]
        assert contents(store, 1) == expected

    def test_attempts_never_go_back(self, store: PageStore) -> None:
        """P5. Goal: only the recorded attempt can be written under, and not mixed with another."""
        take_step(store, 0)
        store.record_attempt(5)
        store.record_attempt(5)
        assert store.attempt == 5
        with pytest.raises(StateError, match="never go back"):
            store.record_attempt(4)
        write_pages(store, [0], 1, attempt=5)
        store.record_attempt(6)
        with pytest.raises(StateError, match="attempt 5"):
            write_pages(store, [1], 1, attempt=6)
        store.abort(5)
        take_step(store, 1, attempt=6)

    def test_a_prepared_step_may_be_decided_late(self, store: PageStore) -> None:
        """Goal: a node that hears of a decision after the next attempt began can still follow."""
        take_step(store, 0)
        write_pages(store, [0], 1)
        store.prepare(DecidedStep(version=1, attempt=0))
        store.record_attempt(1)
        store.decide(1, 0)
        assert read(store, 0, 1) == record(store, 0, 1)
        take_step(store, 2, attempt=1)

    def test_reads_go_on_while_a_step_is_decided(self, store: PageStore) -> None:
        """Goal: what a step wrote can be read before, while and after it is prepared and decided.
        Method: two threads read a page each without pause, over 40 steps; threads change as often
        as they can."""
        take_step(store, 0)

        def follow(page: int, version: int, stop: Event) -> None:
            into = memoryview(bytearray(256))
            while not stop.is_set():
                store.read_field(page, version, "weight", into)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(2) as pool:
                for version in range(1, 41):
                    write_pages(store, [1, 3], version)
                    stop = Event()
                    readers = [pool.submit(follow, page, version, stop) for page in (1, 3)]
                    store.prepare(DecidedStep(version=version, attempt=0))
                    store.decide(version, 0)
                    stop.set()
                    for reader in readers:
                        reader.result()
        finally:
            sys.setswitchinterval(interval)

    def test_a_pin_shows_its_version_for_ever(self, store: PageStore) -> None:
        """P6. Goal: whatever is written, decided, aborted or skipped later, a pin reads the bytes
        of its version; a page is copied once at most, and only if it is overwritten."""
        with pytest.raises(VersionMissing):
            store.pin()
        everything = range(store.config.page_count)
        take_step(store, 0)
        pins = [store.pin()]
        for version in range(1, 5):  # page 3 rests for ever, page 6 until version 4
            pages = [page for page in everything if page != 3 and (page != 6 or version == 4)]
            take_step(store, version, attempt=store.attempt, pages=pages)
            pins.append(store.pin())
            write_pages(store, pages[:2], version + 1, attempt=store.attempt)
            store.abort(store.attempt)
            store.record_attempt(store.attempt + 1)
        assert pins[0].saved_bytes > 0
        newest = [0] * store.config.page_count
        attempts = [0] * store.config.page_count
        for version, pin in enumerate(pins):
            assert pin.step.version == version
            if version:
                for page in everything:
                    if page != 3 and (page != 6 or version == 4):
                        newest[page], attempts[page] = version, version - 1
            for page in everything:
                kind = store.config.kind(page)
                expected = record(store, page, newest[page], attempts[page])
                for field in kind.fields:
                    into = memoryview(bytearray(field.field_bytes))
                    pin.read_field(page, field.name, into)
                    start, stop = kind.range(field.name)
                    assert bytes(into) == expected[start:stop], (version, page, field.name)
        before = pins[0].saved_bytes
        pins[0].close()
        with pytest.raises(VersionMissing, match="closed"):
            pins[0].read_field(0, "weight", memoryview(bytearray(4096 * 4)))
        take_step(store, 5, attempt=store.attempt)
        assert pins[0].saved_bytes == before

    def test_a_pin_is_read_while_its_pages_are_overwritten(self, store: PageStore) -> None:
        """P6. Goal: a reader beside writers sees whole pages of its version. Method: one thread
        reads a pin over and over while others make versions."""
        everything = range(store.config.page_count)
        take_step(store, 0)
        pin, stop = store.pin(), Event()

        def read_on() -> int:
            rounds = 0
            while not stop.is_set() or rounds < 2:
                for page in everything:
                    into = memoryview(bytearray(store.config.kind(page).fields[0].field_bytes))
                    pin.read_field(page, "weight", into)
                    first, last = store.config.kind(page).range("weight")
                    assert bytes(into) == record(store, page, 0)[first:last]
                rounds += 1
            return rounds

        with ThreadPoolExecutor(2) as threads:
            readers = [threads.submit(read_on) for _ in range(2)]
            for version in range(1, 12):
                take_step(store, version)
            stop.set()
            assert all(reader.result(30) >= 2 for reader in readers)

    def test_pages_are_filled_while_steps_go_on(self, store: PageStore) -> None:
        """P7. Goal: a page comes at the version of the moment and is written from then on; missing
        ones cannot be read; what was there before is gone. Method: in each step one page more."""
        take_step(store, 0)
        store.begin_filling(7)
        count = store.config.page_count
        for page in range(count):
            version = 7 + page
            with pytest.raises(VersionMissing, match="still to be filled"):
                read(store, page, version)
            store.fill(page, record(store, page, version))
            with pytest.raises(StateError, match="not missing"):
                store.fill(page, record(store, page, version))
            assert read(store, page, version) == record(store, page, version)
            write_pages(store, range(page + 1), version + 1)
            step = DecidedStep(version=version + 1, attempt=0)
            store.prepare(step)
            store.decide(step.version, step.attempt)
        expected = [record(store, page, 7 + count) for page in range(count)]
        assert contents(store, 7 + count) == expected

    def test_an_abort_keeps_what_was_filled(self, store: PageStore) -> None:
        """P1, P7. Goal: the page of the decided version stays, that of the attempt goes."""
        store.begin_filling(3)
        store.fill(1, record(store, 1, 3))
        write_pages(store, [1], 4)
        store.prepare(DecidedStep(version=4, attempt=0))
        with pytest.raises(StateError, match="version 4 is prepared"):
            store.fill(2, record(store, 2, 3))
        store.abort(0)
        store.record_attempt(1)
        assert read(store, 1, 3) == record(store, 1, 3)
        assert store.prepared is None
        store.fill(2, record(store, 2, 3))
        write_pages(store, [1, 2], 4, 1)
        store.prepare(DecidedStep(version=4, attempt=1))
        store.decide(4, 1)
        assert [read(store, page, 4) for page in (1, 2)] == [
            record(store, page, 4, 1) for page in (1, 2)
        ]

    def test_a_closed_store_says_so(self, store: PageStore) -> None:
        """Goal: closing twice is fine, calling afterwards is not."""
        take_step(store, 0)
        store.close()
        store.close()
        with pytest.raises(StateError, match="closed"):
            write_pages(store, [0], 1)

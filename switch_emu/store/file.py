"""A page store in a directory: two sides and, for a state that lies in RAM, a log of sums.

Writes, in order (invariants: `interface.py`; formats: `geometry.py`, `manifest.py`, `ring.py`,
`directory.py`, `sums.py`):

    write     body of the page -> the side that is not current
    log       sum of the page -> its place in the log
    prepare   header of the log | flush the sides written, and the log | manifest twice,
              superblock "prepared" twice | flush
    decide    superblock "decided" twice | flush
    abort     if the step was prepared: superblock without it, twice | flush
    filling   superblock without versions, twice | flush; then bodies alone, until none is missing
    settle    bodies of pages that have sums in the log | flush | manifest of the decided version,
              at the other place, twice | flush | superblock, twice | flush

So a step costs three flushes, four with a log, and opening reads one manifest, however large the
store. A crash in the middle of a line affects only the other side, the other manifest, the other
pair of the ring, or what no version needs of the log.
Opening rewrites the superblock and flushes everything, since data that a killed process left in the
page cache is readable but not durable.

Durability: `step` flushes as above. `process` never flushes: the page cache survives any kill, not
a power cut, after which pages may be torn (reads then raise PageCorruptError). `none` guarantees
nothing; here it equals `process`. There is no `checkpoint`: without a flush per step two sides may
both be torn, and a third would be needed.

A write or a flush that fails stops the store. A flush is never repeated: the second may succeed
although the first has lost the data. Failpoints: `luwu/base/failpoints.py`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import xxhash

from luwu.base.errors import ConfigError, PageCorruptError, StateError, refusal, refusing
from luwu.base.failpoints import failpoint
from luwu.base.foreign import taking
from switch_emu.store.config import StoreConfig
from switch_emu.store.direct_io import (
    BUFFERED_BY_CHOICE,
    BlockFile,
    DirectIo,
    IoCounter,
    aligned_buffer,
    probe_direct_io,
)
from switch_emu.store.directory import (
    LOCK_NAME,
    META_NAME,
    SIDE_NAMES,
    Claim,
    check_sizes,
    counts_of,
    create_directory,
    lock_directory,
    read_config,
    store_disk_bytes,
)
from switch_emu.store.geometry import Geometry
from switch_emu.store.interface import PageStore
from switch_emu.store.manifest import (
    ManifestRef,
    copy_offset,
    encode_manifest,
    read_manifest,
    repair_manifest,
)
from switch_emu.store.records import SUMS_KEY, Buffer, DecidedStep, Durability
from switch_emu.store.ring import RecordRing
from switch_emu.store.sums import SUMS_NAME, LoggedStep, Redo, SumLog, SumShape, has_log, make_log
from switch_emu.store.versions import DIGEST_BYTES, PageEntry, PageTable, Pin, StepState, digests_of
from switch_emu.store.views import RecordRows, check_rows, one_record, write_view

_STOPPED = (
    "The store is stopped, and it is unknown what the disk holds of this step; the decided version "
    "is unchanged. "
)


class FilePageStore(PageStore):
    """A page store on disk. Make one with `create`, then `open` it as often as you like."""

    direct: DirectIo
    """How files are read and written: past the page cache, or why not."""

    last_durability: Durability | None
    """Durability at the last opening; None: never opened, or by an early version."""

    redo: Redo | None = None
    """Makes updates again whose sums are in the log; without it their pages cannot be read."""

    @classmethod
    def create(
        cls, path: Path, config: StoreConfig, *, durability: Durability = "step",
        direct_io: bool = True, first_version: int = 0, claim: Claim | None = None,
    ) -> FilePageStore:  # fmt: skip
        """Make an empty store at `path`, which must not exist or be empty, and open it.

        `first_version`: its first decided version, for an imported state. `claim`: our claim on the
        directory, which is released.
        Raises: ConfigError, StoreFullError.
        """
        _check_durability(durability)
        create_directory(path, config, claim)
        return cls(path, durability=durability, direct_io=direct_io, first_version=first_version)

    @classmethod
    def open(
        cls, path: Path, *, durability: Durability = "step", direct_io: bool = True,
        read_only: bool = False,
    ) -> FilePageStore:  # fmt: skip
        """Open the store at `path` at its decided version; without a scan.

        `read_only`: change nothing, not even the generation; other readers may have it open too.
        Raises: ConfigError if there is none or another process has it open; StateError if it is
        damaged.
        """
        _check_durability(durability)
        return cls(path, durability=durability, direct_io=direct_io, read_only=read_only)

    def __init__(
        self, path: Path, *, durability: Durability, direct_io: bool, read_only: bool = False,
        first_version: int = 0,
    ) -> None:  # fmt: skip
        self.path = path
        self._durability = durability
        self._read_only = read_only
        self._stopped: str | None = None
        self._dirty: set[int] = set()
        self._dirty_lock = threading.Lock()
        self._data_io, self._meta_io = IoCounter(), IoCounter()
        self._files: list[BlockFile] = []
        with taking(path, PageCorruptError), refusing(f"{path} cannot be opened"):
            self.config = read_config(path)
            self._lock_fd = lock_directory(path, read_only=read_only)
            try:
                failpoint("store.open.after_lock")
                self._open_files(synced=durability == "step", direct_io=direct_io)
                self._recover(first_version)
            except BaseException:
                self._let_go()
                raise

    def _open_files(self, *, synced: bool, direct_io: bool) -> None:
        self._geometry = Geometry(self.config)
        check_sizes(self.path, self._geometry)
        self.direct = BUFFERED_BY_CHOICE
        if direct_io:
            self.direct = probe_direct_io(self.path / SIDE_NAMES[0])
        for name in (*SIDE_NAMES, META_NAME, LOCK_NAME):
            counter = self._data_io if name in SIDE_NAMES else self._meta_io
            file = BlockFile(
                self.path / name, self.direct, counter, synced=synced, read_only=self._read_only
            )
            self._files.append(file)
        self._sides = self._files[:2]
        self._meta, self._lock = self._files[2:]
        self._synced = synced
        self._sums: SumLog | None = None
        if has_log(self.path):
            self._open_log()

    def _open_log(self) -> None:
        path = self.path / SUMS_NAME
        file = BlockFile(
            path, self.direct, self._data_io, synced=self._synced, read_only=self._read_only
        )
        self._files.append(file)
        with taking(path, PageCorruptError):
            self._sums = SumLog(file, self.config)

    def _recover(self, first_version: int) -> None:
        """Find the decided version, and make it durable."""
        uuid, shape = self.config.store_uuid, self._geometry.table
        self._counters_ring = RecordRing(self._lock, uuid)
        self._superblock_ring = RecordRing(self._meta, uuid)
        counters = self._counters_ring.read()
        superblock = self._superblock_ring.read()
        notes = [
            f"{file.name}: {ring.damaged_count} of 4 record blocks unreadable, the others used"
            for file, ring in (
                (self._lock, self._counters_ring),
                (self._meta, self._superblock_ring),
            )
            if ring.damaged_count
        ]
        self._decided_ref = ManifestRef.from_json(superblock["decided"])
        self._prepared_ref = ManifestRef.from_json(superblock["prepared"])
        self.last_durability = counters.get("durability")
        table, decided, prepared = PageTable(shape), None, None
        if self._decided_ref is not None:
            decided, table, damaged = read_manifest(self._meta, self._decided_ref, shape)
            notes += self._repaired(self._decided_ref, damaged)
        if self._prepared_ref is not None:
            try:
                step, new_table, damaged = read_manifest(self._meta, self._prepared_ref, shape)
            except PageCorruptError:
                # The superblock reached the disk before its manifest; "prepared" was not reported.
                notes.append(f"version {self._prepared_ref.version} was cut short and is forgotten")
                self._prepared_ref = None
            else:
                prepared = (step, new_table)
                notes += self._repaired(self._prepared_ref, damaged)
        for step in [decided, *(prepared or ())[:1]]:
            self._check_log(step)
        self.generation, attempt, epoch = counts_of(counters)
        self._steps = StepState(
            table, attempt=attempt, epoch=epoch, decided=decided, prepared=prepared,
            first_version=first_version,
        )  # fmt: skip
        self.notes = tuple(notes)
        if self._read_only:
            return
        self.generation += 1
        failpoint("store.open.before_flush")
        for side in self._sides:
            side.flush()
        if self._sums is not None:
            self._sums.flush()
        for _ in range(2 if notes else 1):  # the second time into the other pair of the ring
            self._write_superblock()
            self._write_counters(self._steps.attempt)
        failpoint("store.open.after_flush")

    def _check_log(self, step: DecidedStep | None) -> None:
        """Raises StateError unless the log has what this version needs of it."""
        if step is None or SUMS_KEY not in step.extra:
            return
        if self._sums is None:
            raise StateError(
                f"{self.path / SUMS_NAME} is missing, and version {step.version} needs it: pages "
                "alone are some steps older. Put it back, or restore the store from a checkpoint."
            )
        self._sums.chain(step)

    def _repaired(self, ref: ManifestRef, damaged: tuple[int, ...]) -> list[str]:
        if self._read_only:
            return [f"{META_NAME}: copy {copy} of a manifest is damaged" for copy in damaged]
        repair_manifest(self._meta, ref, self._geometry.table, damaged)
        return [
            f"{META_NAME}: copy {copy} of the manifest of version {ref.version} was damaged, "
            "rewritten from the other"
            for copy in damaged
        ]

    @property
    def stats(self) -> IoCounter:
        return self._data_io

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files, all allocated when the store was made."""
        log = 0 if self._sums is None else self._sums.shape.file_bytes
        return store_disk_bytes(self.config) + log

    def record_attempt(self, attempt: int, epoch: tuple[int, ...] | None = None) -> None:
        self._check_writable()
        steps = self._steps
        steps.check_attempt(attempt)
        former, steps.epoch = steps.epoch, steps.epoch if epoch is None else tuple(epoch)
        if (attempt, steps.epoch) != (steps.attempt, former):
            with self._stop_on_error(f"recording attempt {attempt}"):
                self._write_counters(attempt)
            steps.attempt = attempt

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        self._check_running()
        check_rows(self.config, first, into, to_fill=True)
        entries = self._steps.entries_to_read(first, into.count, version)
        sides = [entry.side for entry in entries]
        body = self._body(first)
        for side, start, stop in self._requests(first, sides) if body else ():
            part = into.part(start, stop)
            with self._reading(first + start, side):
                self._sides[side].read_pieces(
                    self._geometry.offsets[first + start], _bodies(part, body), body, part.stride
                )
        records = into.records()
        for entry, record in zip(entries, records, strict=True):
            if entry.tail:
                record[len(record) - len(entry.tail) :] = entry.tail
        for page, digests in enumerate(digests_of(self.config, first, records), first):
            entry, record = entries[page - first], records[page - first]
            if digests != entry.digests:
                for index, (start, stop) in enumerate(self.config.kind(page).parts):
                    self._verify(page, entry, index, record[start:stop])
        if self._sums is not None:
            self._redo(self._sums, first, version, records)

    def _redo(
        self, sums: SumLog, first: int, version: int, records: Sequence[memoryview]
    ) -> None:  # fmt: skip
        """Make the updates again that records lack, from page `first` on."""
        for page, record in enumerate(records, first):
            for logged in self.lacking(page, version):
                if self.redo is None:
                    raise StateError(
                        f"page {page} of {self.path}: its last updates are sums in {SUMS_NAME}, "
                        "which are not made again here; start the job once with --resume"
                    )
                sums.redo(logged, page, record, self.redo)

    def lacking(self, page: int, version: int) -> list[LoggedStep]:
        """The steps whose updates the record on its side lacks, the oldest first."""
        if self._sums is None or (step := self._steps.step_of(version)) is None:
            return []
        base = self._steps.entry_to_read(page, version).version
        chain = self._sums.chain(step)
        return [each for each in chain if each.step.version > base and each.rows["dtype"][page]]

    def _requests(self, first: int, sides: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(side, start, stop) of pages, counted from `first` on, that one request can transfer."""
        offsets, body = self._geometry.offsets, self._body(first)
        start, count = 0, len(sides)
        for at in range(1, count + 1):
            if (
                at == count
                or sides[at] != sides[start]
                or offsets[first + at] - offsets[first + at - 1] != body
            ):
                yield sides[start], start, at
                start = at

    def _body(self, page: int) -> int:
        """Bytes of a record that lie in the side file."""
        return self._geometry.body_bytes[self.config.page_kinds[page]]

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        self._check_running()
        kind = self.config.kind(page)
        index = kind.index(field_name)
        view = write_view(into, kind.fields[index].field_bytes, f"page {page}, field {field_name}")
        entry = self._steps.entry_to_read(page, version)
        start, stop = kind.parts[index]
        if self.lacking(page, version):
            record = aligned_buffer(kind.record_bytes)
            self.read(page, version, record)
            view[:] = record[start : start + len(view)]
            return
        # Only short fields have a gap behind them.
        part = view if len(view) == stop - start else memoryview(bytearray(stop - start))
        self._read_range(page, entry, start, part)
        self._verify(page, entry, index, part)
        if part is not view:
            view[:] = part[: len(view)]

    def write_rows(self, first: int, version: int, attempt: int, rows: RecordRows) -> None:
        self._check_writable()
        check_rows(self.config, first, rows)
        sides = self._steps.sides_to_write(first, rows.count, version, attempt)
        bare = [PageEntry(side, version, attempt) for side in sides]
        self._steps.note_written(first, self._write_rows(first, bare, rows))

    def _write_rows(
        self, first: int, bare: Sequence[PageEntry], rows: RecordRows
    ) -> list[PageEntry]:
        """Write records to the sides that the entries name; the entries with their checksums."""
        sides, body, records = [entry.side for entry in bare], self._body(first), rows.records()
        entries = [
            entry._replace(digests=digests, tail=bytes(record[body:]))
            for entry, record, digests in zip(
                bare, records, digests_of(self.config, first, records), strict=True
            )
        ]
        with self._dirty_lock:
            self._dirty.update(sides)
        for side, start, stop in self._requests(first, sides):
            part, offset = rows.part(start, stop), self._geometry.offsets[first + start]
            with self._stop_on_error(f"writing page {first + start} to {self._sides[side].name}"):
                failpoint("store.before_page_write")
                if part.count == 1:
                    self._sides[side].write(offset, part.memory[:body])
                else:
                    self._sides[side].write_pieces(offset, _bodies(part, body), body, part.stride)
                failpoint("store.after_page_write")
        return entries

    def begin_filling(self, version: int) -> None:
        """Write a superblock without versions; the next has all pages."""
        self._check_writable()
        with self._stop_on_error("beginning to fill the store"):
            failpoint("store.before_filling")
            self._decided_ref = self._prepared_ref = None
            self._write_superblock()
        self._steps.begin_filling(version, PageTable(self._geometry.table))
        if self._sums is not None:
            self._sums.forget()

    def fill(self, page: int, record: Buffer) -> None:
        """Write a missing page to the side of the decided version."""
        self._check_writable()
        rows = one_record(record)
        check_rows(self.config, page, rows)
        (entry,) = self._write_rows(page, [self._steps.entry_to_fill(page)], rows)
        self._steps.note_filled(page, entry)

    # ---------------------------------------------------------------------- the log of sums

    def keep_log(self, shape: SumShape | None) -> None:
        """Have a log of this shape from now on, or none; another that is there is settled first.

        Raises StoreFullError; ConfigError while a step is prepared that needs the other.
        """
        self._check_writable()
        if self._sums is not None and shape is not None and shape.is_like(self._sums.shape):
            return
        if self._sums is not None:
            if self._steps.prepared is not None:
                raise ConfigError(
                    f"{self.path}: step {self._steps.prepared.version} was under way when its node "
                    f"ended, and its sums are in a log of {self._sums.shape.slots_count} steps; "
                    f"resume once with --log-steps {self._sums.shape.slots_count} and the "
                    "--memory-budget that it had",
                    code="E203",
                )
            decided = self._steps.decided
            version = 0 if decided is None else decided.version
            self.settle(lambda page, record: self.read(page, version, record))
            self._files.pop().close()
            self._sums = None
            with self._stop_on_error(f"removing {SUMS_NAME}"):
                (self.path / SUMS_NAME).unlink()
        if shape is not None:
            with refusing(f"{self.path / SUMS_NAME} could not be made"):
                make_log(self.path, shape, self.config.store_uuid)
                self._open_log()

    @property
    def is_running(self) -> bool:
        """True if it accepts calls: nothing has failed."""
        return self._stopped is None

    def wants_sum(self, page: int) -> bool:
        if self._sums is None or self._steps.decided is None:
            return False
        return self._sums.shape.has_place(page) and not self.has_turn(page)

    def is_quick(self, first: int, count: int) -> bool:
        """True if sums take the place of these pages, and wait in RAM for `prepare`."""
        pages, log = range(first, first + count), self._sums
        return log is not None and log.has_room(first, count) and all(map(self.wants_sum, pages))

    def sums_written(self, pages: slice = slice(None)) -> np.ndarray:
        """True for each of these pages that has a sum in the version being made: bool [pages]."""
        assert self._sums is not None
        return self._sums.written(pages)

    def has_turn(self, page: int) -> bool:
        """True if a page is written whole in the version being made, and has no sum."""
        return self._sums is not None and self._sums.shape.turns[page] == self._slot

    @property
    def _slot(self) -> int:
        """The slot of the log that the version being made goes to."""
        assert self._sums is not None
        assert self._steps.decided is not None
        return self._sums.slot_after(self._steps.decided)

    def log_sum(
        self, page: int, version: int, attempt: int, data: memoryview, dtype: str, note: bytes
    ) -> None:  # fmt: skip
        """Keep the sum that a page is updated with, instead of the page: P9."""
        self._check_writable()
        self._steps.check_making(f"page {page}", version, attempt)
        assert self._sums is not None
        with self._stop_on_error(f"writing the sum of page {page} to {SUMS_NAME}"):
            failpoint("store.before_page_write")
            self._sums.write(self._slot, page, data, dtype, note)

    def settle(self, read: Callable[[int, memoryview], None]) -> None:
        """Write all pages whole that have sums in the log: nothing is made again at the next start.

        `read` fills memory with the record of a page, as it is decided.
        """
        self._check_writable()
        decided = self._steps.decided
        if decided is None or SUMS_KEY not in decided.extra or self._steps.prepared is not None:
            return
        version, entries = decided.version, {}
        for page in range(self.config.page_count):
            if self.lacking(page, version):
                side = 1 - self._steps.entry_to_read(page, version).side
                rows = one_record(aligned_buffer(self.config.kind(page).record_bytes))
                read(page, rows.memory)
                bare = PageEntry(side, version, decided.attempt)
                (entries[page],) = self._write_rows(page, [bare], rows)
        extra = {key: text for key, text in decided.extra.items() if key != SUMS_KEY}
        step = replace(decided, extra=extra)
        table = self._steps.table_changed(entries)
        with self._stop_on_error(f"settling version {version}"):
            ref = self._write_manifest(step, table)
            self._meta.flush()  # a version that is decided is found by its superblock alone
            self._decided_ref = ref
            self._write_superblock()
        self._steps.note_settled(step, table)

    def digest(self, pages: range, version: int) -> bytes:
        """See `PageStore.digest`; pages that have sums in the log are read."""
        digests = self._steps.digests(pages, version)
        if self._sums is not None and any(self.lacking(page, version) for page in pages):
            digests = b""
            for page in pages:
                record = aligned_buffer(self.config.kind(page).record_bytes)
                self.read(page, version, record)
                digests += digests_of(self.config, page, [record])[0]
        return xxhash.xxh3_128_digest(digests)

    def pin(self) -> Pin:
        """Pin the decided version; overwritten pages are saved to a file beside the sides."""
        self._check_running()
        decided = self._steps.decided
        for page in range(self.config.page_count) if self._sums is not None else ():
            if decided is not None and self.lacking(page, decided.version):
                raise StateError(f"page {page} of {self.path} has sums in {SUMS_NAME}")
        return self._steps.pin(self.config, self.path, self._read_range, self._verify)

    def prepare(self, step: DecidedStep) -> None:
        """Flush the pages, write the manifest and the superblock, flush."""
        self._check_writable()
        table = self._steps.table_to_prepare(step)
        step = self._logged(step)
        if not self._steps.is_filled:  # P7: nothing of it is to be found after a crash
            self._steps.note_prepared(step, table)
            return
        with self._stop_on_error(f"preparing version {step.version}"):
            self._prepared_ref = self._write_manifest(step, table)
            self._write_superblock()
            failpoint("store.after_prepared")
        self._steps.note_prepared(step, table)

    def _logged(self, step: DecidedStep) -> DecidedStep:
        """The step, with what its version needs of the log; its header is written."""
        decided = self._steps.decided
        if self._sums is None or decided is None:
            return step
        newest = f"{step.version} {step.attempt}" if step.applied else decided.extra.get(SUMS_KEY)
        if newest is not None:
            step = replace(step, extra={**step.extra, SUMS_KEY: newest})
        if step.applied:
            with self._stop_on_error(f"preparing version {step.version}"):
                self._sums.seal(self._slot, step, decided)
        else:
            self._sums.forget()
        return step

    def _write_manifest(self, step: DecidedStep, table: PageTable) -> ManifestRef:
        """Flush what was written, write a manifest to the place that is not decided."""
        place = 0 if self._decided_ref is None else 1 - self._decided_ref.place
        ref, manifest = encode_manifest(step, table, store_uuid=self.config.store_uuid, place=place)
        failpoint("store.before_data_flush")
        for side in sorted(self._dirty):
            self._sides[side].flush()
        self._dirty.clear()
        if self._sums is not None:
            self._sums.flush()
        failpoint("store.after_data_flush")
        failpoint("store.before_manifest")
        self._meta.write(copy_offset(self._geometry.table, place, 0), manifest)
        failpoint("store.between_manifests")
        self._meta.write(copy_offset(self._geometry.table, place, 1), manifest)
        failpoint("store.after_manifest")
        return ref

    def decide(self, version: int, attempt: int) -> None:
        """Write the superblock that makes the prepared step the decided one, flush."""
        self._check_writable()
        self._steps.check_decide(version, attempt)
        if self._prepared_ref is None:  # P7
            self._steps.note_decided()
            return
        with self._stop_on_error(f"deciding version {version}"):
            failpoint("store.before_decide")
            self._decided_ref, self._prepared_ref = self._prepared_ref, None
            self._write_superblock()
            failpoint("store.after_decided")
        self._steps.note_decided()

    def abort(self, attempt: int) -> None:
        """Forget this attempt and older ones; durably, if one of them was prepared.

        Its pages may be overwritten from now on, so it must not be found prepared after a crash.
        """
        self._check_writable()
        if self._steps.abort_reaches_prepared(attempt):
            with self._stop_on_error(f"aborting attempt {attempt}"):
                failpoint("store.before_abort")
                self._prepared_ref = None
                self._write_superblock()
                failpoint("store.after_abort")
        self._steps.note_aborted(attempt)
        if self._sums is not None:
            self._sums.forget()

    def close(self) -> None:
        """Close the files and release the lock."""
        if self._lock_fd < 0:
            return
        self._steps.close_pins()
        self._let_go()
        self._stopped = self._stopped or "it was closed"

    def _let_go(self) -> None:
        for file in self._files:
            file.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _write_superblock(self) -> None:
        refs = {"decided": self._decided_ref, "prepared": self._prepared_ref}
        self._superblock_ring.write(
            {name: None if ref is None else asdict(ref) for name, ref in refs.items()}
        )
        failpoint("store.before_meta_flush")
        self._meta.flush()
        failpoint("store.after_meta_flush")

    def _write_counters(self, attempt: int) -> None:
        failpoint("store.before_counters")
        self._counters_ring.write(
            {
                "generation": self.generation,
                "attempt": attempt,
                "epoch": self._steps.epoch,
                "durability": self._durability,
                "pid": os.getpid(),
                "host": socket.gethostname(),
            }
        )
        self._lock.flush()
        failpoint("store.after_counters")

    def _read_range(self, page: int, entry: PageEntry, start: int, into: memoryview) -> None:
        """Bytes of a record from `start`: first what is in the side file, then the tail."""
        body = self._body(page)
        count = max(0, min(len(into), body - start))
        with self._reading(page, entry.side):
            self._sides[entry.side].read(self._geometry.offsets[page] + start, into[:count])
        tail_start = start + count - body
        into[count:] = entry.tail[tail_start : tail_start + len(into) - count]

    @contextmanager
    def _reading(self, page: int, side: int) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise StateError(
                f"page {page} of {self._sides[side].name} cannot be read: {exc}. Check the disk; "
                "restore the shard from a checkpoint if the page is gone."
            ) from exc

    def _verify(self, page: int, entry: PageEntry, index: int, part: memoryview) -> None:
        expected = entry.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        found = xxhash.xxh3_128_digest(part)
        if found != expected:
            field = self.config.kind(page).fields[index]
            raise PageCorruptError(
                f"page {page} of {self._sides[entry.side].name}, field {field.name}: checksum "
                f"0x{found.hex()}, expected 0x{expected.hex()} (version {entry.version}, attempt "
                f"{entry.attempt}). The page changed after it was written, or the write was lost; "
                "restore the shard from a checkpoint."
            )

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise StateError(f"{self.path} accepts no more calls: {self._stopped}. Open it again.")

    def _check_writable(self) -> None:
        self._check_running()
        if self._read_only:
            raise StateError(f"{self.path} was opened to be read only; open it without read_only")

    @contextmanager
    def _stop_on_error(self, doing: str) -> Iterator[None]:
        """Stop the store after an error: the disk is in an unknown state."""
        try:
            yield
        except BaseException as exc:
            self._stopped = f"{doing} failed ({exc})"
            if not isinstance(exc, OSError):
                raise
            raise refusal(f"{self.path}: {doing} failed", exc, _STOPPED) from exc


def _bodies(rows: RecordRows, body: int) -> memoryview:
    """From the first byte of the first body to the last byte of the last one."""
    return rows.memory[: len(rows.memory) - rows.record_bytes + body]


def _check_durability(durability: Durability) -> None:
    if durability not in ("step", "process", "none"):
        raise ConfigError(f"durability {durability!r} is unknown; use step, process or none")

"""What survives a node of a simulated cluster: a dictionary, or the real page store on a device.

Both answer to the same calls, which are those of the node's shell. `Disk` keeps everything, always;
`StoredDisk` runs `FilePageStore` on a simulated device (`device.py`), which power cuts tear and
faults damage; or a state in RAM with its log of sums there. Beside the state stands what the
oracles want to know of every decided version.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import xxhash

from luwu.base.errors import LuwuError
from luwu.base.tree import ranks_of
from luwu.layout import Share
from luwu.protocol.epoch import NO_EPOCH, Epoch
from luwu.wire.description import parse_description
from luwu.wire.hyper import stated_hyper
from luwu.wire.norms import clip_factor
from switch_emu.node.core import actions as node_actions
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
    VersionMissing,
)
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.sums import SumShape
from tests.simulate.device import Device, DeviceFile, busy
from tests.simulate.job import JOB, Job, apply_update, mask_of

Pieces = dict[tuple[int, int], bytes]
"""(rank, piece) -> bytes that are to be kept beside a version."""


Summed = tuple[Any, float, int]
"""The sum of a page, what it is divided by, and a bitmap of the segments without a gradient."""

_COPIED = (
    "description", "attempt", "recorded", "version", "applied", "pages", "tentative", "prepared",
    "ledger", "decided_attempt", "put_aside", "kept", "replaced", "written", "_sealed",
    "_contributors", "is_partial", "filled_at",
)  # fmt: skip


@dataclass
class Copy:
    """What lay on a disk."""

    starts: int
    kept: dict[str, Any]
    files: dict[str, DeviceFile] | None = None
    """Of a real store."""
    config: StoreConfig | None = None
    right: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """What should be in blocks of it that were damaged."""


class DiskFailed(Exception):
    """An injected fault stopped the store: the node must end, and may be started again."""


@dataclass
class Disk:
    """Two sides of every page, and the records beside them; nothing is ever lost."""

    job: Job
    number: int
    count: int
    starts: int = 0
    """Of processes that used it."""
    description: bytes | None = None
    attempt: int = 0
    recorded: Epoch = NO_EPOCH
    version: int | None = None
    applied: bool = True
    pages: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    """Decided: chunk -> (version, weights, momentum)."""
    tentative: dict[int, tuple[int, Any, Any]] = field(default_factory=dict)
    prepared: node_actions.PreparedVersion | None = None
    """A version whose pages are the tentative ones."""
    ledger: dict[int, int] = field(default_factory=dict)
    """Version -> contributors: I1's record, one a decided step."""
    decided_attempt: dict[int, int] = field(default_factory=dict)
    """Version -> the attempt under which it was made."""
    put_aside: dict[tuple[int, int], Pieces] = field(default_factory=dict)
    """(version, attempt) -> what is to be kept beside it."""
    kept: dict[int, Pieces] = field(default_factory=dict)
    """Decided: the same by version."""
    replaced: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(version, rank) -> what a rank has put in place of a part of that."""
    written: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Chunk -> (version, attempt) of the last write of its page."""
    on_decided: Callable[[int, int], None] = lambda number, version: None
    """Told of every version as it is decided here."""
    was_prepared: set[tuple[int, int]] = field(default_factory=set)
    """All (version, attempt) that were, whatever became of the disk."""
    is_lost: bool = False
    """All that lay on it is gone; it holds no part of the state any more."""
    is_partial: bool = False
    """It is being filled: its pages are some of its version's."""
    filled_at: int | None = None
    """The version at which that began; None: it never was."""
    in_place: bool = False
    """As a store in RAM of one side; its process never dies."""
    overwritten: set[int] = field(default_factory=set)
    """Chunks whose pages are not of the decided version any more."""
    _sealed: Pieces = field(default_factory=dict)
    """What is kept beside the version that is prepared."""
    _contributors: int = 0
    """Of the version that is prepared."""
    _whole_at: int | None = None
    """The version with which its filling would have ended; the last process may have ended as it
    was being decided."""

    forgotten_starts: int = 0
    """Of processes whose use a copy of the state that was put back knows nothing of."""

    @functools.cached_property
    def share(self) -> Share:
        """The chunks whose pages lie on it."""
        return Share(self.job.layout, self.number, self.job.replicas)

    @property
    def generation(self) -> int:
        """Openings."""
        return self.starts - self.forgotten_starts

    # ---------------------------------------------------------------------- processes

    def open(self) -> node_actions.StoreFacts | None:
        """A process starts on it; None: no store was made yet."""
        self._begin_start()
        if self.count == 1 or self.prepared is None:  # one of several cannot know what is decided
            self.tentative.clear()
            self.prepared = None
            self._sealed = {}
        return None if self.description is None else self._opened()

    def _begin_start(self) -> None:
        self.starts += 1
        self._whole_at = None
        if self.is_partial:  # P7
            if self.prepared is not None and self.filled_count == self.share.pages_count:
                self._whole_at = self.prepared.version
            self.version, self.is_partial, self.prepared = None, False, None
            self.pages.clear()

    def make(self, description: bytes) -> node_actions.StoreFacts:
        """Make the store of a job, and open it."""
        self.description = description
        return self._opened()

    def _opened(self) -> node_actions.StoreFacts:
        self.attempt += self.count == 1
        return self._facts()

    def begin_filling(self, description: bytes, version: int) -> node_actions.StoreFacts:
        """Empty it, and go on from a version without a page."""
        self.description = description
        self._note_filling(version)
        return self._facts()

    def _note_filling(self, version: int) -> None:
        for each in (self.pages, self.tentative, self.ledger, self.decided_attempt, self.kept):
            each.clear()
        self.version, self.prepared, self.is_partial = version, None, True
        self.filled_at = version

    def fill(self, chunk: int, weights: Any, momentum: Any) -> None:
        """A page of the decided version, from another node."""
        assert self.is_partial
        assert self.prepared is None, "a page was filled beside a prepared version"
        assert chunk not in self.pages
        assert self.version is not None
        self.pages[chunk] = (self.version, weights, momentum)

    def _facts(self) -> node_actions.StoreFacts:
        assert self.description is not None
        return node_actions.StoreFacts(
            description=self.description, generation=self.generation, attempt=self.attempt,
            epoch=0, job=JOB, version=self.version, applied=self.applied, prepared=self.prepared,
            decided_attempt=self.decided_attempt.get(self.version or 0, 0),
            prepared_digests=self._prepared_digests, recorded=self.recorded,
            is_in_place=self.in_place,
        )  # fmt: skip

    def lose(self) -> None:
        """All that lies on it is gone."""
        self.killed()
        empty = Disk(self.job, self.number, self.count)
        for name in _COPIED:
            setattr(self, name, getattr(empty, name))
        self.forgotten_starts, self.is_lost = self.starts, True

    def copy(self) -> Copy:
        """All that lies on it now."""
        kept = {name: copy.copy(getattr(self, name)) for name in _COPIED}
        kept["put_aside"] = {key: dict(pieces) for key, pieces in self.put_aside.items()}
        return Copy(self.starts, kept)

    def put_back(self, copied: Copy) -> None:
        """The state becomes what it was; no process may have it open."""
        self.forgotten_starts += self.starts - copied.starts
        for name, value in copied.kept.items():
            setattr(self, name, value)

    def killed(self) -> None:
        """The process is no more; its last calls are done."""

    def power_cut(self) -> None:
        """The same, and what was not flushed is not certain; here, everything is."""
        self.killed()

    # ---------------------------------------------------------------------- pages

    def record_attempt(self, attempt: int, epoch: Epoch | None) -> None:
        self._note_attempt(attempt, epoch)

    def _note_attempt(self, attempt: int, epoch: Epoch | None) -> None:
        assert attempt >= self.attempt, "an attempt went back"
        assert epoch is None or epoch >= self.recorded, "E3: an epoch, or a promise, went back"
        self.attempt, self.recorded = attempt, epoch or self.recorded

    def discard(self, attempt: int) -> None:
        """Forget what was made under attempts before this one."""
        assert not self.overwritten, "P8: the decided version was overwritten, and is wanted again"
        self.tentative.clear()
        self.prepared = None

    def write(
        self, chunk: int, version: int, attempt: int, weights: Any, momentum: Any,
        summed: Summed | None = None,
    ) -> None:  # fmt: skip
        """A page of the version being made; of an older attempt: nothing is written.

        `summed`: what it was updated with.
        """
        if attempt != self.attempt:
            return
        assert self.prepared is None, "a page was written beside a prepared version"
        assert version == (0 if self.version is None else self.version + 1)
        self._note_written(chunk, version, attempt)
        self.tentative[chunk] = (version, weights, momentum)

    def keep(self, chunk: int, version: int, attempt: int) -> None:
        """The page of a chunk is in the version being made as it is in the decided one."""
        if attempt == self.attempt:
            self.tentative[chunk] = (version, *self.pages[chunk][1:])

    def _note_written(self, chunk: int, version: int, attempt: int) -> None:
        made = (version, attempt)
        assert self.written.get(chunk) != made, f"O3: page {chunk} is written twice as {made}"
        self.written[chunk] = made

    def read(self, chunk: int, version: int) -> tuple[Any, Any]:
        """(weights, momentum) of the decided version."""
        found, weights, momentum = self.pages[chunk]
        assert found <= version == self.version, "an update read another version"
        assert chunk not in self.overwritten, "P8: a page was read after it was overwritten"
        return weights, momentum

    def overwrite(self, chunk: int) -> None:
        """The page of a chunk is about to be updated."""
        if self.in_place:
            self.overwritten.add(chunk)

    def known(self, version: int | None) -> int | None:
        """A version; None: the decided one, whichever that is."""
        return self.version if version is None else version

    def read_weights(self, chunk: int, version: int | None) -> Any | None:
        """Weights of a version, decided (None: whichever that is) or made; None if it has gone."""
        version = self.known(version)
        side = self.tentative if version == (self.version or 0) + 1 else self.pages
        if chunk not in side or (side is self.pages and version != self.version):
            return None
        assert side is self.tentative or chunk not in self.overwritten, (
            "P8: weights were overwritten"
        )
        return side[chunk][1]

    # ---------------------------------------------------------------------- versions

    def prepare(self, action: node_actions.Prepare) -> None:
        self._note_prepare(action)
        assert action.attempt == self.attempt
        assert all(found == action.version for found, _, _ in self.tentative.values())
        if not action.applied:
            assert not self.tentative, "a skipped step must discard its pages first"
        self.prepared = node_actions.PreparedVersion(
            action.version, action.attempt, action.applied, action.norms, action.contributors
        )

    def digests(self) -> bytes:
        """Of the stripes, as the version that is prepared has them."""
        pages = self.pages | self.tentative
        return b"".join(
            xxhash.xxh3_128_digest(
                b"".join(
                    pages[c][1].tobytes() + pages[c][2].tobytes()
                    for c in self._chunks_of(s)
                    if c in pages  # all, unless it is being filled
                )
            )
            for s in self.share.stripes
        )

    @property
    def _prepared_digests(self) -> bytes:
        is_shared = self.prepared is not None and len(self.share.stripes) > 1
        return self.digests() if is_shared else b""

    def _chunks_of(self, stripe: int) -> Sequence[int]:
        return self.job.layout.stripe_chunks[stripe]

    def _note_prepare(self, action: node_actions.Prepare) -> None:
        self.was_prepared.add((action.version, action.attempt))
        self._contributors = action.contributors
        aside = action.kept_attempt is not None
        found = self.put_aside.get((action.version, action.kept_attempt or 0), {})
        self._sealed = dict(found) if aside else {}

    def decide(self, version: int, attempt: int) -> None:
        assert self.prepared is not None
        self.applied = self.prepared.applied
        self.prepared = None
        self.pages.update(self.tentative)
        self.tentative.clear()
        self.overwritten.clear()
        self.version = version
        self._note_decided(version, attempt, self._contributors)

    def _note_decided(self, version: int, attempt: int, contributors: int) -> None:
        assert version not in self.ledger, "O3: a step was decided twice"
        if self.is_partial and self.filled_count == self.share.pages_count:
            self.is_partial = self.is_lost = False
        self.decided_attempt[version] = attempt
        self.kept[version], self._sealed = self._sealed, {}
        self.ledger[version] = contributors
        self.on_decided(self.number, version)

    def versions_to(self, steps: int) -> set[int]:
        """Those that were decided here, of a job of so many steps."""
        return set(range(0 if self.filled_at is None else self.filled_at + 1, steps + 1))

    @property
    def filled_count(self) -> int:
        """Pages that are there."""
        return len(self.pages)

    # ---------------------------------------------------------------------- for the oracles

    def decided_weights(self) -> dict[int, Any]:
        """Of all chunks; the decided version."""
        return {chunk: weights for chunk, (_, weights, _) in self.pages.items()}

    def made_weights(self) -> dict[int, Any]:
        """Of all chunks; the version that is prepared, or the decided one."""
        weights = self.decided_weights()
        if self.prepared is not None:
            weights |= {chunk: found for chunk, (_, found, _) in self.tentative.items()}
        return weights


def members_of(disks: Sequence[Disk]) -> list[Disk]:
    """Those whose nodes count in the newest epoch that any of them has recorded."""
    newest = max((disk.recorded for disk in disks), key=lambda recorded: recorded.number)
    return [d for d in disks if not newest.members or newest.members >> d.number & 1]


_NOTE = struct.Struct("<dQ")
"""Of a sum in the log: the divisor, and absent segments."""


class StoredDisk(Disk):
    """The real page store on a simulated device; `device.simulated()` must be on."""

    def __init__(
        self, job: Job, number: int, count: int, random: Random, *, log_slots: int = 0,
        in_place: bool = False,
    ) -> None:  # fmt: skip
        """`log_slots`: of the log of a state in RAM; 0: its pages are on the device alone."""
        super().__init__(job, number, count, in_place=in_place)
        self._log_slots = log_slots
        self.device = Device(f"{job.world_size}-{number}-{random.getrandbits(48):x}", random)
        self._store: PageStore | None = None
        self._file: FilePageStore | None = None
        self._owned = [job.layout.chunks[index] for index in self.share.chunks()]

    @property
    def generation(self) -> int:
        """Openings of the store; before it is made, of processes."""
        return self.starts if self._store is None else self._store.generation

    # ---------------------------------------------------------------------- processes

    def open(self) -> node_actions.StoreFacts | None:
        self._begin_start()
        return None if self.device.config is None else self._opened()

    def make(self, description: bytes) -> node_actions.StoreFacts:
        if self.device.config is not None:  # as `create_directory` finds
            raise DiskFailed("another process has made the store already")
        self.device.make(self._config(description))
        return self._opened()

    def _opened(self) -> node_actions.StoreFacts:
        """As `NodeShell._open` does."""
        with self._calling():
            store: PageStore = self._open_store()
            if self.count == 1:
                store.record_attempt(store.attempt + 1)
            prepared = store.prepared
        self._follow()
        assert store.attempt >= self.attempt, "P5: the recorded attempt went back"
        self.attempt, self.recorded = store.attempt, Epoch(*store.epoch)
        self.description, self.prepared = store.config.description, None
        if prepared is not None:
            self.prepared = node_actions.PreparedVersion(
                prepared.version, prepared.attempt, prepared.applied, prepared.norms or (0.0,),
                sum(1 << each.rank for each in prepared.contributors),
            )  # fmt: skip
        return self._facts()

    def _open_store(self) -> PageStore:
        """As `NodeStorage` does."""
        file = self._file = self.device.open()
        self._store = file
        if self.count == 1 and file.prepared is not None:
            file.decide(file.prepared.version, file.prepared.attempt)
        if self._log_slots:
            file.redo = self._redo
            file.keep_log(SumShape(file.config, self._log_slots, _NOTE.size))
            ram = MemoryPageStore(file.config, in_place=self.in_place, has_digests=self.count > 1)
            self._store = LoggedPageStore(file, ram)
        self.overwritten.clear()
        return self._store

    def _redo(
        self, page: int, record: memoryview, data: memoryview, dtype: str, step: DecidedStep,
        note: bytes,
    ) -> None:  # fmt: skip
        """The update of `machines.py`, once more."""
        chunk, (divisor, absent) = self._owned[page], _NOTE.unpack(note)
        kind = self.device.config.kind(page) if self.device.config else None
        assert kind is not None
        weights, momentum = (
            np.frombuffer(record[slice(*kind.range(name))], np.float32)
            for name in ("weight", "momentum")
        )
        values = np.frombuffer(data, np.float32 if dtype == "float32" else np.uint16)
        if dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        grad = values / np.float32(divisor)
        factor = clip_factor(stated_hyper(step.hyper).all_clips(2.0), step.norms)
        unchanged = mask_of(self.job.layout, chunk.index, absent)
        weights[:], momentum[:] = apply_update(weights, momentum, grad, unchanged, factor)

    def _follow(self) -> None:
        """Take note of what the store is decided at: I2, never older than what was promised."""
        assert self._store is not None
        decided = self._store.decided
        found = -1 if decided is None else decided.version
        known = -1 if self.version is None else self.version
        can_be = (known, known + 1, self._whole_at)
        assert found in can_be, f"I2: decided at {found}, promised was {known}"
        if decided is not None and found != known:
            self.is_lost = self.is_lost and found != self._whole_at
            self.version, self.applied = found, decided.applied
            ranks = sum(1 << each.rank for each in decided.contributors)
            self._note_decided(found, decided.attempt, ranks)

    def begin_filling(self, description: bytes, version: int) -> node_actions.StoreFacts:
        if self.device.config is None:
            self.device.make(self._config(description))
        if self._store is None:
            self._opened()
        with self._calling():
            self._now.begin_filling(version)
        self._note_filling(version)
        return self._facts()

    def fill(self, chunk: int, weights: Any, momentum: Any) -> None:
        page, record = self._record(chunk, weights, momentum)
        with self._calling():
            self._now.fill(page, record)
        self.pages[chunk] = (0, None, None)  # which are there; what is in them, the store has

    def lose(self) -> None:
        super().lose()
        self.device.files.clear()
        self.device.right.clear()
        self.device.config = None

    def copy(self) -> Copy:
        copied = super().copy()
        copied.config, copied.right = self.device.config, dict(self.device.right)
        copied.files = {name: file.copy() for name, file in self.device.files.items()}
        return copied

    def put_back(self, copied: Copy) -> None:
        super().put_back(copied)
        assert copied.files is not None
        device = self.device
        device.config, device.files, device.right = copied.config, copied.files, copied.right
        device.repair()

    def killed(self) -> None:
        if self._file is not None:
            self._file.close()  # what is in RAM is gone
            self._store = self._file = None

    def power_cut(self) -> None:
        self.killed()
        self.device.power_cut()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """A call into the store: what an injected fault makes of it is no error of ours."""
        try:
            with busy(self.device):
                yield
        except LuwuError as exc:
            if not self.device.struck:
                raise
            raise DiskFailed(f"{self.device.path.name}: {exc}") from exc

    # ---------------------------------------------------------------------- pages

    def record_attempt(self, attempt: int, epoch: Epoch | None) -> None:
        with self._calling():
            self._now.record_attempt(attempt, epoch)
        self._note_attempt(attempt, epoch)

    def discard(self, attempt: int) -> None:
        with self._calling():
            self._now.abort(attempt - 1)
        self.prepared = None

    def write(
        self, chunk: int, version: int, attempt: int, weights: Any, momentum: Any,
        summed: Summed | None = None,
    ) -> None:  # fmt: skip
        page, record = self._record(chunk, weights, momentum)
        with self._calling(), contextlib.suppress(StaleAttempt):
            if summed is not None and self._now.wants_sum(page):
                total, divisor, absent = summed
                data, note = memoryview(total.tobytes()), _NOTE.pack(divisor, absent)
                self._now.log_sum(page, version, attempt, data, "float32", note)
            self._now.write(page, version, attempt, record)
            self._note_written(chunk, version, attempt)

    def keep(self, chunk: int, version: int, attempt: int) -> None:
        with self._calling(), contextlib.suppress(StaleAttempt):
            self._now.keep(self.share.page(chunk), 1, version, attempt)

    def _record(self, chunk: int, weights: Any, momentum: Any) -> tuple[int, bytearray]:
        page = self.share.page(chunk)
        kind = self._now.config.kind(page)
        record = bytearray(kind.record_bytes)
        for name, values in (("weight", weights), ("momentum", momentum)):
            if name == "weight" or self.job.layout.chunks[chunk].trainable:
                start, stop = kind.range(name)
                record[start:stop] = values.tobytes()
        return page, record

    def read(self, chunk: int, version: int) -> tuple[Any, Any]:
        page = self.share.page(chunk)
        kind = self._now.config.kind(page)
        record = bytearray(kind.record_bytes)
        with self._calling():
            self._now.read(page, version, memoryview(record))
        arrays = []
        for name in ("weight", "momentum")[: len(kind.fields)]:
            start, stop = kind.range(name)
            arrays.append(np.frombuffer(record[start:stop], np.float32))
        return arrays[0], arrays[-1]  # of a frozen page there is no momentum

    def read_weights(self, chunk: int, version: int | None) -> Any | None:
        weights = np.empty(self.job.layout.chunks[chunk].elems, np.float32)
        with self._calling():
            store = self._now
            if version is None:
                assert store.decided is not None
                version = store.decided.version
            page = self.share.page(chunk)
            try:
                store.read_field(page, version, "weight", weights.view(np.uint8).data)
            except VersionMissing:
                return None
        return weights

    # ---------------------------------------------------------------------- versions

    def prepare(self, action: node_actions.Prepare) -> None:
        self._note_prepare(action)
        ranks = ranks_of(action.contributors)
        step = DecidedStep(
            version=action.version, attempt=action.attempt, epoch=action.epoch, job=JOB,
            generation=self._now.generation,
            contributors=tuple(Contributor(rank, 0, action.version) for rank in ranks),
            hyper=action.hyper, applied=action.applied, norms=action.norms,
        )  # fmt: skip
        with self._calling():
            self._now.prepare(step)
        self.prepared = node_actions.PreparedVersion(
            action.version, action.attempt, action.applied, action.norms, action.contributors
        )

    def digests(self) -> bytes:
        assert self.prepared is not None
        version, stripes = self.prepared.version, self.share.stripes
        with self._calling():
            return b"".join(self._now.digest(self.share.pages_of(s), version) for s in stripes)

    def decide(self, version: int, attempt: int) -> None:
        with self._calling():
            self._now.decide(version, attempt)
        self.prepared = None
        self._follow()

    # ---------------------------------------------------------------------- for the oracles

    def decided_weights(self) -> dict[int, Any]:
        return self._weights(self.version)

    def made_weights(self) -> dict[int, Any]:
        return self._weights(self.version if self.prepared is None else self.prepared.version)

    def _weights(self, version: int | None) -> dict[int, Any]:
        """Of all chunks that can be read: what an injected fault damaged is not served."""
        found: dict[int, Any] = {}
        for chunk in self._owned if self._store is not None and version is not None else ():
            with contextlib.suppress(DiskFailed):
                weights = self.read_weights(chunk.index, version)
                if weights is not None:
                    found[chunk.index] = weights
        return found

    @property
    def _now(self) -> PageStore:
        if self._store is None:
            raise DiskFailed("the process was replaced: the store is another's")
        return self._store

    def _config(self, description: bytes) -> StoreConfig:
        layout = parse_description(description).layout
        kinds: dict[tuple[bool, int], int] = {}
        built: list[PageKind] = []
        for chunk in self._owned:
            key = (chunk.trainable, chunk.elems)
            if key not in kinds:
                kinds[key] = len(built)
                names = ("weight", "momentum") if chunk.trainable else ("weight",)
                fields = tuple(Field(name, "float32", chunk.elems) for name in names)
                built.append(PageKind(f"kind-{len(built)}", fields))
        return StoreConfig(
            kinds=tuple(built),
            page_kinds=tuple(kinds[c.trainable, c.elems] for c in self._owned),
            page_elems=tuple(c.elems for c in self._owned),
            optimizer="test", chunk_bytes=layout.chunk_bytes, layout_hash="simulated",
            description=description, store_uuid=f"{1 + self.number:032x}",
        )  # fmt: skip

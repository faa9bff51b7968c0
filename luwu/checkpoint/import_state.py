"""Safetensors files -> a state directory, page by page; the state appears as a whole or not at all.

    an export       the state it was made from: weights, optimizer state, counts, the step's record
    weights alone   a fresh state at step 0 with these weights, for the model of another state

The files are checked before anything is made. Pages are put together in a bounded number of
buffers, from slices of the files, and written by a few threads. At the end the weights are read
back from the new pages, and their digest is compared with that of the export.
"""

from __future__ import annotations

import mmap
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.directories import check_absent, check_space, making_directory
from luwu.base.errors import DamagedFileError
from luwu.checkpoint.copying import check_running, cut, decide
from luwu.checkpoint.document import read_document
from luwu.checkpoint.origin import Origin, OriginFiles
from luwu.checkpoint.read_ahead import THREADS_COUNT, buffers_count
from luwu.checkpoint.source import description_of
from luwu.layout import SUM_BYTES, Layout
from luwu.wire.description import Description
from luwu.wire.stored import AVERAGE, UPDATES, WEIGHT
from switch_emu.node.kernels.narrow import widen
from switch_emu.node.pages import field_view, store_config, store_values, weights_digest
from switch_emu.store import FilePageStore, StoreConfig, store_disk_bytes
from switch_emu.store.directory import read_config
from switch_emu.store.striped import StripedPages, node_count_of, node_directory, present_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import."""

    path: Path
    step: int
    weights_digest: str
    chunk_bytes: int
    nbytes: int
    """Bytes of the state, once."""
    seconds: float


def import_state(
    source: Path, state: Path, *, like: Path | None = None, chunk_bytes: int | None = None,
    memory_budget_bytes: int | None = None, should_stop: Callable[[], bool] = lambda: False,
) -> Imported:  # fmt: skip
    """Make the state directory `state`, which must not exist, from the files in `source`.

    `like`: a state directory or an export with the same model; the weights are then taken from any
    safetensors, and the optimizer starts afresh at step 0. `chunk_bytes`: None: as it was there.
    `memory_budget_bytes`: for buffers; None: 256 MiB.
    Raises: ConfigError; DamagedFileError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(state)
    if like is None:
        origin = Origin.of_export(read_document(source), source)
    else:
        origin = Origin.of_weights(description_at(like))
    description = _with_chunk(origin.description, chunk_bytes)
    config = store_config(description)
    with OriginFiles(source, origin, owner="this export" if like is None else str(like)) as files:
        buffers_count = filler_buffers(config, memory_budget_bytes or 256 * 1024**2)
        check_space(state, store_disk_bytes(config))
        with making_directory(state) as new:
            _make(new, config, description, files, buffers_count, should_stop)
            digest = _digest_of(new, description.layout)
            if origin.weights_digest not in (None, digest):
                raise DamagedFileError(
                    f"{source}: the weights have the digest {digest}, the export records "
                    f"{origin.weights_digest!s:.80}; it changed after it was written. Get it "
                    "again."
                )
    return Imported(
        path=state,
        step=origin.record.version,
        weights_digest=digest,
        chunk_bytes=config.chunk_bytes,
        nbytes=config.state_bytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )


def description_at(path: Path) -> Description:
    """The job of a state directory, at rest or not, or of an export. Raises ConfigError."""
    count = node_count_of(path)
    if count is not None:
        present = (0,) if count == 1 else present_nodes(path)[1]
        configs = {n: read_config(node_directory(path, n, count)) for n in present}
        return description_of(configs, path)
    return read_document(path, is_whole=False).description


def _with_chunk(description: Description, chunk_bytes: int | None) -> Description:
    """The same job cut otherwise; a state that is imported is always that of one node."""
    layout = replace(description.layout, optimizer_nodes=1)
    if chunk_bytes is not None:
        layout = replace(layout, chunk_bytes=chunk_bytes)
    return replace(description, layout=layout)


def _make(
    path: Path, config: StoreConfig, description: Description, files: OriginFiles,
    buffers_count: int, should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """A store whose first version is that of the origin."""
    origin = files.origin
    record = origin.record
    with FilePageStore.create(path, config, first_version=record.version) as store:
        store.record_attempt(record.attempt)
        with PageFiller(store, description, files, buffers_count) as filler:
            filler.fill(should_stop)
        files.check_digests()
        decide(store, record, cut(origin.attached, config.chunk_bytes))
        store.record_attempt(origin.attempt)


def _digest_of(path: Path, layout: Layout) -> str:
    """The digest of the weights in a store (I3)."""
    with StripedPages(path, 1) as pages:
        pages.lay_out(layout)
        return weights_digest(pages, layout)


SCRATCH_BYTES: Final = 512 * 1024
"""Working memory in which narrow values are widened."""


def filler_buffers(config: StoreConfig, budget_bytes: int) -> int:
    """How many pages a budget pays for. Raises ConfigError."""
    record_bytes = max(kind.record_bytes for kind in config.kinds)
    beside_bytes = SCRATCH_BYTES
    if any(field.dtype in ("bfloat16", "int8") for kind in config.kinds for field in kind.fields):
        beside_bytes += SUM_BYTES * max(config.page_elems)  # values before they are narrowed
    return buffers_count(budget_bytes, record_bytes, beside_bytes=beside_bytes)


class PageFiller(Closing):
    """Writes every page of a store's first version."""

    def __init__(
        self, store: FilePageStore, description: Description, files: OriginFiles, count: int
    ) -> None:
        """`count`: buffers of the largest page."""
        self._store, self._layout, self._files = store, description.layout, files
        self._state_fields = description.state_fields
        self._version, self._attempt = files.origin.record.version, store.attempt
        record_bytes = max(kind.record_bytes for kind in store.config.kinds)
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(memoryview(mmap.mmap(-1, record_bytes)))  # aligned, for direct I/O
        self._pool = ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="luwu-write")
        self._writes: list[Future[None]] = []

    def fill(self, should_stop: Callable[[], bool]) -> None:
        """Write all pages. Raises what a write raised; Interrupted."""
        for chunk in range(len(self._layout.chunks)):
            check_running(should_stop)
            self._check_writes()
            buffer = self._free.get()
            record = buffer[: self._store.config.kind(chunk).record_bytes]
            self._make(chunk, record)
            self._writes.append(self._pool.submit(self._write, chunk, record, buffer))
        self._pool.shutdown()
        self._check_writes()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _make(self, chunk: int, record: memoryview) -> None:
        """The record of a page: weights, the optimizer's state, and how often it was updated."""
        kind, segments = self._store.config.kind(chunk), list(self._layout.segments(chunk))
        np.frombuffer(record, np.uint8).fill(0)  # padding, and what was there before
        for name in (WEIGHT, *self._state_fields):
            if not kind.has(name):
                continue  # frozen, or one that keeps less
            stored = field_view(kind, record, name)
            values = stored if stored.dtype == np.float32 else np.zeros(stored.size, np.float32)
            if name == AVERAGE:  # which begins with the weights
                widen(field_view(kind, record, WEIGHT), None, values)
            for each in segments:
                part = slice(each.chunk_start, each.chunk_start + each.elems)
                self._files.read(name, each.parameter, each.parameter_start, values[part])
            if values is not stored:
                store_values(kind, record, name, values)
        if kind.has(UPDATES):
            updates = [self._files.origin.updates[each.parameter] or 0 for each in segments]
            np.frombuffer(record[slice(*kind.range(UPDATES))], np.int64)[:] = updates

    def _write(self, chunk: int, record: memoryview, buffer: memoryview) -> None:
        try:
            self._store.write(chunk, self._version, self._attempt, record)
        finally:
            self._free.put(buffer)

    def _check_writes(self) -> None:
        """Raise what a finished write raised."""
        for write in [each for each in self._writes if each.done()]:
            self._writes.remove(write)
            write.result()

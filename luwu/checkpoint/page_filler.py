"""The pages of a new store, put together in a few buffers and written by a few threads."""

from __future__ import annotations

import mmap
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np

from luwu.base.closing import Closing
from luwu.base.errors import Interrupted
from luwu.checkpoint.origin import OriginFiles
from luwu.checkpoint.pieces import Piece, pieces_by_chunk
from luwu.checkpoint.read_ahead import THREADS_COUNT, buffers_count
from luwu.layout import SUM_BYTES
from luwu.wire.averages import AVERAGE
from luwu.wire.description import Description
from luwu.wire.stored import UPDATES, WEIGHT
from switch_emu.node.kernels.narrow import widen
from switch_emu.node.pages import field_view, store_values
from switch_emu.store import FilePageStore, StoreConfig

SCRATCH_BYTES: Final = 512 * 1024
"""Where narrow values are widened."""


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
        for unit in range(len(self._layout.units)):
            pieces = pieces_by_chunk(self._layout, unit)
            for chunk in self._layout.unit_chunks[unit]:
                if should_stop():
                    raise Interrupted("stopped before it was complete; nothing was left behind")
                self._check_writes()
                buffer = self._free.get()
                record = buffer[: self._store.config.kind(chunk).record_bytes]
                self._make(chunk, pieces[chunk], record)
                self._writes.append(self._pool.submit(self._write, chunk, record, buffer))
        self._pool.shutdown()
        self._check_writes()

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, chunk: int, pieces: Sequence[Piece], record: memoryview) -> None:
        """The record of a page: weights, the optimizer's state, and how often it was updated."""
        kind = self._store.config.kind(chunk)
        np.frombuffer(record, np.uint8).fill(0)  # padding, and what was there before
        for name in (WEIGHT, *self._state_fields):
            if not kind.has(name):
                continue  # frozen, or one that keeps less
            stored = field_view(kind, record, name)
            values = stored if stored.dtype == np.float32 else np.zeros(stored.size, np.float32)
            if name == AVERAGE:  # which begins with the weights
                widen(field_view(kind, record, WEIGHT), None, values)
            for piece in pieces:
                part = slice(piece.chunk_start, piece.chunk_start + piece.elems)
                self._files.read(name, piece.parameter, piece.parameter_start, values[part])
            if values is not stored:
                store_values(kind, record, name, values)
        if kind.has(UPDATES):
            updates = [self._files.origin.updates[each.parameter] or 0 for each in pieces]
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

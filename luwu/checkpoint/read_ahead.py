"""Fields of chunks, read ahead of their use in bounded memory.

A few threads read. Wants come in the order in which they are served. A chunk may hold pieces of
many parameters, and a unit with frozen and trained ones goes back and forth between two chunks:
what was read is kept until its buffer is needed for something else, the least recently used first.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.checkpoint.source import StateSource
from luwu.layout import Segment
from luwu.tensor_files.directory import F32Array

THREADS_COUNT: Final = 4
BUFFERS_MAX: Final = 64
BYTES_MAX: Final = 64 * 1024 * 1024
"""More does not help: the disk is busy."""
_ELEM_BYTES: Final = DTYPES["float32"].nbytes


class Want(NamedTuple):
    """A part of a chunk's field, for a tensor that is written."""

    tensor: int
    """Its number."""
    field: str
    chunk: int
    part: Segment


class _Read:
    """A field in a buffer, or on its way there."""

    def __init__(self, buffer: memoryview, future: Future[None]) -> None:
        self.buffer, self.future = buffer, future
        self.users_count = 0


def buffers_count(budget_bytes: int, buffer_bytes: int, *, beside_bytes: int = 0) -> int:
    """How many buffers a budget pays for, two at least, beside something else.

    A quarter of the budget is left for the layout and the page table: under 1 KiB a chunk.
    Raises ConfigError, with the budget that would do.
    """
    least = -(-2 * buffer_bytes * 4 // 3) + beside_bytes
    if budget_bytes < least:
        raise ConfigError(
            f"memory_budget: {format_bytes(budget_bytes)} are too few: a buffer takes "
            f"{format_bytes(buffer_bytes)} (a chunk), and two are needed; give at least "
            f"{-(-least // 1024)}KiB",
            code="E205",
        )
    paid = (budget_bytes - beside_bytes) * 3 // 4 // buffer_bytes
    return min(paid, BUFFERS_MAX, max(4, BYTES_MAX // buffer_bytes))


class ReadAhead:
    """See the module; iterate over it once."""

    def __init__(self, source: StateSource, wants: Iterable[Want], buffers_count: int) -> None:
        self._source, self._wants = source, iter(wants)
        self._layout = source.description.layout
        self._buffer_bytes = max(chunk.sum_bytes for chunk in self._layout.chunks)
        self._buffers_count = buffers_count
        self._reads: OrderedDict[tuple[int, str], _Read] = OrderedDict()
        self._queue: deque[tuple[Want, _Read]] = deque()
        self._waiting: Want | None = None
        """The first want that found no buffer."""

    @property
    def taken_bytes(self) -> int:
        """Bytes of all buffers taken so far; none is given back before the end."""
        return len(self._reads) * self._buffer_bytes

    def __iter__(self) -> Iterator[tuple[Want, F32Array]]:
        """Each want with its values, which are valid until the next is asked for."""
        pool = ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="luwu-read")
        try:
            while True:
                self._fill(pool)
                if not self._queue:
                    return
                want, read = self._queue.popleft()
                read.future.result()
                first = want.part.chunk_start * _ELEM_BYTES
                data = read.buffer[first : first + want.part.elems * _ELEM_BYTES]
                yield want, np.frombuffer(data, np.float32)
                read.users_count -= 1
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        """Start reads for as many wants as there are buffers for."""
        while len(self._queue) < 8 * self._buffers_count:
            want = self._waiting or next(self._wants, None)
            self._waiting = want
            if want is None:
                return
            key = (want.chunk, want.field)
            read = self._reads.get(key)
            if read is None:
                buffer = self._free_buffer()
                if buffer is None:
                    return
                size = self._layout.chunks[want.chunk].sum_bytes
                future = pool.submit(self._source.read_field, *key, buffer[:size])
                read = self._reads[key] = _Read(buffer, future)
            self._reads.move_to_end(key)
            read.users_count += 1
            self._queue.append((want, read))
            self._waiting = None

    def _free_buffer(self) -> memoryview | None:
        if len(self._reads) < self._buffers_count:
            return memoryview(mmap.mmap(-1, self._buffer_bytes))  # aligned, for direct I/O
        for key, read in self._reads.items():
            if not read.users_count:
                del self._reads[key]
                return read.buffer
        return None

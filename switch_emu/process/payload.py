"""A payload in a process: received or computed bytes with a reference count.

To the cores it is an opaque token. `share` adds a reference, `drop` removes one; the last one
releases the transport's buffer. A payload that was moved to a spill file stays valid: `view` reads
it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from luwu.aggregate.float32 import SumInOrder, sum_in_order
from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES
from luwu.transport.interface import CreditExceeded
from switch_emu.store.spill import SpillFile


class Payload:
    """Bytes with a reference count."""

    def __init__(
        self, data: memoryview | None, release: Callable[[], None] | None = None, *,
        is_shared: bool = False, nbytes: int | None = None,
    ) -> None:  # fmt: skip
        """`is_shared`: the bytes lie in memory shared with other processes."""
        self._data = data
        self._release = release
        self.is_shared = is_shared
        self.checksum = 0
        """Checksum of weights, as they were made (`luwu/wire/altered.py`); 0: none."""
        self._holders_count = 1
        self._lock = threading.Lock()
        self._spill: tuple[SpillFile, int] | None = None
        if nbytes is None:
            assert data is not None
            nbytes = data.nbytes
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """The bytes; read back from the spill file if they are there."""
        return self.part(0, self.nbytes)

    def part(self, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop` alone."""
        data, spill = self._data, self._spill
        if data is not None:
            return data if stop - start == self.nbytes else data[start:stop]
        assert spill is not None, "a payload was used after its last holder dropped it"
        return spill[0].get(spill[1], start, stop - start)

    def share(self) -> Payload:
        """Add a reference."""
        with self._lock:
            assert self._holders_count > 0
            self._holders_count += 1
        return self

    def drop(self) -> None:
        """Remove a reference; the last one releases the memory."""
        with self._lock:
            assert self._holders_count > 0, "a payload was dropped more often than held"
            self._holders_count -= 1
            if self._holders_count > 0:
                return
        self._let_go()
        if self._spill is not None:
            self._spill[0].free(self._spill[1])

    @property
    def is_spilled(self) -> bool:
        """True if the bytes were moved out of RAM."""
        return self._spill is not None

    def spill(self, file: SpillFile) -> None:
        """Move the bytes out of RAM."""
        if self._spill is None and self._holders_count > 0:
            self._spill = (file, file.put(self.view()))
            self._let_go()

    def _let_go(self) -> None:
        self._data = None
        if self._release is not None:
            release, self._release = self._release, None
            release()


class Unsummed(Payload):
    """A sum that is not computed yet: its user adds the terms while reading them.

    To the cores it is an ordinary float32 payload. It holds its terms until it is dropped.
    """

    def __init__(self, terms: Sequence[tuple[Payload, str]], nbytes: int) -> None:
        """`terms`: payloads and their dtypes, in the order in which they are added."""
        self._terms = tuple((payload.share(), dtype) for payload, dtype in terms)
        shared = all(payload.is_shared for payload, _ in terms)
        super().__init__(None, self._drop_terms, is_shared=shared, nbytes=nbytes)

    def terms(self, start: int, stop: int) -> tuple[tuple[memoryview, str], ...]:
        """Elements `start` to `stop` of each term, with its dtype; once it was spilled, of the sum
        alone.
        """
        if self._spill is not None:
            return ((super().part(4 * start, 4 * stop), "float32"),)
        return tuple(
            (payload.part(start * DTYPES[dtype].nbytes, stop * DTYPES[dtype].nbytes), dtype)
            for payload, dtype in self._terms
        )

    def part(self, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop` of the sum, which are added again each time."""
        if self._spill is not None:
            return super().part(start, stop)
        total = np.empty((stop - start) // 4, np.float32)
        terms = self.terms(start // 4, stop // 4)
        sum_in_order([data for data, _ in terms], [dtype for _, dtype in terms], total)
        return total.view(np.uint8).data

    def sum_into(self, total: F32Array, add: SumInOrder = sum_in_order) -> None:
        """Add the terms up, as `sum_in_order` does."""
        terms = self.terms(0, self.nbytes // 4)
        add([data for data, _ in terms], [dtype for _, dtype in terms], total)

    def _drop_terms(self) -> None:
        terms, self._terms = self._terms, ()
        for payload, _ in terms:
            payload.drop()


class Buffers:
    """Reused memory for payloads that are computed here and sent. Thread-safe.

    It holds the most that was ever in use at once of each size, as far as there is room.
    """

    def __init__(self, reserve: Callable[[int], memoryview]) -> None:
        """`reserve`: reserves memory of the transport; CreditExceeded where there is no more."""
        self._reserve = reserve
        self._lock = threading.Lock()
        self._spare: dict[int, list[memoryview]] = {}

    def take(self, nbytes: int) -> tuple[memoryview, Payload]:
        """Memory to write to, and the payload over it."""
        with self._lock:
            spare = self._spare.get(nbytes)
            memory = spare.pop() if spare else self._reserved(nbytes)
        if memory is None:  # all of it is in use: this one travels as a copy
            memory = np.empty(nbytes, np.uint8).data
            return memory, Payload(memory)
        return memory, Payload(memory, lambda: self._give_back(memory))

    def _reserved(self, nbytes: int) -> memoryview | None:
        """New memory, if need be in place of what is spare of other sizes; None: there is none."""
        try:
            return self._reserve(nbytes)
        except CreditExceeded:
            self._spare.clear()
        try:
            return self._reserve(nbytes)
        except CreditExceeded:
            return None

    def _give_back(self, memory: memoryview) -> None:
        with self._lock:
            self._spare.setdefault(memory.nbytes, []).append(memory)


def terms_of(
    payload: Payload, dtype: str, start: int, stop: int
) -> tuple[tuple[memoryview, str], ...]:
    """What adds up to elements `start` to `stop` of a payload: itself, or the terms of its sum."""
    if isinstance(payload, Unsummed):
        return payload.terms(start, stop)
    return ((payload.part(start * DTYPES[dtype].nbytes, stop * DTYPES[dtype].nbytes), dtype),)

"""Working memory of a pipeline thread, and views of records.

All memory is aligned for direct I/O and counted in the node's plan; it is allocated when first
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from luwu.aggregate import Aggregator
from luwu.aggregate.float32 import sum_in_order
from luwu.aggregate.interface import ENCODED, F32Array
from luwu.base.dtypes import DTYPES
from luwu.layout import SUM_BYTES
from luwu.protocol.contribution import Contribution, Group, combined, depth, nested
from luwu.wire.stored import UPDATES, WEIGHT, scale_name
from switch_emu.node.kernels import Arrays
from switch_emu.node.kernels.narrow import Stored
from switch_emu.process.payload import Payload, terms_of
from switch_emu.store import PageKind, StoreConfig, aligned_buffer
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.views import RecordRows


def record_views(
    kind: PageKind, rows: RecordRows, state_fields: Sequence[str]
) -> tuple[Arrays, np.ndarray]:
    """Views of trained pages' records, without a copy, and of their counts of updates: int64
    [P, W], see `UpdateCounts`. `kind`: of any of them."""
    apart_bytes = 0 if rows.weights is None else kind.parts[0][1]

    def view(start: int, stop: int, dtype: Any) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        shape = (rows.count, (stop - start) // size)
        if rows.weights is not None and start == 0:
            return np.ndarray(shape, dtype, rows.weights, 0, (apart_bytes, size))
        return np.ndarray(shape, dtype, rows.memory, start - apart_bytes, (rows.stride, size))

    def stored(name: str) -> Stored:
        return view(*kind.range(name), DTYPES[kind.dtype(name)].numpy)

    state = tuple(map(stored, state_fields))
    scales = tuple(stored(scale_name(n)) if kind.has(scale_name(n)) else None for n in state_fields)
    counts = view(kind.range(UPDATES)[0], kind.record_bytes, np.int64)
    return Arrays(stored(WEIGHT), state, scales), counts


class Adder:
    """The terms of the sum of some pages; a thread reads back no more at once from the spill file.

    Contributions that are larger together may all have been spilled: they are added one by one into
    one array, by one thread at a time. The order is the kernel's, so are the bits. Encoded ones are
    decoded into that array too. Sums of the switches of a tree are made first
    (`luwu/protocol/contribution.py`), in one more array per level.
    """

    def __init__(
        self, elems_max: int, aggregator: Aggregator | None = None, groups: Sequence[int] = ()
    ) -> None:
        """`aggregator`: for encoded contributions."""
        self._aggregator = aggregator
        self._lock = Lock()
        self._groups = groups
        self._totals = [aligned_floats(elems_max) for _ in range(1 + depth(groups))]

    @contextmanager
    def terms(
        self, contributions: Sequence[Contribution], elems: int, start: int = 0, *,
        as_one: bool = False,
    ) -> Iterator[Sequence[tuple[memoryview, str]]]:  # fmt: skip
        """What the kernel adds to so many elements from `start` on, in order; encoded ones whole.

        A sum among others is made first: the order counts. `as_one`: all are added up here.
        """
        terms = nested(contributions, self._groups)
        if contributions[0].dtype == ENCODED:
            assert self._aggregator is not None
            with self._lock:
                total = self._totals[0][:elems]
                encoded = combined(terms, self._aggregator, lambda each: _payload(each).view())
                self._aggregator.decode(encoded, total)
                yield [(total.view(np.uint8).data, "float32")]
            return
        if len(contributions) == 1:
            one = _payload(contributions[0]), contributions[0].dtype
            found = terms_of(*one, start, start + elems)
            if not as_one or len(found) == 1:
                yield found
                return
        is_flat = not as_one and len(terms) == len(contributions)
        if is_flat and sum(DTYPES[said.dtype].nbytes for said in contributions) <= SUM_BYTES:
            yield [(_part(said, start, elems), said.dtype) for said in contributions]
            return
        with self._lock:
            yield [(self._add(terms, 0, start, elems), "float32")]

    def _add(
        self, terms: Sequence[Contribution | Group], level: int, start: int, elems: int
    ) -> memoryview:
        """The sum of some terms, in the array of a level."""
        total = self._totals[level][:elems]
        octets = total.view(np.uint8).data
        before: tuple[memoryview, ...] = ()
        for term in terms:  # data read back is held during the addition only
            if isinstance(term, Group):
                inner = self._add(term.terms, level + 1, start, elems)
                sum_in_order([*before, inner], ["float32"] * len((*before, inner)), total)
            else:
                dtypes = [*["float32"] * len(before), term.dtype]
                sum_in_order([*before, _part(term, start, elems)], dtypes, total)
            before = (octets,)
        return octets


class Scratch:
    """Working memory of one thread: the records of some pages, and one page's weights."""

    def __init__(self, config: StoreConfig, adder: Adder, pages_max: int = 1) -> None:
        """`adder`: that of the thread, or of several."""
        self._config, self.adder = config, adder
        record_bytes = max(kind.record_bytes for kind in config.kinds)
        self._stride = -(-record_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self._records = aligned_buffer(pages_max * self._stride)
        self._weights = aligned_floats(max(config.page_elems))

    def rows(self, page: int, count: int) -> RecordRows:
        """Memory for the records of so many pages, which are as large as that of `page`."""
        size = self._config.kind(page).record_bytes
        end = (count - 1) * self._stride + size
        return RecordRows(self._records[:end], count, size, self._stride)

    def weights(self, elems: int) -> F32Array:
        """Memory for a page's weights."""
        return self._weights[:elems]


def aligned_floats(elems: int) -> F32Array:
    """Zeroed memory for float32 on a page boundary."""
    return np.frombuffer(aligned_buffer(4 * elems), np.float32)


def _part(said: Contribution, start: int, elems: int) -> memoryview:
    """So many elements of a contribution from `start` on."""
    scale = DTYPES[said.dtype].nbytes
    return _payload(said).part(start * scale, (start + elems) * scale)


def _payload(said: Contribution) -> Payload:
    assert isinstance(said.payload, Payload)
    return said.payload

"""Working memory of a pipeline thread, and cached views of records.

All memory is aligned for direct I/O and counted in the node's plan; it is allocated when first
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np

from luwu.aggregate import Aggregator
from luwu.aggregate.interface import ENCODED
from luwu.aggregate.sum_in_order import F32Array, sum_in_order
from luwu.protocol.contribution import Contribution
from luwu.protocol.sum_order import Group, combined, depth, nested
from switch_emu.node.pages import UPDATES, WEIGHT
from switch_emu.process.payload import Payload, terms_of
from switch_emu.store import PageKind, StoreConfig, aligned_buffer


class RecordViews(NamedTuple):
    """The arrays of one record, without a copy."""

    weights: F32Array
    state: tuple[F32Array, ...]
    updates: np.ndarray
    """Counts of updates: int64 [segments]."""


def record_views(kind: PageKind, record: memoryview, state_fields: Sequence[str]) -> RecordViews:
    """Views of a trained page's record."""

    def view(name: str, dtype: type[np.generic]) -> np.ndarray:
        start, stop = kind.range(name)
        return np.frombuffer(record[start:stop], dtype)

    state = tuple(view(name, np.float32) for name in state_fields)
    return RecordViews(view(WEIGHT, np.float32), state, view(UPDATES, np.int64))


class Scratch:
    """Working memory of one thread: a record, and one page's weights."""

    def __init__(self, config: StoreConfig, state_fields: Sequence[str]) -> None:
        self._config, self._state_fields = config, state_fields
        self._record = aligned_buffer(max(kind.record_bytes for kind in config.kinds))
        self._weights = aligned_floats(max(config.page_elems))
        self._views: dict[int, RecordViews] = {}

    def record(self, page: int) -> memoryview:
        """Memory for the page's record."""
        return self._record[: self._config.kind(page).record_bytes]

    def views(self, page: int) -> RecordViews:
        """Views of `record`, for a trained page."""
        index = self._config.page_kinds[page]
        views = self._views.get(index)
        if views is None:
            views = record_views(self._config.kinds[index], self.record(page), self._state_fields)
            self._views[index] = views
        return views

    def weights(self, elems: int) -> F32Array:
        """Memory for a page's weights."""
        return self._weights[:elems]


class Adder:
    """The terms of a page's sum; at most one chunk per thread is read back from the spill file.

    Contributions that are larger together may all have been spilled: they are added one by one into
    one array, by one thread at a time. The order is the kernel's, so are the bits. Encoded ones are
    decoded into that array too. Sums of the switches of a tree are made first
    (`protocol/sum_order.py`), in one more array per level.
    """

    def __init__(
        self, elems_max: int, aggregator: Aggregator | None = None, groups: Sequence[int] = ()
    ) -> None:
        """`aggregator`: for encoded contributions."""
        self._aggregator = aggregator
        self._lock = Lock()
        # If integer sums do not depend on the tree, their repetitions as floats must not either.
        self._groups = () if aggregator is not None and aggregator.is_order_free else groups
        self._totals = [aligned_floats(elems_max) for _ in range(1 + depth(groups))]

    @contextmanager
    def terms(
        self, contributions: Sequence[Contribution], elems: int
    ) -> Iterator[Sequence[tuple[memoryview, str]]]:
        """The terms for the kernel, in order; nested sums are made first."""
        terms = nested(contributions, self._groups)
        payloads = [_payload(each) for each in contributions]
        if contributions[0].dtype == ENCODED:
            assert self._aggregator is not None
            with self._lock:
                total = self._totals[0][:elems]
                encoded = combined(terms, self._aggregator, lambda each: _payload(each).view())
                self._aggregator.decode(encoded, total)
                yield [(total.view(np.uint8).data, "float32")]
            return
        if len(payloads) == 1:
            yield terms_of(payloads[0], contributions[0].dtype)
            return
        dtypes = [each.dtype for each in contributions]
        is_flat = len(terms) == len(payloads)
        if is_flat and sum(payload.nbytes for payload in payloads) <= 4 * elems:
            yield [(payload.view(), d) for payload, d in zip(payloads, dtypes, strict=True)]
            return
        with self._lock:
            yield [(self._add(terms, 0, elems), "float32")]

    def _add(self, terms: Sequence[Contribution | Group], level: int, elems: int) -> memoryview:
        """The sum of some terms, in the array of a level."""
        total = self._totals[level][:elems]
        octets = total.view(np.uint8).data
        before: tuple[memoryview, ...] = ()
        for term in terms:  # data read back is held during the addition only
            if isinstance(term, Group):
                inner = self._add(term.terms, level + 1, elems)
                sum_in_order([*before, inner], ["float32"] * len((*before, inner)), total)
            else:
                dtypes = [*["float32"] * len(before), term.dtype]
                sum_in_order([*before, _payload(term).view()], dtypes, total)
            before = (octets,)
        return octets


def aligned_floats(elems: int) -> F32Array:
    """Zeroed memory for float32 on a page boundary."""
    return np.frombuffer(aligned_buffer(4 * elems), np.float32)


def _payload(each: Contribution) -> Payload:
    assert isinstance(each.payload, Payload)
    return each.payload

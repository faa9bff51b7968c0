"""Addition of payloads in a switch: compiled if that gives the same bits, else NumPy.

Where a host has cores to spare, several threads add a part of a large extent each: one thread took
2 ms for 8 MiB of bfloat16 beside an H100, so the gradients of a step took longer than the step.
Every element is added as before, in
one thread and in the same order, so the bits are the same for any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from luwu.aggregate.float32 import SumInOrder, check_shapes, sum_in_order
from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES
from switch_emu.native.build import BuildError, build, check_once
from switch_emu.native.fold import CELL_ELEMS, Fold

_THREADS_MAX = 4
_PART_ELEMS_MIN = 256 * 1024
"""Handing a part to a thread takes about as long as adding this: 60 us on an AMD EPYC."""
_CHECKED_ELEMS = 4096 + 192
_CHECKED = (
    ("float32",), ("float32",) * 4, ("bfloat16",) * 8, ("float16",) * 3,
    ("float32", "bfloat16", "bfloat16", "float16", "float32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Adder:
    """A function that adds, and the reason for choosing it."""

    add: SumInOrder
    version: str
    """`compiled` or `portable`."""
    reason: str


def make_adder(cache: Path | None = None, *, threads: int | None = None) -> Adder:
    """The fastest working adder; `cache`: directory of the library, None: the user's; `threads`:
    that add at once, None: a quarter of the cores, at most four."""
    if threads is None:
        threads = max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)) // 4))
    try:
        built = build(cache)
        add = _compiled(Fold(built.library))
        if threads > 1:
            add = _in_parts(add, threads)
        check_once(built, "sums", lambda: _difference(add))
    except BuildError as exc:
        return Adder(sum_in_order, "portable", str(exc))
    return Adder(add, "compiled", built.origin)


def _compiled(fold: Fold) -> SumInOrder:
    def add(payloads: Sequence[memoryview], dtypes: Sequence[str], out: F32Array) -> None:
        if out.size % CELL_ELEMS or not payloads:
            sum_in_order(payloads, dtypes, out)
            return
        check_shapes(payloads, dtypes, out)
        fold(list(zip(payloads, dtypes, strict=True)), None, out)

    return add


def _in_parts(add: SumInOrder, threads: int) -> SumInOrder:
    """The same, by several threads where there is enough to add."""
    others = ThreadPoolExecutor(threads - 1, "luwu-sum")

    def add_parts(payloads: Sequence[memoryview], dtypes: Sequence[str], out: F32Array) -> None:
        count = min(threads, out.size // _PART_ELEMS_MIN)
        if count < 2:
            add(payloads, dtypes, out)
            return
        check_shapes(payloads, dtypes, out)
        step = -(-out.size // count // CELL_ELEMS) * CELL_ELEMS

        def add_part(start: int) -> None:
            stop = min(start + step, out.size)
            parts = [
                payload[start * DTYPES[dtype].nbytes : stop * DTYPES[dtype].nbytes]
                for payload, dtype in zip(payloads, dtypes, strict=True)
            ]
            add(parts, dtypes, out[start:stop])

        under_way = [others.submit(add_part, start) for start in range(step, out.size, step)]
        add_part(0)
        for each in under_way:
            each.result()

    return add_parts


def _difference(add: SumInOrder) -> str | None:
    """The first difference from `sum_in_order`; None if all bits are equal."""
    rng = np.random.default_rng(20240902)
    for dtypes in _CHECKED:
        payloads = []
        for dtype in dtypes:
            size = np.exp2(rng.uniform(-30, 6, _CHECKED_ELEMS))
            values = (rng.standard_normal(_CHECKED_ELEMS) * size).astype(np.float32)
            values[::101] *= 1e-38  # denormal sums too
            narrow: dict[str, Any] = {
                "float32": values,
                "bfloat16": (values.view(np.uint32) >> 16).astype(np.uint16),
                "float16": values.astype(np.float16),
            }
            payloads.append(narrow[dtype].view(np.uint8).data)
        found, expected = np.empty((2, _CHECKED_ELEMS), np.float32)
        add(payloads, dtypes, found)
        sum_in_order(payloads, dtypes, expected)
        count = int((found.view(np.uint32) != expected.view(np.uint32)).sum())
        if count:
            return f"{count} of {_CHECKED_ELEMS} sums of {'+'.join(dtypes)} differ from NumPy's"
    return None

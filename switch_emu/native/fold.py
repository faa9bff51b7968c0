"""Calls of the library that need no optimizer: sums of contributions, and products of matrices."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from luwu.aggregate.interface import F32Array
from luwu.base.address import address_of
from luwu.base.dtypes import DTYPES

Pointer = ctypes.c_void_p

CELL_ELEMS: Final = 64
"""The library works on multiples of this."""


class Fold:
    """out = before + (c0 + c1 + ...), in float32, from left to right; checks nothing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._fold = library.luwu_fold
        self._fold.argtypes = (
            ctypes.c_int64, Pointer, Pointer, ctypes.c_int32, Pointer, Pointer, Pointer,
        )  # fmt: skip
        self._fold.restype = None

    def __call__(
        self, contributions: Sequence[tuple[memoryview, str]],
        before: F32Array | None, out: F32Array,
        squares: npt.NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        """Shapes: payloads of C elements, a multiple of 64; float32 [C]; float64 [C / 4096]."""
        pointers, dtypes = sources(contributions)
        self._fold(
            out.size, ctypes.addressof(pointers), ctypes.addressof(dtypes), len(contributions),
            None if before is None else before.ctypes.data, out.ctypes.data,
            None if squares is None else squares.ctypes.data,
        )  # fmt: skip


def sources(
    contributions: Sequence[tuple[memoryview, str]],
) -> tuple[ctypes.Array[Pointer], ctypes.Array[ctypes.c_int32]]:
    """Addresses and dtypes, as the library takes them; valid while these objects are."""
    count = len(contributions)
    pointers = (Pointer * count)(*(address_of(payload) for payload, _ in contributions))
    dtypes = (ctypes.c_int32 * count)(*(DTYPES[dtype].number for _, dtype in contributions))
    return pointers, dtypes


_PANEL_COLUMNS = 32
_THREAD_PRODUCTS = 1 << 22
"""Multiplications from which on a thread of its own is worth its start."""


class Product:
    """a b, or a times b transposed, in float32, by all cores; checks nothing.

    Each element is a sum over the inner index from 0 upwards, in which each product and each sum is
    rounded. Shapes: a [R, K]; b [K, C], or [C, K] transposed; C-contiguous. May be called by
    several threads at once.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._product = library.luwu_product
        self._product.argtypes = (
            ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, Pointer, Pointer, ctypes.c_int32,
            Pointer, Pointer,
        )  # fmt: skip
        self._product.restype = None

    def __call__(self, a: F32Array, b: F32Array, *, transposed: bool) -> F32Array:
        rows, inner = a.shape
        columns = b.shape[0] if transposed else b.shape[1]
        out = np.empty((rows, columns), np.float32)
        worth = rows * columns * inner // _THREAD_PRODUCTS
        threads_count = max(1, min(len(os.sched_getaffinity(0)), worth, rows))
        bounds = [rows * part // threads_count for part in range(threads_count + 1)]

        def make(first: int, stop: int) -> None:
            panel = np.empty((inner, _PANEL_COLUMNS), np.float32)
            self._product(
                stop - first, columns, inner, a[first:].ctypes.data, b.ctypes.data, transposed,
                panel.ctypes.data, out[first:].ctypes.data,
            )  # fmt: skip

        if threads_count == 1:
            make(0, rows)
            return out
        with ThreadPoolExecutor(threads_count, thread_name_prefix="luwu-product") as pool:
            for _ in pool.map(make, bounds, bounds[1:]):
                pass
        return out


def portable_product(a: F32Array, b: F32Array, *, transposed: bool) -> F32Array:
    """The same bits without the library, some hundred times slower."""
    right = b.T if transposed else b
    out = np.zeros((a.shape[0], right.shape[1]), np.float32)
    for k in range(a.shape[1]):
        out += a[:, k, None] * right[None, k, :]
    return out

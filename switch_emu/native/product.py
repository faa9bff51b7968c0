"""`luwu_product` of the library: products of matrices, with one order of sums everywhere."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from luwu.base.address import address_of_array
from switch_emu.native.fold import Pointer

_PANEL_COLUMNS = 32

F32Array = npt.NDArray[np.float32]


class Product:
    """a b, or a times b transposed, in float32; checks nothing.

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
        panel = np.empty((inner, _PANEL_COLUMNS), np.float32)
        out = np.empty((rows, columns), np.float32)
        self._product(
            rows, columns, inner, address_of_array(a), address_of_array(b), transposed,
            address_of_array(panel), address_of_array(out),
        )  # fmt: skip
        return out


def portable_product(a: F32Array, b: F32Array, *, transposed: bool) -> F32Array:
    """The same bits without the library, some hundred times slower."""
    right = b.T if transposed else b
    out = np.zeros((a.shape[0], right.shape[1]), np.float32)
    for k in range(a.shape[1]):
        out += a[:, k, None] * right[None, k, :]
    return out

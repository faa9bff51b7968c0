"""`luwu_fold` of the library: contributions added from left to right, in one pass over memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from luwu.base.address import address_of, address_of_array
from luwu.base.dtypes import DTYPES

Pointer = ctypes.c_void_p

CELL_ELEMS: Final = 64
"""The library works on multiples of this."""


class Fold:
    """out = before + (c0 + c1 + ...), in float32; checks nothing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._fold = library.luwu_fold
        self._fold.argtypes = (
            ctypes.c_int64, Pointer, Pointer, ctypes.c_int32, Pointer, Pointer, Pointer,
        )  # fmt: skip
        self._fold.restype = None

    def __call__(
        self, contributions: Sequence[tuple[memoryview, str]],
        before: npt.NDArray[np.float32] | None, out: npt.NDArray[np.float32],
        squares: npt.NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        """Shapes: payloads of C elements, a multiple of 64; float32 [C]; float64 [C / 4096]."""
        pointers, dtypes = sources(contributions)
        self._fold(
            out.size, ctypes.addressof(pointers), ctypes.addressof(dtypes), len(contributions),
            None if before is None else address_of_array(before), address_of_array(out),
            None if squares is None else address_of_array(squares),
        )  # fmt: skip


def sources(
    contributions: Sequence[tuple[memoryview, str]],
) -> tuple[ctypes.Array[Pointer], ctypes.Array[ctypes.c_int32]]:
    """Addresses and dtypes, as the library takes them; valid while these objects are."""
    count = len(contributions)
    pointers = (Pointer * count)(*(address_of(payload) for payload, _ in contributions))
    dtypes = (ctypes.c_int32 * count)(*(DTYPES[dtype].number for _, dtype in contributions))
    return pointers, dtypes

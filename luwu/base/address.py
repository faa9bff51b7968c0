"""The address of an array's memory.

`__array_interface__` is not asked: numpy makes a dict whose keys are new strings each time. CPython
interns them, and a place in its table of interned strings is not used again until the table is made
again, a MiB at once: memory of a process goes up for minutes (design note 0030).
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt


def address_of(view: memoryview) -> int:
    """The address of a contiguous view's first byte; any number for an empty one."""
    if view.readonly or not view.nbytes:  # ctypes takes neither
        return address_of_array(np.frombuffer(view, np.uint8))
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def address_of_array(array: npt.NDArray[np.generic]) -> int:
    """The address of an array's first element."""
    return array.ctypes.data

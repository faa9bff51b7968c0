"""The address of a buffer's memory; that of an array is `array.ctypes.data`.

`__array_interface__` is not asked: numpy makes a dict whose keys are new strings each time. CPython
interns them, and a place in its table of interned strings is not used again until the table is made
again, a MiB at once: memory of a process goes up for minutes (design note 0030).
"""

from __future__ import annotations

import ctypes

import numpy as np


def address_of(view: memoryview) -> int:
    """The address of a contiguous view's first byte; any number for an empty one."""
    if view.readonly or not view.nbytes:  # ctypes takes neither
        return np.frombuffer(view, np.uint8).ctypes.data
    return ctypes.addressof(ctypes.c_char.from_buffer(view))

"""Gradients as they are in a worker, widened to float32: what aggregators work on."""

from __future__ import annotations

from typing import Any

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES, WIRE_DTYPES


def as_float32(buffer: memoryview | bytes, dtype: str) -> F32Array:
    """The elements of a payload as float32 [C]; a view if it is float32 already.

    Exact: every bfloat16 and float16 is a float32. Raises ValueError for another dtype.
    """
    return widened(stored(buffer, dtype), dtype)


def stored(buffer: memoryview | bytes, dtype: str) -> Any:
    """The elements as numpy can hold them; a bfloat16 is its bits. Raises ValueError."""
    if dtype not in WIRE_DTYPES:
        raise ValueError(f"dtype {dtype!r} does not travel; expected float32, bfloat16 or float16")
    return np.frombuffer(buffer, DTYPES[dtype].numpy)


def widened(values: Any, dtype: str) -> F32Array:
    """The result of `stored` as float32."""
    if dtype == "float32":
        return values  # type: ignore[no-any-return]
    if dtype == "float16":
        return values.astype(np.float32)  # type: ignore[no-any-return]
    bits = values.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)  # type: ignore[no-any-return]

"""The sum of an extent over ranks: float32, in the order given, whatever type travelled.

A fixed order, because float addition does not associate (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., ch. 4): arrival must not choose the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        raise ValueError(f"dtype {dtype!r} does not travel; {', '.join(WIRE_DTYPES)} do")
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


__all__ = ["F32Array", "SumInOrder", "as_float32", "check_shapes", "sum_in_order"]

SumInOrder = Callable[[Sequence[memoryview], Sequence[str], F32Array], None]
"""`sum_in_order`, or what does the same."""

_BLOCK_ELEMS = 64 * 1024
"""Added at a time: the running sum stays in the second-level cache from first to last payload."""


def sum_in_order(
    payloads: Sequence[memoryview | bytes], dtypes: Sequence[str], out: F32Array
) -> None:
    """Write payload 0 + payload 1 + ... into `out`, from left to right.

    Shapes: W payloads of C elements each -> float32 [C]; the payloads are not modified.
    Raises: ValueError unless each payload has C elements (numpy would spread a single one).
    """
    arrays = check_shapes(payloads, dtypes, out)
    for start in range(0, out.size, _BLOCK_ELEMS):
        block = slice(start, start + _BLOCK_ELEMS)
        total = out[block]
        for index, (values_C, dtype) in enumerate(zip(arrays, dtypes, strict=True)):
            if index == 0:
                np.copyto(total, widened(values_C[block], dtype))
            else:
                total += widened(values_C[block], dtype)


def check_shapes(
    payloads: Sequence[memoryview | bytes], dtypes: Sequence[str], out: F32Array
) -> list[Any]:
    """The payloads as arrays of what travels. Raises ValueError unless each has C elements."""
    arrays = [stored(payload, dtype) for payload, dtype in zip(payloads, dtypes, strict=True)]
    for index, values_C in enumerate(arrays):
        if values_C.shape != out.shape:
            raise ValueError(f"payload {index} has {values_C.size} elements, expected {out.size}")
    return arrays

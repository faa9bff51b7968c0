"""The sum of a chunk over ranks: float32, in the order given, whatever type travelled.

A fixed order, because float addition does not associate (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., ch. 4): arrival must not choose the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]


def as_float32(buffer: memoryview | bytes, dtype: str) -> F32Array:
    """The elements of a payload as float32 [C]; a view if it is float32 already.

    Exact: every bfloat16 and float16 is a float32. Raises ValueError for another dtype.
    """
    if dtype == "float32":
        return np.frombuffer(buffer, np.float32)
    if dtype == "float16":
        return np.frombuffer(buffer, np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.frombuffer(buffer, np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    raise ValueError(f"dtype {dtype!r} does not travel; expected float32, bfloat16 or float16")


def sum_in_order(
    payloads: Sequence[memoryview | bytes], dtypes: Sequence[str], out: F32Array
) -> None:
    """Write payload 0 + payload 1 + ... into `out`, from left to right.

    Shapes: W payloads of C elements each -> float32 [C]; the payloads are not modified.
    Raises: ValueError unless each payload has C elements (numpy would spread a single one).
    """
    for index, (payload, dtype) in enumerate(zip(payloads, dtypes, strict=True)):
        values_C = as_float32(payload, dtype)
        if values_C.shape != out.shape:
            raise ValueError(f"payload {index} has {values_C.size} elements, expected {out.size}")
        if index == 0:
            np.copyto(out, values_C)
        else:
            out += values_C

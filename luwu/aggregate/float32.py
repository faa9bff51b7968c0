"""Float32: the gradient itself travels, and is added in rank order.

Error bound: that of float addition. With u = 2**-24 and N ranks the sum is off by at most
(N - 1) * u * (|x0| + |x1| + ...) to first order (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., ch. 4). Addition does not associate: another tree gives other last bits.

`is_plain`: the cores send gradients as they are, in their own dtype, and switch and node add them
on the way of their other work, by `sum_in_order` or what does the same: in the order given,
whatever type travelled. `Float32` has the same bits. The order is fixed, so arrival does not choose
the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from luwu.aggregate.interface import Aggregator, Encoded, F32Array, check_sizes
from luwu.base.dtypes import DTYPES, WIRE_DTYPES

_BYTES = 4


class Float32(Aggregator):
    """See the module."""

    name: ClassVar[str] = "float32"
    is_plain: ClassVar[bool] = True

    def encoded_bytes(self, elems: int) -> int:
        return _BYTES * elems

    def encode(self, values: F32Array, agreed: bytes, out: memoryview) -> int:
        np.copyto(np.frombuffer(out, np.float32, values.size), values)
        return values.nbytes

    def combine(self, parts: Sequence[Encoded], out: memoryview) -> int:
        check_sizes(self.name, [len(part) for part in parts], len(parts[0]))
        total = np.frombuffer(out, np.float32, len(parts[0]) // _BYTES)
        sum_in_order(parts, [self.name] * len(parts), total)
        return total.nbytes

    def decode(self, encoded: Encoded, out: F32Array) -> None:
        check_sizes(self.name, [len(encoded)], out.nbytes)
        np.copyto(out, np.frombuffer(encoded, np.float32))


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

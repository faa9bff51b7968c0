"""Float32: the gradient itself travels, and is added in rank order.

Error bound: that of float addition. With u = 2**-24 and N ranks the sum is off by at most
(N - 1) * u * (|x0| + |x1| + ...) to first order (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., ch. 4). Addition does not associate: another tree gives other last bits.

`is_plain`: the cores send gradients as they are, in their own dtype, and switch and node add them
on the way of their other work (`luwu.aggregate.sum_in_order`). What is here has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from luwu.aggregate.interface import Aggregator, Encoded, F32Array, check_sizes

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
        np.copyto(total, np.frombuffer(parts[0], np.float32))
        for part in parts[1:]:
            total += np.frombuffer(part, np.float32)
        return total.nbytes

    def decode(self, encoded: Encoded, out: F32Array) -> None:
        check_sizes(self.name, [len(encoded)], out.nbytes)
        np.copyto(out, np.frombuffer(encoded, np.float32))

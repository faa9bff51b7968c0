"""One definition of a model's fingerprint, the same for every arm, store and export.

`weights_digest` is the SHA-256 over one record a parameter, in the order of registration:

    u32  length of the name in bytes      the name, UTF-8 (a tied parameter: its first name)
    u32  length of the dtype in bytes     the dtype it was registered with, such as `float32`
    u32  number of dimensions             u64 each dimension
    u64  length of the values in bytes    the master weights: float32, row by row, no padding

All integers and values are little-endian. Every part carries its length, so no two lists of
parameters give the same bytes. Values may come in parts, because a store reads them that way:

    digest.update("head.weight", "float32", (256, 64), weights)

    digest.begin("head.weight", "float32", (256, 64))
    for part in parts:
        digest.add(part)
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from luwu.base.dtypes import DTYPES

Values = npt.NDArray[np.float32] | bytes | bytearray | memoryview


class WeightsDigest:
    """Takes parameters in the order of registration; refuses incomplete ones."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._name = ""
        self._missing_bytes = 0

    def update(self, name: str, dtype: str, shape: Sequence[int], values: Values) -> None:
        """Add one whole parameter."""
        self.begin(name, dtype, shape)
        self.add(values)
        self._check_complete()

    def begin(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Start a parameter whose values follow through `add`, in order."""
        self._check_complete()
        value_bytes = DTYPES["float32"].nbytes * math.prod(shape)
        for text in (name.encode(), dtype.encode()):
            self._sha256.update(struct.pack("<I", len(text)) + text)
        self._sha256.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        self._sha256.update(struct.pack("<Q", value_bytes))
        self._name = name
        self._missing_bytes = value_bytes

    def add(self, values: Values) -> None:
        """The next values of the parameter begun: a float32 array, or its little-endian bytes."""
        data = _little_endian_bytes(values)
        if data.nbytes > self._missing_bytes:
            raise ValueError(
                f"parameter {self._name!r}: {data.nbytes} bytes given, "
                f"only {self._missing_bytes} are missing"
            )
        self._sha256.update(data)
        self._missing_bytes -= data.nbytes

    def hexdigest(self) -> str:
        """The digest of all parameters so far, as 64 hexadecimal digits."""
        self._check_complete()
        return self._sha256.hexdigest()

    def _check_complete(self) -> None:
        if self._missing_bytes:
            raise ValueError(f"parameter {self._name!r}: {self._missing_bytes} bytes are missing")


def _little_endian_bytes(values: Values) -> memoryview[Any]:
    if isinstance(values, np.ndarray):
        if values.dtype != np.float32:
            raise ValueError(f"master weights are float32, got {values.dtype}")
        # reshape(-1): a memoryview cannot be cast from an array without dimensions
        values = np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8).data
    return memoryview(values).cast("B")

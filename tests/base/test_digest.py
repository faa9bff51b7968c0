"""The weights digest: its bytes, and what it refuses."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from luwu.base.digest import WeightsDigest


def test_digest_is_sha256_of_the_documented_bytes() -> None:
    """I3. Goal: the definition never changes by accident.
    Method: write the record of two parameters by hand and hash it."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    scalar = np.float32(0.5)
    record = (
        struct.pack("<I", 6) + b"a.w\xc3\xa9x"
        + struct.pack("<I", 8) + b"bfloat16"
        + struct.pack("<IQQ", 2, 2, 3)
        + struct.pack("<Q6f", 24, *range(6))
        + struct.pack("<I", 1) + b"b"
        + struct.pack("<I", 7) + b"float32"
        + struct.pack("<I", 0)
        + struct.pack("<Qf", 4, 0.5)
    )  # fmt: skip

    digest = WeightsDigest()
    digest.update("a.wéx", "bfloat16", (2, 3), weight)
    digest.update("b", "float32", (), np.array(scalar))

    assert digest.hexdigest() == hashlib.sha256(record).hexdigest()


def test_values_may_come_in_parts() -> None:
    """Goal: a store may hash chunk by chunk. Method: cut one parameter at odd places."""
    values = np.random.default_rng(3).standard_normal(1000, dtype=np.float32)
    whole = WeightsDigest()
    whole.update("w", "float32", (10, 100), values.reshape(10, 100))

    parts = WeightsDigest()
    parts.begin("w", "float32", (10, 100))
    parts.add(values[:1])
    parts.add(values[1:640].tobytes())
    parts.add(values[640:].data)

    assert parts.hexdigest() == whole.hexdigest()


def test_layout_in_memory_does_not_matter() -> None:
    """Goal: values count, not strides or byte order of the array in memory."""
    values = np.random.default_rng(4).standard_normal((7, 5), dtype=np.float32)
    digests = set()
    for array in (values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]):
        digest = WeightsDigest()
        digest.update("w", "float32", (7, 5), array)
        digests.add(digest.hexdigest())
    assert len(digests) == 1


def test_incomplete_and_overlong_parameters_are_refused() -> None:
    digest = WeightsDigest()
    digest.begin("w", "float32", (4,))
    digest.add(bytes(8))
    with pytest.raises(ValueError, match="'w': 8 bytes are missing"):
        digest.hexdigest()
    with pytest.raises(ValueError, match="'w': 8 bytes are missing"):
        digest.begin("v", "float32", (1,))
    with pytest.raises(ValueError, match="only 8 are missing"):
        digest.add(bytes(12))
    with pytest.raises(ValueError, match="float32, got float64"):
        digest.add(np.zeros(1))  # type: ignore[arg-type]

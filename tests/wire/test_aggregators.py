"""Aggregators: error bounds, order, trees and saturation, by property and by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luwu.aggregate import Aggregator, make_aggregator
from luwu.aggregate.interface import F32Array
from luwu.aggregate.shared_exponent import BLOCK_ELEMS, NOT_FINITE, SharedExponent
from luwu.base.errors import ConfigError

ELEMS = 320  # one whole block and a shorter one
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MAGNITUDES = st.sampled_from([1e-45, 1e-40, 1.2e-38, 1e-20, 1e-3, 1.0, 100.0, 1e20, 1e38])
SEEDS = st.integers(0, 2**32 - 1)


def gradients(seed: int, ranks: int, magnitude: float, special: Sequence[float]) -> Any:
    """float32 [ranks, ELEMS]: numbers of very different size, some of them chosen."""
    rng = np.random.default_rng(seed)
    sizes = magnitude * np.exp2(rng.uniform(-30, 1, (ranks, ELEMS)))
    with np.errstate(over="ignore"):
        values = np.clip(rng.standard_normal((ranks, ELEMS)) * sizes, -3e38, 3e38)
    found = values.astype(np.float32)
    found[:, ::7] = 0
    for number in special:
        found[rng.integers(ranks), rng.integers(ELEMS)] = number
    return found


def encode(kind: Aggregator, values: F32Array, agreed: bytes = b"") -> memoryview:
    out = memoryview(bytearray(kind.encoded_bytes(values.size)))
    return out[: kind.encode(values, agreed, out)]


def combine(kind: Aggregator, parts: Sequence[memoryview]) -> memoryview:
    out = memoryview(bytearray(kind.combined_bytes(parts)))
    return out[: kind.combine(parts, out)]


def agreed_of(kind: Aggregator, grads: Any) -> bytes:
    return kind.fold([kind.measure(each) for each in grads]) if kind.asks_first else b""


def decode(kind: Aggregator, encoded: memoryview, elems: int = ELEMS) -> Any:
    out = np.full(elems, 7, np.float32)
    kind.decode(encoded, out)
    return out


def in_tree(kind: Aggregator, parts: list[memoryview], rng: Any) -> memoryview:
    """Combined in a random tree, in a random order."""
    parts = [parts[i] for i in rng.permutation(len(parts))]
    while len(parts) > 1:
        count = int(rng.integers(2, len(parts) + 1))
        start = int(rng.integers(0, len(parts) - count + 1))
        parts[start : start + count] = [combine(kind, parts[start : start + count])]
    return parts[0]


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(1, 9), MAGNITUDES, st.lists(FLOATS, max_size=4))
@example(0, 1, 1.0, [3.4028235e38])
@example(1, 2, 1e-45, [1e-45, 1.1754942e-38])
@example(2, 1, 1e-40, [0.0, -0.0])
def test_shared_exponent_is_within_its_bound(
    seed: int, ranks: int, magnitude: float, special: list[float]
) -> None:
    """Goal: no element is off by more than the stated bound, nor is anything beyond int32.
    Method: exact sums by `math.fsum`."""
    kind = SharedExponent(ranks)
    grads = gradients(seed, ranks, magnitude, special)
    agreed = agreed_of(kind, grads)
    encoded = [encode(kind, each, agreed) for each in grads]
    largest = sum(abs(np.frombuffer(e[: 4 * ELEMS], np.int32).astype(np.int64)) for e in encoded)
    assert int(np.max(largest)) <= 2**30
    exact = np.array([math.fsum(column.tolist()) for column in grads.T])
    found = decode(kind, combine(kind, encoded)).astype(np.float64)
    is_float32 = np.abs(exact) < 3.4e38
    error = np.abs(found - exact)[is_float32]
    assert (error <= kind.error_bound(agreed, exact)[is_float32]).all()


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, ranks=st.integers(2, 8), magnitude=MAGNITUDES)
def test_integers_add_the_same_in_every_tree(seed: int, ranks: int, magnitude: float) -> None:
    """I3. Goal: any order and any tree of switches gives the same bytes, blocks that are not finite
    included."""
    kind = SharedExponent(ranks)
    rng = np.random.default_rng(seed)
    special = [math.inf, math.nan] if seed % 2 else []
    grads = gradients(seed, ranks, magnitude, special)
    agreed = agreed_of(kind, grads)
    encoded = [encode(kind, each, agreed) for each in grads]
    expected = bytes(combine(kind, encoded))
    for _ in range(6):
        assert bytes(in_tree(kind, encoded, rng)) == expected


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_block_that_is_not_finite_is_nan(wrong: float) -> None:
    """Goal: a single bad element of one rank makes its block NaN, and no other."""
    kind = SharedExponent(3)
    grads = gradients(1, 3, 1.0, [])
    grads[1, BLOCK_ELEMS + 5] = wrong
    agreed = agreed_of(kind, grads)
    assert agreed[1] == NOT_FINITE
    found = decode(kind, combine(kind, [encode(kind, each, agreed) for each in grads]))
    assert np.isfinite(found[:BLOCK_ELEMS]).all()
    assert np.isnan(found[BLOCK_ELEMS:]).all()


def test_zeros_have_an_exponent() -> None:
    """Goal: an all-zero block is defined, and adds to zero; beside one of another rank too."""
    kind = SharedExponent(2)
    zeros = np.zeros((2, ELEMS), np.float32)
    assert set(agreed_of(kind, zeros)) == {0}
    encoded = [encode(kind, each, agreed_of(kind, zeros)) for each in zeros]
    assert not decode(kind, combine(kind, encoded)).any()
    zeros[1, 3] = 1.5
    agreed = agreed_of(kind, zeros)
    assert list(agreed) == [127, 0]
    found = decode(kind, combine(kind, [encode(kind, each, agreed) for each in zeros]))
    np.testing.assert_array_equal(found, zeros[1])


def test_powers_of_two_are_exact() -> None:
    """Goal: what needs no rounding is not rounded, at both ends of float32.
    Method: two ranks; the sum of the largest is one that float32 has."""
    kind = SharedExponent(2)
    for exponent in (-149, -126, -1, 0, 100, 126):
        grads = np.full((2, 64), 2.0**exponent, np.float32)
        agreed = agreed_of(kind, grads)
        found = decode(kind, combine(kind, [encode(kind, g, agreed) for g in grads]), 64)
        assert found.tolist() == [2.0 ** (exponent + 1)] * 64


def test_exponents_that_differ_are_no_sum() -> None:
    """Goal: a peer that scaled otherwise than agreed cannot give a wrong number, in any order."""
    kind = SharedExponent(3)
    grads = gradients(1, 3, 1.0, [])
    agreed = agreed_of(kind, grads)
    higher = bytes([agreed[0] + 1, agreed[1]])
    encoded = [encode(kind, g, a) for g, a in zip(grads, (agreed, higher, agreed), strict=True)]
    for order in itertools.permutations(encoded):
        found = decode(kind, combine(kind, order))
        assert np.isnan(found[:BLOCK_ELEMS]).all()
        assert np.isfinite(found[BLOCK_ELEMS:]).all()


@pytest.mark.parametrize("spec", ["float32", "shared-exponent"])
@pytest.mark.parametrize("elems", [64, 256, 320, 4096, 4096 * 9 + 64])
def test_sizes(spec: str, elems: int) -> None:
    """Goal: what travels is as large as said and is told from what is not; strips, blocks and
    shorter ends come out in order. Method: whole numbers, which every aggregator keeps."""
    kind = make_aggregator(spec, 2)
    values = (np.arange(elems, dtype=np.float32) % 251) - 100
    agreed = agreed_of(kind, [values])
    assert len(agreed) == kind.statement_bytes(elems)
    encoded = encode(kind, values, agreed)
    assert kind.fits(elems, encoded.nbytes)
    assert not kind.fits(elems, encoded.nbytes - 4)
    found = np.empty(elems, np.float32)
    kind.decode(combine(kind, [encoded, encoded]), found)
    np.testing.assert_array_equal(found, 2 * values)
    with pytest.raises(ValueError, match="expected"):
        kind.combine([encoded, encoded[:-4]], memoryview(bytearray(encoded.nbytes)))
    with pytest.raises(ValueError, match="expected"):
        kind.decode(encoded, np.empty(elems + 64, np.float32))


def test_a_name_that_is_none() -> None:
    """Goal: a name that cannot be had is refused with those that can."""
    with pytest.raises(ConfigError, match="'int8' is not known here; there are float32, shared"):
        make_aggregator("int8", 2)

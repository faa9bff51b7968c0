"""The sum of a chunk: float32, from left to right, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from luwu.aggregate.float32 import as_float32, sum_in_order
from luwu.aggregate.interface import F32Array

ALL_16_BITS = np.arange(2**16, dtype=np.uint16)


def f32(*values: float) -> F32Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_every_16_bit_value_is_exact(dtype: str, torch_dtype: torch.dtype) -> None:
    """I3. Goal: the float32 of each bfloat16 and float16 is torch's, subnormals, infinities and
    signed zeros included; NaN stays NaN. Method: all 65,536 of them, bit for bit."""
    found = as_float32(ALL_16_BITS.tobytes(), dtype)
    expected = torch.from_numpy(ALL_16_BITS.view(np.int16)).view(torch_dtype).float().numpy()
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~is_nan], expected.view(np.uint32)[~is_nan])
    assert found.dtype == np.float32


def test_float32_is_a_view() -> None:
    """Goal: what is float32 already is not copied."""
    values = np.arange(8, dtype=np.float32)
    assert np.shares_memory(as_float32(values.data, "float32"), values)


@pytest.mark.parametrize("dtype", ["float64", "int8", "", "F32"])
def test_unknown_dtypes(dtype: str) -> None:
    """I6. Goal: bytes are never read as something else than they are."""
    with pytest.raises(ValueError, match="does not travel"):
        as_float32(b"\0" * 8, dtype)


@pytest.mark.parametrize(("dtype", "nbytes"), [("float32", 6), ("bfloat16", 3), ("float16", 1)])
def test_broken_elements(dtype: str, nbytes: int) -> None:
    """Goal: half an element is no element."""
    with pytest.raises(ValueError, match="multiple of element size"):
        as_float32(b"\0" * nbytes, dtype)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_from_left_to_right(seed: int, count: int) -> None:
    """I3, I4. Goal: ((g0 + g1) + g2) + ..., each rounded to float32, and nothing else.
    Method: a Python loop over single values; sizes around those of vector registers."""
    rng = np.random.default_rng(seed)
    elems = int(rng.choice([1, 7, 64, 100, 4096]))
    scales_W1 = 10.0 ** rng.integers(-6, 7, (count, 1))
    grads_WC = (rng.standard_normal((count, elems)) * scales_W1).astype(np.float32)
    before = grads_WC.copy()
    expected = grads_WC[0].copy()
    for grad_C in grads_WC[1:]:
        for index in range(elems):
            expected[index] = np.float32(expected[index] + grad_C[index])

    out = np.full(elems, np.nan, np.float32)
    sum_in_order([memoryview(grad_C) for grad_C in grads_WC], ["float32"] * count, out)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(grads_WC, before)


def test_mixed_dtypes() -> None:
    """I4. Goal: a raw bfloat16 contribution and a float32 sum meet in float32."""
    values = torch.tensor([1.5, -2.0, 3e30])
    as_bf16 = values.bfloat16().view(torch.int16).numpy()
    as_f16 = np.array([1, 2, 3], np.float16)
    out = np.empty(3, np.float32)
    sum_in_order(
        [as_bf16.tobytes(), as_f16.tobytes(), values.numpy().tobytes()],
        ["bfloat16", "float16", "float32"],
        out,
    )
    expected = (values.bfloat16().float() + torch.tensor([1.0, 2.0, 3.0])) + values
    np.testing.assert_array_equal(out, expected.numpy())


def test_not_finite_values_stay() -> None:
    """Goal: a NaN or infinity of one rank is in the sum, so that the step is skipped."""
    grads = [f32(np.nan, np.inf, 1), f32(0, -np.inf, 1)]
    out = np.empty(3, np.float32)
    with np.errstate(invalid="ignore"):
        sum_in_order([grad.data for grad in grads], ["float32"] * 2, out)
    np.testing.assert_array_equal(out, f32(np.nan, np.nan, 2))


@pytest.mark.parametrize("elems", [0, 1, 3, 5])
@pytest.mark.parametrize("position", [0, 1])
def test_a_payload_of_another_size(elems: int, position: int) -> None:
    """I1, I4. Goal: no payload is spread over the chunk: numpy would add one element to all."""
    payloads = [np.ones(4, np.float32).tobytes()] * 2
    payloads[position] = np.ones(elems, np.float32).tobytes()
    out = np.empty(4, np.float32)
    with pytest.raises(ValueError, match=f"payload {position} has {elems} elements, expected 4"):
        sum_in_order(payloads, ["float32"] * 2, out)

"""What is stored in fewer bits: codes, their rounding, and the draws it is done by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.base.dtypes import DTYPES
from luwu.wire.stored import BLOCK_ELEMS
from switch_emu.node.kernels import Arrays, Run, UpdateCall
from switch_emu.node.kernels.make import portable_kernel
from switch_emu.node.kernels.narrow import Draw, Stored, draw_key, draws, narrow, widen
from tests.helpers import kernel_jobs
from tests.helpers.kernel_jobs import ADAMW, HYPERS, kernel_of

cache = kernel_jobs.cache  # a fixture of this module

BLOCKS = 300
NARROW = pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8"])
F32 = np.dtype(np.float32)


def room(dtype: str, blocks: int = BLOCKS) -> tuple[Stored, np.ndarray | None]:
    values = np.zeros(blocks * BLOCK_ELEMS, DTYPES[dtype].numpy)
    return values, np.zeros(blocks, np.float32) if values.itemsize == 1 else None


def values_for(dtype: str, seed: int = 0, blocks: int = BLOCKS) -> np.ndarray:
    """Moments as training has them: a few sizes in a block, and many among blocks."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((blocks, BLOCK_ELEMS)) * np.exp2(rng.uniform(-60, 20, (blocks, 1)))
    found = (found**2 if dtype == "uint8" else found).astype(np.float32)
    found[:, ::9] = 0
    return found.ravel()


def stored(values: np.ndarray, dtype: str, version: int | None = None) -> np.ndarray:
    """What values are when they have been stored."""
    into, scales = room(dtype, len(values) // BLOCK_ELEMS)
    drawn = None
    if version is not None:
        drawn = draws(Draw(draw_key(version, 3), 5), 1, range(len(values) // BLOCK_ELEMS))
    narrow(values, into, scales, drawn, is_unsigned=dtype == "uint8")
    found = np.empty_like(values)
    widen(into, scales, found)
    return found


@NARROW
def test_what_was_stored_is_stored_again_as_it_was(dtype: str) -> None:
    """I4. Goal: an export goes back into a state bit for bit: every code, with any scale."""
    once = stored(values_for(dtype), dtype, version=1)
    assert (stored(once, dtype).view(np.uint32) == once.view(np.uint32)).all()
    if dtype != "bfloat16":
        codes, scales = room(dtype, 4)
        assert scales is not None
        codes[:] = np.arange(256).astype(np.uint8).view(codes.dtype)
        codes[codes.view(np.uint8) == 128] = 0 if dtype == "int8" else 128  # -128 is no code
        codes[::64] = 127 if dtype == "int8" else 255
        scales[:] = (1e-30, 3e-7, 1.7, 2e20)
        wide = np.empty(codes.size, np.float32)
        widen(codes, scales, wide)
        again, scales_again = room(dtype, 4)
        narrow(wide, again, scales_again, None)
        assert (again == codes).all()
        assert (scales_again == scales).all()


@NARROW
def test_rounding_is_within_a_code_and_right_on_average(dtype: str) -> None:
    """Goal: the largest of a block and zero are exact; no value is further off than the next code;
    the mean of many roundings is the value, of each, and more exactly of all. Method: 400 versions;
    5 standard errors."""
    values = values_for(dtype)
    found = np.stack([stored(values, dtype, version) for version in range(400)]).astype(np.float64)
    blocks = values.reshape(-1, BLOCK_ELEMS).astype(np.float64)
    scale = np.repeat(np.abs(blocks).max(axis=1), BLOCK_ELEMS)
    part = np.abs(values) / scale
    step = {
        "bfloat16": np.abs(values) * 2.0**-7,
        "int8": (2 * np.sqrt(part) * 127 + 1) / 127**2 * scale,
        "uint8": 4 * (part**0.25 + 1 / 255) ** 3 / 255 * scale,
    }[dtype]
    off = np.abs(found - values)
    assert (off <= step * 1.0001).all()
    assert (found[:, values == 0] == 0).all()
    if dtype != "bfloat16":
        assert (found[:, np.abs(values) == scale.astype(np.float32)] == values[part == 1]).all()
    usual = values != 0 if dtype != "uint8" else part > 255.0**-4  # below is rounded up
    error = (found.mean(axis=0) - values)[usual] / step[usual]
    error_max = 5 * 0.5 / 400**0.5  # a draw between two codes is off by half a step at most
    assert np.abs(error).max() < error_max
    assert abs(error.mean()) < error_max / len(error) ** 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_second_moments_neither_vanish_nor_stick(dtype: str) -> None:
    """Goal: above zero stays above it, so that no update divides by zero; and a moment that falls
    by a thousandth a step, beside a large one that does not, does fall. To the nearest it does
    not."""
    values = np.full(BLOCK_ELEMS, 1e-30, np.float32)
    values[0] = 1.0
    assert (stored(values, dtype, version=2) > 0).all()
    assert (stored(values, dtype) > 0).all()

    start = values_for("uint8", 1)
    largest = start.reshape(-1, BLOCK_ELEMS).max(axis=1).repeat(BLOCK_ELEMS)
    rate = np.where(start == largest, F32.type(1), F32.type(0.999))
    falling, stuck = start.copy(), start.copy()
    for version in range(2000):
        falling = stored(falling * rate, dtype, version)
        stuck = stored(stuck * rate, dtype)
    usual = (start > largest / 100) & (start != largest)
    expected = start[usual].astype(np.float64) * 0.999**2000
    assert 0.97 < falling[usual].sum() / expected.sum() < 1.03
    assert 0.5 < np.median(falling[usual] / expected) < 1.5
    assert np.median(stuck[usual] / expected) > 5


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_block_that_is_not_finite_is_no_number(dtype: str, wrong: float) -> None:
    """Goal: nothing goes on as if nothing had been; the blocks beside it are untouched."""
    values = values_for(dtype)
    quiet = stored(values, dtype, version=1)
    values[70] = wrong
    found = stored(values, dtype, version=1)
    block = np.zeros(values.size, bool)
    block[64:128] = True
    assert np.isnan(found[block]).all()
    assert (found[~block] == quiet[~block]).all()


def test_draws_belong_to_an_element() -> None:
    """I3. Goal: each of version, parameter, tensor and element makes other draws, and nothing else
    does. Golden: a state is updated by these draws for ever."""
    whole = draws(Draw(draw_key(7, 2), 0), 1, range(40))
    assert (draws(Draw(draw_key(7, 2), 10), 1, range(5, 20)) == whole[15:30]).all()
    for key, tensor in ((draw_key(8, 2), 1), (draw_key(7, 3), 1), (draw_key(7, 2), 2)):
        other = draws(Draw(key, 0), tensor, range(40))
        assert (other == whole).sum() < 3
    assert len(np.unique(whole)) > whole.size - 3
    assert abs(float(whole.mean()) / 2**32 - 0.5) < 0.02
    assert whole[0, :3].tolist() + whole[39, 61:].tolist() == [
        3048227729, 1655048089, 1923675054, 1034725651, 178932970, 1279580698,
    ]  # fmt: skip


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
@pytest.mark.parametrize(
    ("master", "state"), [("float32", "bfloat16"), ("float32", "int8"), ("bfloat16", "int8")]
)
def test_kernels_agree_on_pages_that_lie_apart(
    master: str, state: str, in_place: bool, cache: Path
) -> None:
    """I4. Goal: the compiled kernel has the bits of the portable one for several pages in records,
    one of whose parameters goes on from page to page. Method: three updates of three pages."""
    kernel_jobs.need_compiled(cache)
    pages, elems = 3, 4096
    found = []
    for kernel in (kernel_of("compiled", ADAMW, cache), portable_kernel(*ADAMW)):
        rng = np.random.default_rng(4)
        records = [np.zeros((pages, 64 * 1024), np.uint8) for _ in range(2)]

        def view(records: np.ndarray, at: int, count: int, form: Any) -> np.ndarray:
            octets = records[:, at : at + count * np.dtype(form).itemsize]
            return octets.view(form)

        second = "uint8" if state == "int8" else state
        forms = [DTYPES[each].numpy for each in (master, state, second)]
        sides = []
        for each in records:
            arrays = [view(each, 64 * 256 * n, elems, form) for n, form in enumerate(forms)]
            scales = [view(each, 60_000 + 256 * n, elems // 64, np.float32) for n in range(2)]
            scales = scales if state == "int8" else []
            sides.append(Arrays(arrays[0], tuple(arrays[1:]), tuple(scales)))
        wires = []
        for version in range(3):
            grad = rng.standard_normal(pages * elems).astype(np.float32)
            key = draw_key(version, 1)
            wire = bytearray(2 * pages * elems)
            kernel.update(
                UpdateCall(
                    contributions=[(grad.view(np.uint8).data, "float32")],
                    old=sides[0],
                    new=sides[0 if in_place else 1],
                    runs=[
                        Run(start=0, stop=640, hyper=None),
                        Run(start=640, stop=9024, hyper=HYPERS["adamw"][0], updates_count=version,
                            draw=Draw(key, 0)),
                        Run(start=9024, stop=pages * elems, hyper=HYPERS["adamw"][0],
                            updates_count=version, draw=Draw(draw_key(version, 2), 7)),
                    ],
                    divisor=3.0,
                    scale=1.0,
                    wire=(memoryview(wire), "bfloat16"),
                    measure=True,
                )
            )  # fmt: skip
            wires.append(bytes(wire))
            sides.reverse()
        found.append([each.tobytes() for each in records] + wires)
    assert found[0] == found[1]


def test_a_run_without_a_draw_is_refused() -> None:
    """Goal: nothing is rounded by a draw that nobody chose."""
    kernel = portable_kernel(*ADAMW)
    values, scales = room("int8", 1)
    second = values.view(np.uint8).copy()
    weights = np.zeros(64, np.float32)
    call: dict[str, Any] = {
        "contributions": [(memoryview(bytes(256)), "float32")], "divisor": 1.0, "scale": 1.0,
        "wire": None, "measure": False, "runs": [Run(start=0, stop=64, hyper=HYPERS["adamw"][0])],
    }  # fmt: skip
    for given, words in (((scales, scales), "has no draw"), ((), "with scales None")):
        pages = Arrays(weights, (values, second), given)
        with pytest.raises(ValueError, match=words):
            kernel.update(UpdateCall(**call, old=pages, new=pages))

"""Update kernels: torch's arithmetic, and one result from both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.errors import ConfigError
from luwu.layout import padded
from switch_emu.node.kernels import Arrays, Run, UpdateCall, kernel_name
from switch_emu.node.kernels.portable import BLOCK_ELEMS
from tests.helpers import kernel_jobs
from tests.helpers.kernel_jobs import (
    ADAM,
    ADAMW,
    AVERAGED,
    LION,
    MOMENTUM,
    NONE,
    PLAIN,
    Job,
    adam,
    adamw,
    kernel_of,
    payload,
    random_values,
    same_bits,
    sgd,
    squares_of,
    torch_step,
)

EVERY = [ADAM, ADAMW, LION, MOMENTUM, PLAIN, NONE]
SHAPES = [64, 4096, 3 * 4096 + 192, BLOCK_ELEMS + 4096 + 64]
every_seed = pytest.mark.parametrize("seed", range(3))

cache, version = kernel_jobs.cache, kernel_jobs.version  # fixtures of this module


def squares_in_order(total: np.ndarray) -> list[float]:
    """Of all blocks."""
    return [squares_of(total[start : start + 4096]) for start in range(0, total.size, 4096)]


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
@pytest.mark.parametrize(
    "optimizer", [*EVERY, *AVERAGED], ids=lambda optimizer: "+".join((optimizer[0], *optimizer[1]))
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_update_equals_torch(
    seed: int, optimizer: tuple[str, tuple[str, ...]], in_place: bool, special: bool,
    version: str, cache: Path,
) -> None:  # fmt: skip
    """I4. Goal: every bit of weights, state, wire and squares is as plain torch has it.
    Method: random contributions, runs, divisors and steps; with infinities and NaN, and without."""
    rng = np.random.default_rng([seed, special])
    kernel = kernel_of(version, optimizer, cache)
    for elems in SHAPES:
        job = Job.draw(rng, optimizer, elems, special)
        note = f"{seed=} {special=} {elems=} {job.runs} {job.divisor}"
        with np.errstate(all="ignore"):
            *expected, total = job.by_torch()
            squares_expected = np.array(squares_in_order(total))
        found, squares, wire = job.by_kernel(kernel, in_place, wire_shift=64 * (seed % 2))
        for name, one, other in zip(("weights", *optimizer[1]), found, expected, strict=True):
            same_bits(one, other, f"{name}, {note}")
        same_bits(np.array(squares), squares_expected, f"squares, {note}")
        cast = torch.from_numpy(found[0]).to(getattr(torch, job.wire_dtype))
        np.testing.assert_array_equal(wire, cast.view(torch.uint8).numpy(), err_msg=note)


def test_every_square_root_is_divided_as_torch_does(version: str, cache: Path) -> None:
    """I4. Goal: the quotient made without the divider is correctly rounded.
    Method: v over all mantissas of two binades at random, for many corrections; AdamW with a
    gradient of zero and beta2 near 1 leaves sqrt(v) / correction visible in the weights."""
    kernel = kernel_of(version, ADAMW, cache)
    rng = np.random.default_rng(11)
    elems = 1 << 16
    for updates in [0, 1, 2, 10, 100, 10_000, *rng.integers(0, 100_000, 10).tolist()]:
        values = np.exp2(rng.uniform(-140, 120, elems)).astype(np.float32)
        job = Job(
            ADAMW, elems, [(payload(np.zeros(elems, np.float32), "float32"), "float32")],
            np.zeros(elems, np.float32), (np.ones(elems, np.float32), values),
            [Run(start=0, stop=elems, hyper=adamw(lr=1.0, beta2=0.999, eps=0.0),
                 updates_count=updates)],
            1.0, 1.0, "float32",
        )  # fmt: skip
        found, _, _ = job.by_kernel(kernel, in_place=True)
        *expected, _ = job.by_torch()
        for one, other in zip(found, expected, strict=True):
            same_bits(one, other, f"{updates=}")


@every_seed
def test_fold_adds_the_sum_to_what_was_there(seed: int, version: str, cache: Path) -> None:
    """Goal: out = before + (c0 + c1 + ...), with the squares of out. Method: numpy, in order; with
    and without `before`, and into `before` itself."""
    rng = np.random.default_rng(seed)
    kernel = kernel_of(version, ADAMW, cache)
    for elems in SHAPES:
        job = Job.draw(rng, NONE, elems)
        *_, total = job.by_torch()
        before = random_values(rng, elems)
        for earlier, expected in ((None, total), (before, before + total)):
            out = np.full(elems, 77, np.float32)
            squares = kernel.fold(job.contributions, earlier, out)
            same_bits(out, expected, f"{seed=} {elems=}")
            assert list(squares) == squares_in_order(expected), f"{seed=} {elems=}"
        kernel.fold(job.contributions, before, before)
        same_bits(before, expected, f"{seed=} {elems=}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_wire_is_rounded_to_nearest_even(dtype: str, version: str, cache: Path) -> None:
    """Goal: ties go to even, infinities stay, large values become infinite, NaN stays NaN.
    Method: every tie of a binade and its neighbours, and specials, against torch; unaligned too."""
    kept = {"bfloat16": 16, "float16": 13}[dtype]
    base = np.float32(1.0).view(np.uint32)
    ties = base + (np.arange(1024, dtype=np.uint32) << kept) + np.uint32(1 << kept - 1)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -6e-8, 3e-8, 65504, 65520, 3.4e38]
    values = np.concatenate([
        ties.view(np.float32), (ties - 1).view(np.float32), (ties + 1).view(np.float32),
        np.resize(np.array(special, np.float32), 1024),
        random_values(np.random.default_rng(0), 4096),
    ]).astype(np.float32)  # fmt: skip
    kernel = kernel_of(version, NONE, cache)
    for shift in (0, 1, 2, 66):
        job = Job(
            NONE, values.size, [(payload(values, "float32"), "float32")], values, (), [], 1.0, 1.0,
            dtype,
        )  # fmt: skip
        _, squares, wire = job.by_kernel(kernel, True, measure=False, wire_shift=shift)
        assert squares == ()
        expected = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy()
        np.testing.assert_array_equal(wire, expected)


@every_seed
@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM, PLAIN, LION, NONE, AVERAGED[0]])
@pytest.mark.parametrize("gaps", [(0, 0), (16, 48), (5, 16)])
def test_pages_that_lie_apart_are_updated_as_one_long_page(
    seed: int, optimizer: tuple[str, tuple[str, ...]], gaps: tuple[int, int], version: str,
    cache: Path,
) -> None:  # fmt: skip
    """Goal: P pages in one call give the bits of one page of P * C elements: weights, state, wire,
    squares; runs cross their borders, and what lies between pages is untouched. Weights lie apart
    from the state; all of it is updated in place, or none, or the state alone."""
    rng = np.random.default_rng(seed)
    kernel, (count, elems) = kernel_of(version, optimizer, cache), (3, 8192)
    job = Job.draw(rng, optimizer, count * elems)
    for in_place in ("all", "none", "state"):
        expected, long_squares, wire = job.by_kernel(kernel, in_place == "all")
        state = [_apart(each, count, gaps[0]) for each in job.state]
        read = [_apart(job.weights, count, 0), *state]
        empty = np.full(count * elems, 77, np.float32)
        written = [_apart(empty, count, gaps[1]) for _ in read]
        if in_place != "none":
            written[in_place == "state" :] = read[in_place == "state" :]
        octets = np.zeros(wire.size, np.uint8)
        squares = kernel.update(UpdateCall(
            contributions=job.contributions, old=Arrays(read[0], tuple(read[1:])),
            new=Arrays(written[0], tuple(written[1:])), runs=job.runs,
            divisor=job.divisor, scale=job.scale, wire=(octets.data, job.wire_dtype), measure=True,
        ))  # fmt: skip
        where = f"{seed=} {in_place=}"
        for found, one in zip(written, expected, strict=True):
            same_bits(found.reshape(-1), one, where)
            assert found.base is not None
            assert (found.base[:, elems:] == 55).all(), where
        np.testing.assert_array_equal(octets, wire, where)
        np.testing.assert_array_equal(squares, long_squares, where)


def _apart(values: np.ndarray, count: int, gap: int) -> np.ndarray:
    """Pages of equal size, with a gap behind each that holds 55."""
    elems = values.size // count
    room = np.full((count, elems + gap), 55, np.float32)
    room[:, :elems] = values.reshape(count, elems)
    return room[:, :elems]


def test_what_does_not_fit_is_refused(version: str, cache: Path) -> None:
    """Goal: wrong sizes, dtypes and runs raise ValueError and nothing is written."""
    kernel = kernel_of(version, ADAMW, cache)
    weights, m, v = (np.ones(128, np.float32) for _ in range(3))
    pages, good = Arrays(weights, (m, v)), payload(weights, "float32")
    whole = [Run(start=0, stop=128, hyper=adamw())]
    rows, room = (m.reshape(1, 128), v.reshape(1, 128)), np.ones((2, 128), np.float32)

    def update(**given: Any) -> None:
        arguments: dict[str, Any] = {
            "contributions": [(good, "float32")], "old": pages, "new": pages, "runs": whole,
            "divisor": 1.0, "scale": 1.0, "wire": None, "measure": False,
        }  # fmt: skip
        kernel.update(UpdateCall(**(arguments | given)))

    bad: list[tuple[str, dict[str, Any]]] = [
        ("no contribution", {"contributions": []}),
        ("bytes", {"contributions": [(good[:-4], "float32")]}),
        ("does not travel", {"contributions": [(good, "float64")]}),
        ("arrays", {"old": Arrays(weights, (m,))}),
        ("float32 \\[128\\]", {"old": Arrays(weights, (m[:64], v))}),
        ("float32 \\[128\\]", {"new": Arrays(weights, (m, v.astype(np.float64)))}),
        ("begin with a block", {"old": Arrays(weights.reshape(2, 64), (m, v))}),
        ("float32 \\[128\\]", {"old": Arrays(weights, (np.ones((1, 128), np.float32), v))}),
        ("to lie elsewhere", {"old": Arrays(room[::2], rows), "new": Arrays(room[:1], rows)}),
        ("cover 64", {"runs": [Run(start=0, stop=64, hyper=adamw())]}),
        ("does not follow", {"runs": [Run(start=64, stop=128, hyper=adamw())]}),
        ("does not follow", {"runs": [Run(start=0, stop=100, hyper=adamw())]}),
        ("the wire", {"wire": (memoryview(bytearray(3)), "bfloat16")}),
    ]
    for words, given in bad:
        with pytest.raises(ValueError, match=words):
            update(**given)
    assert (weights == 1).all()
    update()
    assert (weights != 1).all()


RAGGED = [
    (ADAM, adam()), (ADAM, adam(weight_decay=0.0)), (ADAM, adam(lr=0.3, maximize=True)),
    (ADAMW, adamw()), (ADAMW, adamw(weight_decay=0.0)), (ADAMW, adamw(lr=0.3, maximize=True)),
    (PLAIN, sgd(momentum=0.0)), (PLAIN, sgd(momentum=0.0, weight_decay=0.1, maximize=True)),
    (MOMENTUM, sgd(dampening=0.4, weight_decay=0.02)),
    (MOMENTUM, sgd(nesterov=True, maximize=True)),
]  # fmt: skip


@pytest.mark.parametrize("tail", [1, 33, 63])
def test_ragged_tail_stays_close_to_torch(tail: int, version: str, cache: Path) -> None:
    """I4. Goal: where a parameter is no multiple of 64, the result differs from torch's only in the
    rounding of scalar code, however it is cut into pages.

    Method: torch on the ragged tensor, pages padded with zeros as the layout does. Whole vectors
    are equal bit for bit. The last 64 elements may differ by a few roundings of the terms that an
    element is made of, three steps long: bound 4 eps of the largest value in the calculation."""
    elems, rng = 8192 + tail, np.random.default_rng(tail)
    scale = np.exp(rng.uniform(-12, 3, elems)) * (rng.random(elems) > 0.02)
    grads = [(rng.standard_normal(elems) * scale).astype(np.float32) for _ in range(3)]
    weights = rng.standard_normal(elems, dtype=np.float32)
    for optimizer, hyper in RAGGED:
        kernel, note = kernel_of(version, optimizer, cache), f"{optimizer} {hyper}"
        tensors = [torch.from_numpy(weights.copy()), *(torch.zeros(elems) for _ in optimizer[1])]
        arrays = [np.zeros(padded(elems), np.float32) for _ in tensors]
        arrays[0][:elems] = weights
        for updates_count, grad in enumerate(grads):
            torch_step(optimizer, tensors, torch.from_numpy(grad), hyper, updates_count)
            wide = np.concatenate([grad, np.zeros(padded(elems) - elems, np.float32)])
            for first in range(0, wide.size, 4096):
                page, *state = (array[first : first + 4096] for array in arrays)
                kernel.update(UpdateCall(
                    contributions=[(wide[first : first + 4096].view(np.uint8).data, "float32")],
                    old=Arrays(page, tuple(state)), new=Arrays(page, tuple(state)),
                    runs=[Run(start=0, stop=page.size, hyper=hyper, updates_count=updates_count)],
                    divisor=1.0, scale=1.0, wire=None, measure=False,
                ))  # fmt: skip
        found, expected = arrays[0], tensors[0].numpy()
        whole = elems // 64 * 64
        np.testing.assert_array_equal(found[:whole], expected[:whole], note)
        terms = [np.abs(weights), np.abs(expected), *(np.abs(grad) for grad in grads)]
        largest = np.maximum.reduce([*terms, np.ones(elems, np.float32)])[whole:]
        error = np.abs(found[whole:elems].astype(np.float64) - expected[whole:])
        assert (error <= 4 * np.finfo(np.float32).eps * largest).all(), note
        assert not found[elems:].any(), "padding is zero and stays zero"


def test_kernels_have_different_names() -> None:
    """Goal: the name in a store's configuration tells which arithmetic made it."""
    assert len({kernel_name(*optimizer) for optimizer in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("optimizer", "state_fields"),
    [("adagrad", ("m",)), ("adamw", ()), ("adamw", ("m", "v", "v_max")), ("sgd", ("m", "v"))],
)
def test_unknown_kernels_are_refused(optimizer: str, state_fields: tuple[str, ...]) -> None:
    """Goal: the message names what was asked for and what there is."""
    with pytest.raises(ConfigError, match="it has adam, adamw, lion, muon, none, sgd") as caught:
        kernel_name(optimizer, state_fields)
    assert f"{optimizer!r} with state {list(state_fields)}" in str(caught.value)

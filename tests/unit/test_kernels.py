"""Update kernels: torch's arithmetic, one result from both versions, and what may be loaded."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import update as benchmark
from luwu.base.errors import ConfigError
from luwu.layout import DTYPE_BYTES
from luwu.wire.hyper import Number
from switch_emu.native import build as building
from switch_emu.node.kernels import Run, UpdateKernel, make_kernel
from switch_emu.node.kernels import make as making
from switch_emu.node.kernels.portable import BLOCK_ELEMS, TORCH_DTYPES

ADAMW = ("adamw", ("m", "v"))
MOMENTUM = ("sgd", ("momentum",))
PLAIN = ("sgd", ())
NONE = ("none", ())
EVERY = [ADAMW, MOMENTUM, PLAIN, NONE]
SHAPES = [64, 4096, 3 * 4096 + 192, BLOCK_ELEMS + 4096 + 64]
MADE: dict[tuple[str, tuple[str, tuple[str, ...]]], UpdateKernel] = {}
"""Kernels are made once: they keep nothing between calls."""
every_seed = pytest.mark.parametrize("seed", range(3))


def adamw(**given: Number) -> dict[str, Number]:
    return {
        "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01,
        "maximize": False,
    } | given  # fmt: skip


def sgd(**given: Number) -> dict[str, Number]:
    return {
        "lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
        "maximize": False,
    } | given  # fmt: skip


HYPERS: dict[str, list[dict[str, Number]]] = {
    "adamw": [
        adamw(), adamw(weight_decay=0.0), adamw(maximize=True), adamw(beta1=0.3, lr=0.3),
        adamw(beta1=0.5, beta2=0.9999), adamw(eps=0.0), adamw(beta1=0.0, beta2=0.0),
        adamw(beta2=1 - 1e-13),
    ],
    "sgd": [
        sgd(), sgd(weight_decay=0.02, maximize=True), sgd(nesterov=True, weight_decay=0.1),
        sgd(dampening=0.4), sgd(momentum=0.0), sgd(nesterov=True, maximize=True),
    ],
    "none": [{}],
}  # fmt: skip


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "kernels"


@pytest.fixture(params=["portable", "compiled"])
def version(request: pytest.FixtureRequest, cache: Path) -> str:
    made = make_kernel(*ADAMW, cache=cache)
    if request.param == "compiled" and made.kernel.version != "compiled":
        pytest.skip(f"no compiled kernel here: {made.reason}")
    return str(request.param)


def kernel_of(version: str, optimizer: tuple[str, tuple[str, ...]], cache: Path) -> UpdateKernel:
    if (version, optimizer) not in MADE:
        made = make_kernel(*optimizer, cache=cache, compiled=version == "compiled")
        assert made.kernel.version == version
        MADE[version, optimizer] = made.kernel
    return MADE[version, optimizer]


def random_values(rng: np.random.Generator, elems: int, special: bool = False) -> np.ndarray:
    """float32 of very different sizes, zeros and denormals; infinities and NaN if `special`."""
    values = rng.standard_normal(elems) * np.exp2(rng.uniform(-40, 10, elems))
    values[rng.random(elems) < 0.02] = 0
    tiny = rng.random(elems) < 0.02
    values[tiny] = rng.standard_normal(int(tiny.sum())) * 1e-41
    if special:
        for value in (np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45):
            values[rng.random(elems) < 0.01] = value
    return values.astype(np.float32)


def payload(values: np.ndarray, dtype: str, shift: int = 0) -> memoryview:
    """What travels, at an address `shift` bytes off."""
    octets = torch.from_numpy(values).to(TORCH_DTYPES[dtype]).view(torch.uint8).numpy()
    room = np.empty(octets.size + 64, np.uint8)
    shift += -room.ctypes.data % 64
    room[shift : shift + octets.size] = octets
    return room[shift : shift + octets.size].data.toreadonly()


def aligned(elems: int) -> np.ndarray:
    room = np.zeros(elems * 4 + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + elems * 4].view(np.float32)


def same_bits(found: np.ndarray, expected: np.ndarray, note: str = "") -> None:
    """Equal bit for bit, but any NaN equals any other."""
    assert found.dtype == expected.dtype
    both_nan = np.isnan(found) & np.isnan(expected)
    bits = np.uint32 if found.dtype == np.float32 else np.uint64
    wrong = (found.view(bits) != expected.view(bits)) & ~both_nan
    assert not wrong.any(), f"{note}: {int(wrong.sum())} differ, first at {int(wrong.argmax())}"


@dataclass
class Job:
    """One update, and what plain torch makes of it."""

    optimizer: tuple[str, tuple[str, ...]]
    elems: int
    contributions: list[tuple[memoryview, str]]
    weights: np.ndarray
    state: tuple[np.ndarray, ...]
    runs: list[Run]
    divisor: float
    scale: float
    updates_count: int
    wire_dtype: str

    @classmethod
    def draw(
        cls, rng: np.random.Generator, optimizer: tuple[str, tuple[str, ...]], elems: int,
        special: bool = False,
    ) -> Job:  # fmt: skip
        dtypes = ["float32", "bfloat16", "float16"]
        count = int(rng.integers(1, 10))
        same = str(rng.choice(dtypes)) if rng.random() < 0.5 else None
        chosen = [same or str(rng.choice(dtypes)) for _ in range(count)]
        state = [random_values(rng, elems, special) for _ in optimizer[1]]
        if optimizer == ADAMW:
            state[1] = np.abs(state[1])
        borders = {0, elems, *(64 * rng.integers(0, elems // 64 + 1, 3)).tolist()}
        ordered = sorted(borders)
        hypers = HYPERS[optimizer[0]]
        return cls(
            optimizer, elems,
            [
                (payload(random_values(rng, elems, special), dtype, int(rng.integers(0, 9))), dtype)
                for dtype in chosen
            ],
            random_values(rng, elems, special), tuple(state),
            [
                Run(start=low, stop=high, hyper=hypers[int(rng.integers(len(hypers)))])
                for low, high in itertools.pairwise(ordered)
            ],
            float(rng.choice([1.0, 2.0, 3.0, 8.0, 0.25, 7.3])), float(rng.choice([1.0, 0.3])),
            int(rng.choice([0, 1, 7, 999, 123_456])), str(rng.choice(dtypes)),
        )  # fmt: skip

    def by_torch(self) -> tuple[np.ndarray, ...]:
        """Weights, state and the sum, from whole tensors and torch's fused functions."""
        total = None
        for octets, dtype in self.contributions:
            bits = torch.frombuffer(bytearray(octets), dtype=TORCH_DTYPES[dtype]).float()
            total = bits if total is None else total + bits
        assert total is not None
        mean = total / torch.tensor(self.divisor, dtype=torch.float32)
        if self.scale < 1:
            mean = mean * torch.tensor(self.scale, dtype=torch.float32)
        tensors = [torch.from_numpy(array.copy()) for array in (self.weights, *self.state)]
        for run in self.runs:
            cut = [tensor[run.start : run.stop] for tensor in tensors]
            torch_step(self.optimizer, cut, mean[run.start : run.stop], run.hyper,
                       self.updates_count)  # fmt: skip
        return (*(tensor.numpy() for tensor in tensors), total.numpy())

    def by_kernel(
        self, kernel: UpdateKernel, in_place: bool, measure: bool = True, wire_shift: int = 0
    ) -> tuple[tuple[np.ndarray, ...], tuple[float, ...], np.ndarray]:
        """Weights and state; squares; the wire."""
        arrays = []
        for array in (self.weights, *self.state):
            arrays.append(aligned(self.elems))
            arrays[-1][:] = array
        outs = arrays if in_place else [aligned(self.elems) for _ in arrays]
        for array in outs if not in_place else ():
            array[:] = 77.0
        nbytes = self.elems * DTYPE_BYTES[self.wire_dtype]
        room = aligned(self.elems + 64).view(np.uint8)
        wire = room[wire_shift : wire_shift + nbytes]
        squares = kernel.update(
            contributions=self.contributions, weights=arrays[0], state=tuple(arrays[1:]),
            weights_out=outs[0], state_out=tuple(outs[1:]), runs=self.runs, divisor=self.divisor,
            scale=self.scale, updates_count=self.updates_count,
            wire=(wire.data, self.wire_dtype), measure=measure,
        )  # fmt: skip
        if not in_place:
            for array, before in zip(arrays, (self.weights, *self.state), strict=True):
                same_bits(array, before, "what is read stays as it was")
        assert not room[wire_shift + nbytes :].any(), "nothing is written behind the wire"
        return tuple(outs), squares, wire


def torch_step(
    optimizer: tuple[str, tuple[str, ...]], tensors: list[Any], mean: Any,
    hyper: Mapping[str, Number], updates: int,
) -> None:  # fmt: skip
    weights, *state = tensors
    given: dict[str, Any] = dict(hyper)
    if optimizer == ADAMW:
        torch._fused_adamw_(
            [weights], [mean], [state[0]], [state[1]], [], [torch.tensor(float(updates + 1))],
            amsgrad=False, **given,
        )  # fmt: skip
    elif optimizer != NONE:
        if optimizer == PLAIN:
            given["momentum"] = 0.0
        buffers = state if given["momentum"] else []
        torch._fused_sgd_([weights], [mean], buffers, is_first_step=updates == 0, **given)


def squares_in_order(total: np.ndarray) -> list[float]:
    """The definition in words of `interface.py`, one addition at a time."""
    found = []
    for start in range(0, total.size, 4096):
        block = np.zeros(4096)
        part = total[start : start + 4096].astype(np.float64)
        block[: part.size] = part
        lanes = np.zeros(256)
        for row in range(16):
            lanes = lanes + block[row * 256 : row * 256 + 256] ** 2
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        found.append(float(lanes[0]))
    return found


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
@pytest.mark.parametrize("optimizer", EVERY, ids=["adamw", "momentum", "sgd", "none"])
@pytest.mark.parametrize("seed", range(2))
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
        note = f"{seed=} {special=} {elems=} {job.runs} {job.divisor} {job.updates_count}"
        with np.errstate(all="ignore"):
            *expected, total = job.by_torch()
            squares_expected = np.array(squares_in_order(total))
        found, squares, wire = job.by_kernel(kernel, in_place, wire_shift=64 * (seed % 2))
        for name, one, other in zip(("weights", *optimizer[1]), found, expected, strict=True):
            same_bits(one, other, f"{name}, {note}")
        same_bits(np.array(squares), squares_expected, f"squares, {note}")
        cast = torch.from_numpy(found[0]).to(TORCH_DTYPES[job.wire_dtype])
        np.testing.assert_array_equal(wire, cast.view(torch.uint8).numpy(), err_msg=note)


@every_seed
def test_versions_give_one_result(seed: int, cache: Path) -> None:
    """I3. Goal: state may move between the versions: they have one name and the same bits.
    Method: five updates in turn, on the same page, compared after each."""
    made = make_kernel(*ADAMW, cache=cache)
    if made.kernel.version != "compiled":
        pytest.skip(made.reason)
    portable = kernel_of("portable", ADAMW, cache)
    assert portable.name == made.kernel.name
    rng = np.random.default_rng(seed)
    job = Job.draw(rng, ADAMW, 5 * 4096 + 64)
    for step in range(5):
        job.updates_count = step
        found, squares, wire = job.by_kernel(made.kernel, in_place=bool(step % 2))
        expected, squares_expected, wire_expected = job.by_kernel(portable, in_place=True)
        assert squares == squares_expected, f"{seed=}"
        np.testing.assert_array_equal(wire, wire_expected, err_msg=f"{seed=}")
        for one, other in zip(found, expected, strict=True):
            same_bits(one, other, f"{seed=} {step=}")
        job.weights, job.state = found[0].copy(), tuple(array.copy() for array in found[1:])


@every_seed
def test_result_does_not_depend_on_pages(seed: int, version: str, cache: Path) -> None:
    """I3. Goal: one result however the elements are cut into pages. Method: pages of one block."""
    rng = np.random.default_rng(seed)
    kernel = kernel_of(version, ADAMW, cache)
    job = Job.draw(rng, ADAMW, 5 * 4096 + 128)
    job.runs = [Run(start=0, stop=job.elems, hyper=adamw())]
    whole, squares, _ = job.by_kernel(kernel, in_place=True)
    parts: list[float] = []
    for start in range(0, job.elems, 4096):
        stop = min(start + 4096, job.elems)
        cut = [
            (octets[start * DTYPE_BYTES[dtype] : stop * DTYPE_BYTES[dtype]], dtype)
            for octets, dtype in job.contributions
        ]
        page = Job(
            ADAMW, stop - start, cut, job.weights[start:stop],
            tuple(array[start:stop] for array in job.state),
            [Run(start=0, stop=stop - start, hyper=adamw())], job.divisor, job.scale,
            job.updates_count, job.wire_dtype,
        )  # fmt: skip
        found, found_squares, _ = page.by_kernel(kernel, in_place=True)
        parts += found_squares
        for one, other in zip(found, whole, strict=True):
            same_bits(one, other[start:stop], f"{seed=}")
    assert tuple(parts) == squares, f"{seed=}"


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
            [Run(start=0, stop=elems, hyper=adamw(lr=1.0, beta2=0.999, eps=0.0))], 1.0, 1.0,
            updates, "float32",
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 4095, 4096 * 17 + 5, 4096 * 18 + 63])
def test_squares_find_what_is_not_finite(bad: float, at: int, version: str, cache: Path) -> None:
    """Goal: one bad element makes its block not finite, and no other; the largest is fine."""
    kernel = kernel_of(version, PLAIN, cache)
    values = np.full(4096 * 18 + 64, np.finfo(np.float32).max, np.float32)
    out = np.empty_like(values)
    assert np.isfinite(kernel.fold([(payload(values, "float32"), "float32")], None, out)).all()
    values[at] = bad
    squares = kernel.fold([(payload(values, "float32"), "float32")], None, out)
    assert [i for i, s in enumerate(squares) if not math.isfinite(s)] == [at // 4096]


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
            0, dtype,
        )  # fmt: skip
        _, squares, wire = job.by_kernel(kernel, True, measure=False, wire_shift=shift)
        assert squares == ()
        expected = torch.from_numpy(values).to(TORCH_DTYPES[dtype]).view(torch.uint8).numpy()
        np.testing.assert_array_equal(wire, expected)


def test_what_does_not_fit_is_refused(version: str, cache: Path) -> None:
    """Goal: wrong sizes, dtypes and runs raise ValueError and nothing is written."""
    kernel = kernel_of(version, ADAMW, cache)
    weights, m, v = (np.ones(128, np.float32) for _ in range(3))
    good = payload(weights, "float32")
    whole = [Run(start=0, stop=128, hyper=adamw())]

    def update(**given: Any) -> None:
        arguments: dict[str, Any] = {
            "contributions": [(good, "float32")], "weights": weights, "state": (m, v),
            "weights_out": weights, "state_out": (m, v), "runs": whole, "divisor": 1.0,
            "scale": 1.0, "updates_count": 0, "wire": None, "measure": False,
        }  # fmt: skip
        kernel.update(**(arguments | given))

    bad: list[tuple[str, dict[str, Any]]] = [
        ("no contribution", {"contributions": []}),
        ("bytes", {"contributions": [(good[:-4], "float32")]}),
        ("does not travel", {"contributions": [(good, "float64")]}),
        ("arrays", {"state": (m,)}),
        ("float32 \\[128\\]", {"state": (m[:64], v)}),
        ("float32 \\[128\\]", {"state_out": (m, v.astype(np.float64))}),
        ("for all arrays", {"weights_out": weights.copy()}),
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


# ---------------------------------------------------------------------- making and loading


def test_unknown_optimizer_is_a_configuration_error() -> None:
    """Goal: the user reads what the node has."""
    with pytest.raises(ConfigError, match="it has adamw, none, sgd"):
        make_kernel("lion", ("m",), cache=None)


def test_portable_on_request(cache: Path) -> None:
    """Goal: `compiled=False` compiles nothing."""
    made = make_kernel(*ADAMW, cache=cache / "untouched", compiled=False)
    assert made.kernel.version == "portable"
    assert not (cache / "untouched").exists()


@pytest.fixture
def fresh(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a user without one of his own."""
    if version != "compiled":
        pytest.skip("about the compiled kernel")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    return tmp_path / "kernels"


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_a_library_is_compiled_once(fresh: Path) -> None:
    """Goal: the second start finds the first one's file, which is private."""
    first = make_kernel(*ADAMW, cache=fresh)
    assert first.reason.startswith("compiled by ")
    (path,) = libraries(fresh)
    assert path.stat().st_mode & 0o077 == 0
    assert fresh.stat().st_mode & 0o077 == 0
    changed_ns = path.stat().st_mtime_ns
    second = make_kernel(*MOMENTUM, cache=fresh)
    assert second.reason.startswith("found in the cache")
    assert libraries(fresh) == [path]
    assert path.stat().st_mtime_ns == changed_ns


def test_a_new_state_takes_the_library_from_the_user(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one compile for all state directories of a user; each has a library of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert make_kernel(*ADAMW, cache=fresh).reason.startswith("compiled by ")
    other = tmp_path / "other"
    assert make_kernel(*ADAMW, cache=other).reason.startswith("found in the cache")
    assert [path.name for path in libraries(other)] == [path.name for path in libraries(fresh)]


def test_a_damaged_or_open_library_is_compiled_again(fresh: Path, cache: Path) -> None:
    """Goal: a cut file, and one that others can write, are never used."""
    make_kernel(*ADAMW, cache=cache)
    (whole,) = libraries(cache)
    fresh.mkdir(mode=0o700)
    path = fresh / whole.name
    path.write_bytes(whole.read_bytes()[:100])
    path.chmod(0o700)
    assert make_kernel(*ADAMW, cache=fresh).reason.startswith("compiled by ")
    path.chmod(0o722)
    assert make_kernel(*ADAMW, cache=fresh).reason.startswith("compiled by ")
    assert path.stat().st_mode & 0o077 == 0


def test_a_link_is_not_followed(fresh: Path, tmp_path: Path) -> None:
    """Goal: a symbolic link in place of the library is replaced, not loaded."""
    make_kernel(*ADAMW, cache=fresh)
    (path,) = libraries(fresh)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert make_kernel(*ADAMW, cache=fresh).reason.startswith("compiled by ")
    assert not path.is_symlink()


def test_a_directory_others_can_write_is_refused(fresh: Path) -> None:
    """Goal: nothing is loaded from there, and the user reads why."""
    fresh.mkdir()
    fresh.chmod(0o777)
    made = make_kernel(*ADAMW, cache=fresh)
    assert made.kernel.version == "portable"
    assert "nobody else can write" in made.reason
    assert libraries(fresh) == []


def test_without_a_compiler_the_portable_kernel_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no compiler is no error, unless the compiled kernel was asked for."""
    monkeypatch.setenv("PATH", "")
    made = make_kernel(*ADAMW, cache=tmp_path)
    assert made.kernel.version == "portable"
    assert "no C compiler" in made.reason
    with pytest.raises(ConfigError, match="no C compiler"):
        make_kernel(*ADAMW, cache=tmp_path, compiled=True)


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: its first error is the reason, and no partial file is left. Method: a fake `cc`."""
    fake = tmp_path / "bin" / "cc"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo fake 1.0 && exit 0\necho "error: no" >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    made = make_kernel(*ADAMW, cache=tmp_path / "kernels")
    assert made.kernel.version == "portable"
    assert "failed with 1: error: no" in made.reason
    assert libraries(tmp_path / "kernels") == []


def test_a_kernel_that_breaks_its_promise_is_not_used(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: one wrong rounding is found at the start. Method: a source with a fused multiply-add
    taken out; and one whose squares are added in another order."""
    source = building.SOURCE.read_text()
    for right, wrong in [
        ("FMA(rest2 * g, g, second * beta2)", "(rest2 * g) * g + second * beta2"),
        ("lane[j] += (double)sum[j]", "lane[j ^ 1] += (double)sum[j]"),
    ]:
        assert right in source
        broken = tmp_path / "broken.c"
        broken.write_text(source.replace(right, wrong))
        monkeypatch.setattr(building, "SOURCE", broken)
        made = make_kernel(*ADAMW, cache=fresh)
        assert made.kernel.version == "portable"
        assert "does not give torch's bits" in made.reason


def test_the_selfcheck_decides(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whatever it finds is the reason."""
    monkeypatch.setattr(making, "difference", lambda *_: "weights differ in 3 bytes")
    assert "weights differ in 3 bytes" in make_kernel(*ADAMW, cache=fresh).reason


def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `benchmarks/update.py` does not rot. Method: its smoke sizes; it checks its answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = benchmark.main(["--smoke", "--json", str(tmp_path / "update.json")])
    assert (tmp_path / "update.json").exists()
    assert result["claims"]["portable_float32_min"] > 0

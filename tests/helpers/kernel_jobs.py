"""Updates drawn at random, what plain torch makes of them, and the kernels they are given to.

The fixtures here are those of several modules, which take them by name:
`version = kernel_jobs.version`.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.dtypes import DTYPES
from luwu.wire.hyper import Number
from luwu.wire.stored import AVERAGE, average_rate, keeps_average, without_average
from switch_emu.native import build as building
from switch_emu.node.kernels import Arrays, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.make import make_kernel, portable_kernel

ADAM = ("adam", ("m", "v"))
ADAMW = ("adamw", ("m", "v"))
LION = ("lion", ("m",))
MOMENTUM = ("sgd", ("momentum",))
PLAIN = ("sgd", ())
NONE = ("none", ())
AVERAGED = [("adamw", ("m", "v", AVERAGE)), ("lion", ("m", AVERAGE)), ("sgd", (AVERAGE,))]


def adamw(**given: Number) -> dict[str, Number]:
    return {
        "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01,
        "maximize": False,
    } | given  # fmt: skip


def adam(**given: Number) -> dict[str, Number]:
    return adamw() | {"decoupled_weight_decay": False} | given


def lion(**given: Number) -> dict[str, Number]:
    return {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False} | given


def sgd(**given: Number) -> dict[str, Number]:
    return {
        "lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
        "maximize": False,
    } | given  # fmt: skip


HYPERS: dict[str, list[dict[str, Number]]] = {
    "adam": [
        adam(), adam(weight_decay=0.0), adam(maximize=True), adam(beta1=0.3, lr=0.3),
        adam(beta1=0.5, beta2=0.9999), adam(eps=0.0, weight_decay=0.4, maximize=True),
        adam(decoupled_weight_decay=True), adam(beta2=1 - 1e-13),
    ],
    "adamw": [
        adamw(), adamw(weight_decay=0.0), adamw(maximize=True), adamw(beta1=0.3, lr=0.3),
        adamw(beta1=0.5, beta2=0.9999), adamw(eps=0.0), adamw(beta1=0.0, beta2=0.0),
        adamw(beta2=1 - 1e-13),
    ],
    "lion": [
        lion(), lion(weight_decay=0.0), lion(maximize=True), lion(beta1=0.3, beta2=0.5, lr=0.3),
        lion(beta1=0.0, beta2=0.2), lion(beta2=0.0, maximize=True),
    ],
    "sgd": [
        sgd(), sgd(weight_decay=0.02, maximize=True), sgd(nesterov=True, weight_decay=0.1),
        sgd(dampening=0.4), sgd(momentum=0.0), sgd(nesterov=True, maximize=True),
    ],
    "none": [{}],
}  # fmt: skip
AVERAGES: list[dict[str, Number]] = [
    {"average_decay": 0.999}, {"average_decay": 0.3}, {"average_start": 7, "average_every": 2},
]  # fmt: skip


_caches: list[Path] = []


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all modules that have this fixture, with the user's library, which the processes of
    other tests have: to compile one takes 6 s."""
    if not _caches:
        made = tmp_path_factory.mktemp("state") / "kernels"
        _caches.append(made)
        with suppress(building.BuildError):
            library = building.build(None).path
            made.mkdir(mode=0o700)
            shutil.copy(library, made)
    return _caches[0]


@pytest.fixture(params=["portable", "compiled"])
def version(request: pytest.FixtureRequest, cache: Path) -> str:
    if request.param == "compiled":
        need_compiled(cache)
    return str(request.param)


def need_compiled(cache: Path) -> None:
    """Skip where the compiled kernel need not work; fail where it must (design note 0008)."""
    made = make_kernel(*ADAMW, cache=cache)
    if made.kernel.version == "compiled":
        return
    is_measured = torch.__version__.startswith("2.13.") and (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )
    if is_measured and shutil.which("cc") is not None:
        pytest.fail(f"the compiled kernel was refused: {made.reason}")
    pytest.skip(f"no compiled kernel here: {made.reason}")


@functools.cache
def kernel_of(version: str, optimizer: tuple[str, tuple[str, ...]], cache: Path) -> UpdateKernel:
    """Kernels are made once: they keep nothing between calls."""
    kernel: UpdateKernel = portable_kernel(*optimizer)
    if version == "compiled":
        kernel = make_kernel(*optimizer, cache=cache).kernel
    assert kernel.version == version
    return kernel


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
    octets = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy()
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


def squares_of(values: np.ndarray) -> float:
    """The squares of a block, as `interface.py` has them in words: one addition at a time."""
    block = np.zeros(4096)
    block[: values.size] = values
    lanes = np.zeros(256)
    for row in range(16):
        lanes = lanes + block[row * 256 : row * 256 + 256] ** 2
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


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
        if optimizer[0] in ("adam", "adamw"):
            state[1] = np.abs(state[1])
        borders = {0, elems, *(64 * rng.integers(0, elems // 64 + 1, 3)).tolist()}
        ordered = sorted(borders)
        hypers = HYPERS[optimizer[0]]
        if keeps_average(optimizer[1]):
            hypers = [h | AVERAGES[index % len(AVERAGES)] for index, h in enumerate(hypers)]
        return cls(
            optimizer, elems,
            [
                (payload(random_values(rng, elems, special), dtype, int(rng.integers(0, 9))), dtype)
                for dtype in chosen
            ],
            random_values(rng, elems, special), tuple(state),
            [
                Run(
                    start=low, stop=high,
                    hyper=None if rng.random() < 0.2 else hypers[int(rng.integers(len(hypers)))],
                    updates_count=int(rng.choice([0, 1, 7, 999, 123_456])),
                )
                for low, high in itertools.pairwise(ordered)
            ],
            float(rng.choice([1.0, 2.0, 3.0, 8.0, 0.25, 7.3])), float(rng.choice([1.0, 0.3])),
            str(rng.choice(dtypes)),
        )  # fmt: skip

    def by_torch(self) -> tuple[np.ndarray, ...]:
        """Weights, state and the sum, from whole tensors and torch's fused functions."""
        total = None
        for octets, dtype in self.contributions:
            bits = torch.frombuffer(bytearray(octets), dtype=getattr(torch, dtype)).float()
            total = bits if total is None else total + bits
        assert total is not None
        mean = total / torch.tensor(self.divisor, dtype=torch.float32)
        if self.scale < 1:
            mean = mean * torch.tensor(self.scale, dtype=torch.float32)
        tensors = [torch.from_numpy(array.copy()) for array in (self.weights, *self.state)]
        for run in self.runs:
            if run.hyper is None:
                continue
            cut = [tensor[run.start : run.stop] for tensor in tensors]
            average = cut.pop() if keeps_average(self.optimizer[1]) else None
            hyper = {k: v for k, v in run.hyper.items() if not k.startswith("average_")}
            own = (self.optimizer[0], without_average(self.optimizer[1]))
            torch_step(own, cut, mean[run.start : run.stop], hyper, run.updates_count)
            if average is not None:
                average.lerp_(cut[0], average_rate(run.hyper, run.updates_count))
        return (*(tensor.numpy() for tensor in tensors), total.numpy())

    def by_kernel(
        self, kernel: UpdateKernel, in_place: bool, measure: bool = True, wire_shift: int = 0,
    ) -> tuple[tuple[np.ndarray, ...], tuple[float, ...], np.ndarray]:  # fmt: skip
        """Weights and state; squares; the wire."""
        arrays = []
        for array in (self.weights, *self.state):
            arrays.append(aligned(self.elems))
            arrays[-1][:] = array
        outs = arrays if in_place else [aligned(self.elems) for _ in arrays]
        for array in outs if not in_place else ():
            array[:] = 77.0
        nbytes = self.elems * DTYPES[self.wire_dtype].nbytes
        room = aligned(self.elems + 64).view(np.uint8)
        wire = room[wire_shift : wire_shift + nbytes]
        squares = kernel.update(UpdateCall(
            contributions=self.contributions, old=Arrays(arrays[0], tuple(arrays[1:])),
            new=Arrays(outs[0], tuple(outs[1:])), runs=self.runs, divisor=self.divisor,
            scale=self.scale, wire=(wire.data, self.wire_dtype), measure=measure,
        ))  # fmt: skip
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
    if optimizer in (ADAM, ADAMW):
        is_decoupled = given.pop("decoupled_weight_decay", True)
        (torch._fused_adamw_ if is_decoupled else torch._fused_adam_)(
            [weights], [mean], [state[0]], [state[1]], [], [torch.tensor(float(updates + 1))],
            amsgrad=False, **given,
        )  # fmt: skip
    elif optimizer == LION:
        sign = -1.0 if given["maximize"] else 1.0
        grad, m, lr = mean * sign, state[0], given["lr"]
        direction = torch.lerp(m, grad, 1 - given["beta1"])
        if given["weight_decay"]:
            weights.mul_(1 - lr * given["weight_decay"])
        weights.sub_(torch.sign(direction) * lr)
        m.copy_(torch.lerp(m, grad, 1 - given["beta2"]))
    elif optimizer != NONE:
        if optimizer == PLAIN:
            given["momentum"] = 0.0
        buffers = state if given["momentum"] else []
        torch._fused_sgd_([weights], [mean], buffers, is_first_step=updates == 0, **given)

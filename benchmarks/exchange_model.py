"""The job of the exchange benchmark: sizes, gradients from a seed, and what the weights must be.

P parameters are cut into units of about 3 M, each with the matrices of a GPT block. A rank's
gradient is drawn once and pushed at every step, so any process can say what the weights must be
after t steps: gradients added in float32 from rank 0 upwards, divided by the number of workers,
torch's fused AdamW on whole units.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from luwu.base.dtypes import DTYPES
from luwu.base.errors import LuwuError
from luwu.base.limits import ALIGN_ELEMS
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper

UNIT_ELEMS = 3_125_000
BLOCK_SHARES = {"qkv": 3, "proj": 1, "up": 4, "down": 4}
"""Elements of a GPT block's matrices, in units of the square of its width."""

LR, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-3, 0.9, 0.95, 1e-8, 0.1

_INITIAL = 1 << 20
"""Stands where a rank does in the seed of the first weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is exchanged; equal in every process of a run."""

    params: int
    workers: int
    dtype: str = "float32"
    """Of gradients and weights on the wire; masters and moments are float32."""
    seed: int = 0

    @property
    def unit_elems(self) -> tuple[int, ...]:
        """Elements of each unit: multiples of 64, as LuWu pads."""
        count = max(2, round(self.params / UNIT_ELEMS))
        even = self.params // count // ALIGN_ELEMS * ALIGN_ELEMS
        last = -(-(self.params - even * (count - 1)) // ALIGN_ELEMS) * ALIGN_ELEMS
        return (even,) * (count - 1) + (last,)

    @property
    def elems(self) -> int:
        """Parameters, rounded up to the alignment."""
        return sum(self.unit_elems)

    @property
    def payload_bytes(self) -> int:
        """A whole gradient, or all weights, on the wire."""
        return self.elems * DTYPES[self.dtype].nbytes

    @property
    def torch_dtype(self) -> torch.dtype:
        """The wire dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def layout(self, chunk_bytes: int, extent_chunks: int = 1) -> Layout:
        """The geometry LuWu is told of."""
        rows: list[Parameter] = []
        units = []
        for number, elems in enumerate(self.unit_elems):
            first, left = len(rows), elems
            for name, share in BLOCK_SHARES.items():
                part = elems * share // 12 // ALIGN_ELEMS * ALIGN_ELEMS
                part = left if name == "down" else part
                left -= part
                rows.append(
                    Parameter(name=f"{number}.{name}", shape=(part,), wire_dtype=self.dtype)
                )
            units.append(Unit(name=f"block{number}", parameters=tuple(range(first, len(rows)))))
        return Layout(
            parameters=tuple(rows), units=tuple(units), chunk_bytes=chunk_bytes,
            extent_chunks=extent_chunks,
        )  # fmt: skip

    def description(self, chunk_bytes: int, extent_chunks: int) -> Description:
        """What the workers of LuWu agree on."""
        return Description(
            layout=self.layout(chunk_bytes, extent_chunks), optimizer="adamw",
            update="streaming", state_fields=("m", "v"),
        )  # fmt: skip

    def gradient(self, rank: int, unit: int) -> torch.Tensor:
        """A rank's gradient of one unit, as it travels."""
        return self._values(rank, unit).to(self.torch_dtype)

    def initial(self, unit: int) -> torch.Tensor:
        """A unit's first weights, float32."""
        return self._values(_INITIAL, unit).mul_(0.02)

    def _values(self, owner: int, unit: int) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, owner, unit])
        return torch.from_numpy(rng.standard_normal(self.unit_elems[unit], dtype=np.float32))

    def mean_gradient(self, unit: int) -> torch.Tensor:
        """Added in float32 from rank 0 upwards, divided once."""
        grads = (self.gradient(rank, unit).float() for rank in range(self.workers))
        return functools.reduce(torch.add, grads).div_(self.workers)

    def expected(self, unit: int, steps: int) -> torch.Tensor:
        """A unit's float32 weights after `steps` updates."""
        weights, grad = self.initial(unit), self.mean_gradient(unit)
        moments = (torch.zeros_like(weights), torch.zeros_like(weights))
        for step in range(steps):
            fused_adamw([weights], [grad], [moments[0]], [moments[1]], step)
        return weights


def octets(values: torch.Tensor) -> memoryview:
    """The memory of a tensor, as bytes that can be written."""
    found: memoryview = values.view(torch.uint8).numpy().data
    return found


def hyper_bytes() -> bytes:
    """The hyper-parameters as LuWu states them."""
    group = {
        "lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": EPS, "weight_decay": WEIGHT_DECAY,
        "maximize": False,
    }  # fmt: skip
    return encode_hyper(StepHyper(groups=(group,)))


def fused_adamw(
    weights: list[torch.Tensor], grads: list[torch.Tensor], m: list[torch.Tensor],
    v: list[torch.Tensor], updates: int,
) -> None:  # fmt: skip
    """`torch.optim.AdamW(fused=True)` in place, without its bookkeeping."""
    step = [torch.tensor(float(updates + 1)) for _ in weights]
    torch._fused_adamw_(
        weights, grads, m, v, [], step, lr=LR, beta1=BETA1, beta2=BETA2,
        weight_decay=WEIGHT_DECAY, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


def check_weights(
    job: Job, steps: int, weights: Callable[[int], torch.Tensor], *, bound: bool
) -> str:
    """Compare with the reference: `bits`, or `bound` where `bound` allows for it; else raise.

    An all-reduce adds in another order than the reference (in the wire dtype, for bfloat16), and
    AdamW turns a mean gradient near zero, whose sign then is a matter of rounding, into an update
    of full size. So the bound is on the share of elements that are off by more than a tenth of
    all updates: 1 in 10,000 for float32 and 1 in 20 for bfloat16.
    """
    off, equal = 0, True
    for unit in range(len(job.unit_elems)):
        expected, found = job.expected(unit, steps), weights(unit)
        if torch.equal(found, expected.to(found.dtype)):
            continue
        equal = False
        rounding = expected.abs().mul_(2**-7 if found.dtype == torch.bfloat16 else 2**-20)
        off += int((found.float() - expected).abs_().gt(rounding.add_(0.1 * LR * steps)).sum())
    if equal:
        return "bits"
    ratio = off / job.elems
    if not bound or ratio > (1e-4 if job.dtype == "float32" else 0.05):
        raise LuwuError(
            f"the weights after {steps} steps are wrong: {ratio:.2%} of {job.elems:,} elements are "
            "off by more than rounding explains"
        )
    return "bound"


def floor_bytes(job: Job) -> int:
    """Bytes that must cross memory in one exchange on one host, whoever does it.

    A gradient element of b bytes is read by its worker, written where the summing process sees it,
    and read there: 3 b for each of N workers. The update reads and writes weights and two moments
    in float32, 24 bytes, and writes the new weights where all workers can map them: b. So P x
    (3 b N + 24 + b): P x (12 N + 28) in float32, P x (6 N + 26) in bfloat16.
    """
    width = DTYPES[job.dtype].nbytes
    return job.elems * (3 * width * job.workers + 24 + width)

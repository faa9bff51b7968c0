"""A job for clusters with everything real but the processes: shells, transports, stores.

A worker follows a script. Its gradient depends on the weights it pulled, its rank, the step and the
parameter, and the weights of every step depend on those before; so one wrong byte anywhere changes
the digest. It is compared with a plain loop over `torch.optim`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError, StepAborted
from luwu.base.tree import Tree, one_switch
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import Layout, Parameter, Unit, padded
from luwu.nic.flat_push import push_flat
from luwu.nic.handles import StepHandle
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from tests.simulate.job import tree_sum

KIB, MIB = 1024, 1024**2
STEPS = 4
LARGE = 64 * MIB

SHAPES: list[tuple[tuple[int, ...], bool, int]] = [
    ((96, 64), True, 0),
    ((33,), True, 1),
    ((50,), False, 0),
    ((70, 130), True, 0),
    ((64,), True, 1),
    ((130, 64), True, 0),
    ((), True, 1),
]
"""(shape, trainable, group): ragged ends, a frozen parameter, a scalar, two groups."""


def make_layout(chunk_kib: int = 16, wire_dtype: str = "float32", extent_chunks: int = 1) -> Layout:
    """Three units, nine chunks of 16 KiB."""
    return Layout(
        parameters=tuple(
            Parameter(
                name=f"p{i}", shape=shape, trainable=trainable, group=group, wire_dtype=wire_dtype
            )
            for i, (shape, trainable, group) in enumerate(SHAPES)
        ),
        units=(
            Unit(name="first", parameters=(0, 1)),
            Unit(name="second", parameters=(2, 3, 4)),
            Unit(name="third", parameters=(5, 6)),
        ),
        chunk_bytes=chunk_kib * KIB,
        extent_chunks=extent_chunks,
    )


GROUPS = (
    {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False},
    {"lr": 3e-2, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.0, "eps": 1e-8, "maximize": False},
)


@dataclass(frozen=True)
class Job:
    """What a cluster trains."""

    layout: Layout = field(default_factory=make_layout)
    world_size: int = 2
    steps: int = STEPS
    update: str = "streaming"
    max_grad_norm: float | None = None
    poison_step: int | None = None
    """The step in which the last rank pushes one element that is not finite."""
    tree: Tree | None = None
    """The switches, where there are several."""

    @property
    def description(self) -> Description:
        return Description(
            layout=self.layout, optimizer="adamw", update=self.update, state_fields=("m", "v")
        )

    def hyper(self, step: int) -> StepHyper:
        """A schedule: the learning rate falls from step to step."""
        groups = tuple(group | {"lr": group["lr"] / (1 + step)} for group in GROUPS)
        return StepHyper(groups=groups, max_grad_norm=self.max_grad_norm)

    @property
    def least_bytes(self) -> int:
        """A budget for a handful of chunks."""
        return 24 * self.layout.chunk_bytes


def initial(parameter: int, elems: int) -> Any:
    """Weights before step 0, float32."""
    return np.random.default_rng(parameter).standard_normal(elems, dtype=np.float32)


def gradient(weights: Any, rank: int, step: int, parameter: int) -> Any:
    """What a rank computes of the weights it sees: one product and one sum, rounded exactly, of
    sizes that make every order of addition round differently."""
    pattern = (np.arange(weights.size) * (2 * rank + 3) + step * 7 + parameter * 13) % 101 - 50
    own = np.float32(0.37 + 0.11 * rank)
    return weights * own + pattern.astype(np.float32) * np.float32(0.013)


def on_wire(values: Any, dtype: str) -> Any:
    """float32 values rounded as the wire rounds them, still float32."""
    return torch.from_numpy(values).to(getattr(torch, dtype)).to(torch.float32).numpy()


# ---------------------------------------------------------------------------- the plain loop


@dataclass(frozen=True)
class Reference:
    """What a job must come to."""

    digest: str
    outcomes: list[tuple[bool, float]]
    """(applied, norm of the mean gradient) of every step."""


@functools.cache
def _plain(
    world_size: int, steps: int, dtype: str, poison: int | None, clip: float | None,
    tree: Tree | None,
) -> Any:  # fmt: skip
    job = Job(
        layout=make_layout(wire_dtype=dtype), world_size=world_size, steps=steps,
        poison_step=poison, max_grad_norm=clip, tree=tree,
    )  # fmt: skip
    return _plain_loop(job, dtype, [world_size] * steps)


def plain_of(job: Job, sizes: Sequence[int]) -> Reference:
    """The same of a job that has as many ranks in each step as `sizes` says."""
    return _plain_loop(job, job.layout.parameters[0].wire_dtype, sizes)


def plain(job: Job) -> Reference:
    """The job in one loop over torch's fused AdamW; independent of chunks and order of work."""
    dtype = job.layout.parameters[0].wire_dtype
    result: Reference = _plain(
        job.world_size, job.steps, dtype, job.poison_step, job.max_grad_norm, job.tree
    )
    return result


def _plain_loop(job: Job, dtype: str, sizes: Sequence[int]) -> Reference:
    rows = job.layout.parameters
    # As the layout does, each is padded with zeros to 64: torch's scalar code for a ragged end
    # rounds otherwise (design note 0004).
    weights = [torch.zeros(padded(row.elems)) for row in rows]
    for index, row in enumerate(rows):
        weights[index][: row.elems] = torch.from_numpy(initial(index, row.elems))
    trained = [index for index, row in enumerate(rows) if row.trainable]
    optimizer = torch.optim.AdamW(
        [
            {"params": [weights[i].requires_grad_() for i in trained if rows[i].group == group]}
            | {"weight_decay": hyper["weight_decay"], "betas": (hyper["beta1"], hyper["beta2"])}
            for group, hyper in enumerate(GROUPS)
        ],
        fused=True,
    )
    outcomes = []
    for step, world_size in enumerate(sizes):
        for group, values in zip(optimizer.param_groups, job.hyper(step).groups, strict=True):
            group["lr"] = values["lr"]
        squares = []
        for index in trained:
            seen = on_wire(weights[index].detach().numpy()[: rows[index].elems], dtype)
            ranks = range(world_size)
            grads = [on_wire(gradient(seen, rank, step, index), dtype) for rank in ranks]
            tree = job.tree or one_switch(world_size)
            total = tree_sum(tree, tree.root, dict(enumerate(grads)))
            mean = total / np.float32(world_size)
            weights[index].grad = torch.zeros_like(weights[index])
            weights[index].grad[: mean.size] = torch.from_numpy(mean)
            squares.append(np.sum(mean.astype(np.float64) ** 2))
        norm = math.sqrt(math.fsum(squares))
        if step == job.poison_step:
            outcomes.append((False, math.inf))
            continue
        outcomes.append((True, norm))
        if job.max_grad_norm is not None and norm > job.max_grad_norm:
            for index in trained:
                weights[index].grad *= np.float32(job.max_grad_norm / (norm + 1e-6))
        optimizer.step()
    digest = WeightsDigest()
    for row, values in zip(rows, weights, strict=True):
        digest.update(row.name, row.dtype, row.shape, values.detach().numpy()[: row.elems])
    return Reference(digest.hexdigest(), outcomes)


# ---------------------------------------------------------------------------- a worker


@dataclass
class Seen:
    """What one worker was told."""

    outcomes: dict[int, tuple[bool, float]] = field(default_factory=dict)
    aborted_steps: list[int] = field(default_factory=list)
    first_step: int = -1


class Worker:
    """Runs a job on a NIC as a training script would; one for all ranks of a cluster."""

    def __init__(self, job: Job, *, cancel_step: int | None = None, stop_at: int | None = None):
        self.job, self._layout = job, job.layout
        self._stop = job.steps if stop_at is None else stop_at
        self._cancel_step = cancel_step

    def __call__(self, nic: Nic) -> Seen:
        seen = Seen()
        nic.connect()  # else Hello may be said before and after, and all of an attempt with it
        joined = nic.join(self.job.description)
        seen.first_step = joined.step
        if not joined.loaded and nic.rank == 0:
            nic.load(self._initial_chunks())
        handles: dict[int, StepHandle] = {}
        step = joined.step
        while True:
            try:
                while step < self._stop:
                    handles[step] = self._step(nic, step, not seen.aborted_steps)
                    step += 1
                for number, handle in handles.items():
                    seen.outcomes[number] = handle.decision()
                return seen
            except StepAborted as exc:
                seen.aborted_steps.append(exc.step)
                step = exc.step

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        hyper = encode_hyper(self.job.hyper(step))
        units = range(len(self._layout.units))
        streaming = self.job.update == "streaming"
        kept = {}
        for unit in units:  # forward
            kept[unit] = self._pull(nic, step, 0, unit)
        if streaming:
            nic.begin(step, hyper)
        pushes = []
        for unit in reversed(units):
            again = self._pull(nic, step, 1, unit)
            assert bytes(again) == bytes(kept[unit]), "forward and backward saw other weights"
            grads = self._gradients(again, nic.rank, step, unit)
            dtype = self._layout.chunks[0].wire_dtype
            pushes.extend(
                push_flat(nic, self._layout, grads, dtype, step=step, unit=unit, last=streaming)
            )
        for push in pushes:
            nic.wait(push)
        if step == self._cancel_step and may_cancel and nic.rank == 0:
            nic.cancel("the loss looks wrong")
        return nic.commit(step, 1, hyper)

    def _pull(self, nic: Nic, step: int, use: int, unit: int) -> memoryview:
        into = memoryview(bytearray(self._layout.unit_wire_bytes(unit)))
        nic.wait(nic.pull(step, use, unit, lambda: into))
        return into

    def _gradients(self, weights: memoryview, rank: int, step: int, unit: int) -> memoryview:
        """The flat vector of the unit's trainable parameters, zero where there is padding."""
        dtype = getattr(torch, self._layout.chunks[0].wire_dtype)
        flat = torch.frombuffer(weights, dtype=dtype).to(torch.float32).numpy()
        grads = np.zeros_like(flat)
        for index in self._layout.units[unit].parameters:
            place = self._layout.placements[index]
            part = slice(place.start, place.start + place.elems)
            if self._layout.parameters[index].trainable:
                grads[part] = gradient(flat[part], rank, step, index)
        if step == self.job.poison_step and rank == self.job.world_size - 1 and unit == 1:
            grads[17] = np.nan
        return memoryview(torch.from_numpy(grads).to(dtype).view(torch.uint8).numpy())

    def _initial_chunks(self) -> Any:
        for chunk in self._layout.chunks:
            values = np.zeros(chunk.elems, np.float32)
            for segment in self._layout.segments(chunk.index):
                whole = initial(segment.parameter, self._layout.parameters[segment.parameter].elems)
                values[segment.chunk_start : segment.chunk_start + segment.elems] = whole[
                    segment.parameter_start : segment.parameter_start + segment.elems
                ]
            yield chunk.index, memoryview(values.view(np.uint8))


@contextmanager
def cluster_for(job: Job, tmp_path: Path, **changes: Any) -> Any:
    """A cluster for the job, in RAM unless a state directory is named."""
    values: dict[str, Any] = {
        "world_size": job.world_size,
        "state": None,
        "memory_budget_bytes": LARGE,
        "chunk_bytes": job.layout.chunk_bytes,
        "extent_chunks": job.layout.extent_chunks,
        "summary": tmp_path / "summary.json",
        "tree": job.tree,
    }
    with LocalCluster(**(values | changes)) as cluster:
        yield cluster


def check(cluster: LocalCluster, job: Job, results: Sequence[Seen]) -> None:
    """Weights and outcomes are those of the plain loop."""
    expected = plain(job)
    assert cluster.weights_digest() == expected.digest
    for seen in results:
        assert sorted(seen.outcomes) == list(range(seen.first_step, job.steps))
        for step, (applied, norm) in seen.outcomes.items():
            assert applied is expected.outcomes[step][0]
            # The node divides the norm of the sum, the loop norms the mean: rounded to float32.
            assert norm == pytest.approx(expected.outcomes[step][1], rel=1e-6)


every_order = pytest.mark.parametrize("update", ["streaming", "at_step"])
every_place = pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])


def used_state(tmp_path: Path) -> Path:
    """A state directory after two steps."""
    job = Job(steps=2)
    with cluster_for(job, tmp_path, state=tmp_path / "state") as cluster:
        cluster.run(Worker(job))
    return tmp_path / "state"


def refusal(job: Job, tmp_path: Path, **changes: Any) -> str:
    """Text of the ConfigError with which a cluster ends."""
    with cluster_for(job, tmp_path, **changes) as cluster, pytest.raises(ConfigError) as caught:
        cluster.run(Worker(job))
    return str(caught.value)

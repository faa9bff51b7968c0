"""Clusters with everything real but the processes, for the job of `tests/light_job.py`.

What a cluster comes to is compared with a plain loop over `torch.optim`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError
from luwu.base.tree import Tree, one_switch
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import padded
from tests.light_job import (
    GROUPS,
    KIB,
    LARGE,
    MIB,
    SHAPES,
    STEPS,
    Job,
    Seen,
    Worker,
    gradient,
    initial,
    make_layout,
)
from tests.simulate.job import tree_sum

__all__ = [
    "GROUPS", "KIB", "LARGE", "MIB", "SHAPES", "STEPS", "Job", "Seen", "Worker", "gradient",
    "initial", "make_layout",
]  # fmt: skip


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
    return _plain_loop(job, dtype, [range(world_size)] * steps)


def plain_of(job: Job, ranks: Sequence[Sequence[int]]) -> Reference:
    """The same of a job that has these ranks in each step."""
    return _plain_loop(job, job.layout.parameters[0].wire_dtype, ranks)


def plain(job: Job) -> Reference:
    """The job in one loop over torch's fused AdamW; independent of chunks and order of work."""
    dtype = job.layout.parameters[0].wire_dtype
    result: Reference = _plain(
        job.world_size, job.steps, dtype, job.poison_step, job.max_grad_norm, job.tree
    )
    return result


def _plain_loop(job: Job, dtype: str, ranks_of: Sequence[Sequence[int]]) -> Reference:
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
    for step, ranks in enumerate(ranks_of):
        for group, values in zip(optimizer.param_groups, job.hyper(step).groups, strict=True):
            group["lr"] = values["lr"]
        squares = []
        for index in trained:
            seen = on_wire(weights[index].detach().numpy()[: rows[index].elems], dtype)
            grads = {rank: on_wire(gradient(seen, rank, step, index), dtype) for rank in ranks}
            tree = job.tree or one_switch(max(ranks) + 1)
            total = tree_sum(tree, tree.root, grads)
            mean = total / np.float32(len(ranks))
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

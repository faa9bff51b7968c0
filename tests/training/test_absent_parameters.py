"""Parameters without a gradient, in units where others have one: skipped, as in torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import luwu
from luwu.base.errors import StateError
from switch_emu.node import placement
from switch_emu.node.pages import store_config
from switch_emu.store import StoreConfig
from tests.checkpoint.test_state_dicts import assert_same
from tests.helpers.real_training import digest_of, in_cluster, seeded
from tests.helpers.training_harness import reference

WORLD_SIZE, STEPS = 2, 6
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "adam": ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.1, "weight_decay": 0.5}),
}
Used = dict[tuple[int, int, int], frozenset[str]]
"""(step, part, rank) -> the parameters that its forward uses."""


class Experts(nn.Module):
    """Some of its parameters are used, others are not: a block whose experts are no units."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.experts = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes)

    def forward(self, x: Tensor, names: frozenset[str]) -> Tensor:
        for index, expert in enumerate(self.experts):
            if f"experts.{index}" in names:
                x = x + (expert * x).mean()
        return x


class Model(nn.Module):
    """Units of random sizes; chunks hold several parameters, and parameters several chunks."""

    def __init__(self, sizes: list[list[int]]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.layers = nn.ModuleList(Experts(of_unit) for of_unit in sizes)

    def forward(self, x: Tensor, used: frozenset[str]) -> Tensor:
        for index, layer in enumerate(self.layers):
            prefix = f"layers.{index}."
            names = frozenset(n.removeprefix(prefix) for n in used if n.startswith(prefix))
            x = layer(x, names)
        return (x * self.scale).square().mean()


@dataclass(frozen=True)
class Plan:
    """One run, drawn at random."""

    sizes: list[list[int]]
    """Elements of the experts of each unit."""
    parts: int
    """Backwards in a step."""
    used: Used
    frozen: list[frozenset[str]]
    """Parameters that require no gradient, by step."""

    def freeze(self, model: nn.Module, step: int) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.frozen[step])


def draw(seed: int, *, thaws: bool = False, parts_max: int = 2) -> Plan:
    """`thaws`: parameters are frozen and thawed as training goes on."""
    rng = random.Random(seed)
    sizes = [
        [rng.choice((64, 192, 4096, 8192)) for _ in range(rng.randint(1, 4))] for _ in range(3)
    ]
    names = [f"layers.{i}.experts.{j}" for i, unit in enumerate(sizes) for j in range(len(unit))]
    parts = rng.randint(1, parts_max)
    used: Used = {}
    frozen = [
        frozenset(name for name in names if thaws and rng.random() < 0.4) for _ in range(STEPS)
    ]
    for step in range(STEPS):
        idle = {name for name in names if rng.random() < 0.4}  # at no rank
        for part in range(parts):
            for rank in range(WORLD_SIZE):
                used[step, part, rank] = frozenset(
                    name for name in names if name not in idle and rng.random() < 0.6
                )
    return Plan(sizes, parts, used, frozen)


def sample(size: int, step: int, part: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + rank)
    return torch.randn(size, generator=generator)


def by_torch(plan: Plan, make: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[Any, Any]:
    """The same training in one process; the model and its optimizer."""
    plain = seeded(lambda: Model(plan.sizes))
    optimizer = make(plain)

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        plan.freeze(model, step)
        found: Tensor = model(sample(1, step, part, rank), plan.used[step, part, rank])
        return found

    reference(
        lambda: plain, lambda _: optimizer, loss, world_size=WORLD_SIZE, steps=STEPS,
        backwards=plan.parts,
    )  # fmt: skip
    return plain, optimizer


def check(plan: Plan, name: str, update: str, directory: Path, **changes: Any) -> None:
    """Train a plan with LuWu and with torch; weights, moments and counts must be the same bits."""
    kind, arguments = OPTIMIZERS[name]

    def make(plain: nn.Module) -> torch.optim.Optimizer:
        # A group each: torch's fused SGD cannot update one for the first time beside others.
        groups = [{"params": [parameter]} for parameter in plain.parameters()]
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(groups, fused=True, **arguments)
        return made

    plain, theirs = by_torch(plan, make)

    def work(rank: int) -> Any:
        model = seeded(lambda: Model(plan.sizes))
        plan.freeze(model, 0)
        luwu.fully_shard_each(model, Experts)
        optimizer = getattr(luwu.optim, kind)(model.parameters(), update=update, **arguments)
        for step in range(STEPS):
            optimizer.zero_grad()
            if step % 2:  # what is thawed after an evaluation counts, though the root is here still
                with torch.no_grad():
                    model(sample(1, step, 0, rank), plan.used[step, 0, rank])
            plan.freeze(model, step)
            for part in range(plan.parts):
                model(sample(1, step, part, rank), plan.used[step, part, rank]).backward()
            optimizer.step()
        return luwu.get_optimizer_state_dict(model, optimizer)

    options = {"world_size": WORLD_SIZE, "chunk_bytes": 16 * 1024} | changes
    found = in_cluster(directory, work, **options)
    assert found.digest == digest_of(dict(plain.named_parameters()))
    if name != "sgd":  # torch keeps an empty state for it
        assert_same(found.results[0]["state"], get_optimizer_state_dict(plain, theirs)["state"])


@pytest.mark.feature("freezing and unfreezing during training")
@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_ranks_that_freeze_other_parameters_are_refused(update: str, tmp_path: Path) -> None:
    """I6. Goal: what is frozen is part of what all ranks state of a step; who differs is named."""

    def work(rank: int) -> None:
        model = seeded(lambda: Model([[64, 64]]))
        luwu.fully_shard_each(model, Experts)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1, update=update)
        model.layers[0].experts[rank].requires_grad_(False)
        model(torch.ones(1), frozenset()).backward()
        optimizer.step().wait()

    with pytest.raises(luwu.ConfigError, match=r"differ between ranks.* digest of frozen"):
        in_cluster(tmp_path, work, world_size=WORLD_SIZE)


@pytest.mark.feature("a parameter without a gradient beside others that have one")
@pytest.mark.feature("freezing and unfreezing during training")
@pytest.mark.feature("freezing for an evaluation")
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("seed", range(5))
def test_parameters_without_a_gradient_are_skipped(
    seed: int, name: str, update: str, tmp_path: Path
) -> None:
    """I4. Goal: weights, moments and counts of steps are those of torch, bit for bit; what is
    frozen or thawed counts from the next forward on, as in torch: what is frozen when the optimizer
    is made too, and what changes while the weights are here after an evaluation.
    Method: random units; in each backward each rank uses random parameters."""
    plan = draw(seed, thaws=seed >= 3, parts_max=1 if update == "streaming" else 2)
    check(plan, name, update, tmp_path)


@pytest.mark.feature("a parameter without a gradient beside others that have one")
@pytest.mark.parametrize("extent_chunks", [2, 3, 8])
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_parameters_without_a_gradient_in_extents(
    name: str, update: str, extent_chunks: int, tmp_path: Path
) -> None:
    """I4. Goal: chunks without any gradient travel with others that have one, as zeros, and are
    skipped all the same: weights, moments and counts are those of torch, bit for bit.
    Method: one to three backwards a step; pages that are read from disk."""
    plan = draw(10 + extent_chunks, thaws=True, parts_max=1 if update == "streaming" else 3)
    state = {"state": tmp_path / "state", "memory_budget_bytes": 1600 * 1024}
    check(plan, name, update, tmp_path, extent_chunks=extent_chunks, **state)


@pytest.mark.feature("a parameter without a gradient beside others that have one")
@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("state_dtype", ["float32", "int8"])
def test_pages_that_stay_are_the_same_in_extents(
    state_dtype: str, update: str, tmp_path: Path
) -> None:
    """I3. Goal: averages, and what is rounded by random numbers, do not depend on which pages
    travel together, though some of an extent are neither read nor written."""
    plan = draw(13, parts_max=1)

    def work(rank: int) -> Any:
        model = seeded(lambda: Model(plan.sizes))
        luwu.fully_shard_each(model, Experts)
        few = {} if state_dtype == "float32" else {"master_dtype": "bfloat16"}
        optimizer = luwu.optim.AdamW(
            model.parameters(), lr=0.1, update=update, state_dtype=state_dtype,
            average=luwu.ema(0.9), **few,
        )  # fmt: skip
        for step in range(STEPS):
            optimizer.zero_grad()
            model(sample(1, step, 0, rank), plan.used[step, 0, rank]).backward()
            optimizer.step()
        state = luwu.get_optimizer_state_dict(model, optimizer).get("state", {})  # of rank 0
        moments = {f"{name}.{key}": v for name, of in state.items() for key, v in of.items()}
        return digest_of(moments), digest_of(luwu.get_model_state_dict(model, average=True))

    found = [
        in_cluster(
            tmp_path / str(count), work, world_size=WORLD_SIZE, chunk_bytes=16 * 1024,
            extent_chunks=count, state=tmp_path / str(count) / "state", log_steps=1,
        )
        for count in (1, 8)
    ]  # fmt: skip
    assert found[0].digest == found[1].digest
    assert found[0].results[0] == found[1].results[0]


def test_a_state_with_one_count_a_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4. Goal: a state of an older version opens, trains and is read, with its counts; a page is
    updated as a whole, or refused by name.
    Method: make one with the fields of before, train it further, compare with plain torch."""
    sizes, steps = [[64, 192], [64]], 2
    everything = frozenset(f"layers.{i}.experts.{j}" for i in range(2) for j in range(2))
    used = {(step, 0, rank): everything for step in range(STEPS) for rank in range(WORLD_SIZE)}
    plain, theirs = by_torch(
        Plan(sizes, 1, used, [frozenset()] * STEPS),
        lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    )

    def work(names: frozenset[str]) -> Callable[[int], Any]:
        def of_rank(rank: int) -> Any:
            model = seeded(lambda: Model(sizes))
            luwu.fully_shard_each(model, Experts)
            optimizer = luwu.optim.AdamW(model.parameters())
            for step in range(optimizer.next_step, steps):
                model(sample(1, step, 0, rank), names).backward()
                optimizer.step()
            return luwu.get_optimizer_state_dict(model, optimizer)

        return of_rank

    def of_before(*arguments: Any) -> StoreConfig:
        made = store_config(*arguments)
        kinds = tuple(
            replace(kind, fields=(*kind.fields[:-1], replace(kind.fields[-1], elems=1)))
            for kind in made.kinds
        )
        return replace(made, kinds=kinds)

    options = {"world_size": WORLD_SIZE, "chunk_bytes": 16 * 1024, "state": tmp_path / "state"}
    with monkeypatch.context() as before:
        before.setattr(placement, "store_config", of_before)
        in_cluster(tmp_path, work(everything), **options)
    steps = STEPS
    found = in_cluster(tmp_path, work(everything), resume=True, **options)
    assert found.digest == digest_of(dict(plain.named_parameters()))
    assert_same(found.results[0]["state"], get_optimizer_state_dict(plain, theirs)["state"])
    steps = STEPS + 1
    with pytest.raises(StateError, match=r"experts\.1 had no gradient.*luwu export"):
        in_cluster(tmp_path, work(everything - {"layers.0.experts.1"}), resume=True, **options)

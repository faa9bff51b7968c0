"""Parameters without a gradient, in units where others have one: skipped, as in torch."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import luwu
from luwu.base.errors import StateError
from luwu.layout import Layout, Parameter, Share, Unit
from luwu.wire.hyper import StepHyper
from switch_emu.node import placement
from switch_emu.node.extent_pages import UpdateCounts, extent_pages, update_runs
from switch_emu.node.kernels import Run
from switch_emu.node.pages import store_config
from switch_emu.store import StoreConfig
from tests.checkpoint.test_state_dicts import assert_same
from tests.helpers.real_training import digest_of, in_cluster, seeded

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


def by_torch(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan) -> None:
    """The same training in one process: sums over ranks, then over backwards, then the mean."""
    parameters = dict(model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        plan.freeze(model, step)
        trained = {name: each for name, each in parameters.items() if each.requires_grad}
        totals: dict[str, Tensor] = {}
        for part in range(plan.parts):
            of_part: dict[str, Tensor] = {}
            for rank in range(WORLD_SIZE):
                loss = model(sample(1, step, part, rank), plan.used[step, part, rank])
                found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
                for name, gradient in zip(trained, found, strict=True):
                    if gradient is not None:
                        before = of_part.get(name)
                        of_part[name] = gradient if before is None else before + gradient
            for name, gradient in of_part.items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        for name, gradient in totals.items():
            parameters[name].grad = gradient / WORLD_SIZE
        optimizer.step()


def check(plan: Plan, name: str, update: str, directory: Path, **changes: Any) -> None:
    """Train a plan with LuWu and with torch; weights, moments and counts must be the same bits."""
    kind, arguments = OPTIMIZERS[name]
    plain = seeded(lambda: Model(plan.sizes))
    # A group each: torch's fused SGD cannot update one parameter for the first time beside others.
    groups = [{"params": [parameter]} for parameter in plain.parameters()]
    reference = getattr(torch.optim, kind)(groups, fused=True, **arguments)
    by_torch(plain, reference, plan)

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
        assert_same(found.results[0]["state"], get_optimizer_state_dict(plain, reference)["state"])


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


HYPER = StepHyper(groups=({"lr": 0.1},))


def small_layout() -> Layout:
    """One chunk of two parameters."""
    names = (("first", 64), ("second", 100))
    return Layout(
        parameters=tuple(Parameter(name=name, shape=(elems,)) for name, elems in names),
        units=(Unit(name="unit", parameters=(0, 1)),),
        chunk_bytes=16 * 1024,
    )


def test_a_page_with_one_count_is_not_updated_in_part() -> None:
    """I4. Goal: in a state of an older version, a page is updated as a whole or refused by name."""
    layout = small_layout()
    (page,) = extent_pages(Share(layout), 0)
    counts = UpdateCounts(layout, page, stored=[1], width=8)
    stored = np.array([[5, 0, 0, 0, 0, 0, 0, 0]])
    whole = update_runs(layout, page.segments[0], HYPER, counts.by_segment(stored, 0), 0)
    assert [(run.start, run.stop, run.updates_count) for run in whole] == [(0, 192, 5)]
    with pytest.raises(StateError, match=r"first had no gradient.*luwu export"):
        counts.by_segment(stored, 0b01)
    counts.count(stored, 0, stored)
    assert stored.tolist() == [[6, 0, 0, 0, 0, 0, 0, 0]]


def test_segments_have_counts_of_their_own() -> None:
    """I4. Goal: runs follow counts, groups and what is absent; counts of what is absent stay."""
    layout = small_layout()
    (page,) = extent_pages(Share(layout), 0)

    def runs_of(counts: list[int], absent: int) -> list[Run]:
        return update_runs(layout, page.segments[0], HYPER, counts, absent)

    assert [(run.start, run.stop) for run in runs_of([5, 5], 0)] == [(0, 192)]
    runs = runs_of([5, 7], 0)
    assert [(run.start, run.stop, run.updates_count) for run in runs] == [(0, 64, 5), (64, 192, 7)]
    first, second = runs_of([5, 7], 0b10)
    assert first.hyper == HYPER.groups[0]
    assert second.hyper is None
    counts, stored = UpdateCounts(layout, page, stored=[2], width=3), np.array([[5, 7, 0]])
    assert counts.by_segment(stored, 0b10) == [5, 7]
    into = np.zeros_like(stored)
    counts.count(stored, 0b10, into)
    assert (stored.tolist(), into.tolist()) == ([[5, 7, 0]], [[6, 7, 0]])


def test_a_state_with_one_count_a_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4. Goal: a state of an older version opens, trains and is read, with its counts.
    Method: make one with the fields of before, train it further, compare with plain torch."""
    sizes, steps = [[64, 192], [64]], 2
    everything = frozenset(f"layers.{i}.experts.{j}" for i in range(2) for j in range(2))
    used = {(step, 0, rank): everything for step in range(STEPS) for rank in range(WORLD_SIZE)}
    plain = seeded(lambda: Model(sizes))
    reference = torch.optim.AdamW(plain.parameters(), fused=True)
    by_torch(plain, reference, Plan(sizes, 1, used, [frozenset()] * STEPS))

    def work(rank: int) -> Any:
        model = seeded(lambda: Model(sizes))
        luwu.fully_shard_each(model, Experts)
        optimizer = luwu.optim.AdamW(model.parameters())
        for step in range(optimizer.next_step, steps):
            model(sample(1, step, 0, rank), everything).backward()
            optimizer.step()
        return luwu.get_optimizer_state_dict(model, optimizer)

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
        in_cluster(tmp_path, work, **options)
    steps = STEPS
    found = in_cluster(tmp_path, work, resume=True, **options)
    assert found.digest == digest_of(dict(plain.named_parameters()))
    assert_same(found.results[0]["state"], get_optimizer_state_dict(plain, reference)["state"])

"""Calls that would do nothing, or the wrong thing, on a model whose weights are not here.

Each is an ordinary line of PyTorch; each must raise where it stands, and say what to write instead.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster, seeded, sharded
from tests.helpers.small_models import Stack, make_stack, shard, square_loss
from tests.helpers.training_harness import worker

MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "clip_grad_norm_": (
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0),
        r"luwu\.clip_grad_norm_ or pass max_grad_norm=",
    ),
    "clip_grad_value_": (
        lambda m: nn.utils.clip_grad_value_(m.parameters(), 1.0),
        r"luwu\.clip_grad_norm_ or pass max_grad_norm=",
    ),
    "reading .grad": (lambda m: [p.grad for p in m.parameters()], "pushed to the network"),
    "zero_grad(set_to_none=False)": (
        lambda m: m.zero_grad(set_to_none=False),
        r"Call zero_grad\(\)",
    ),
    "grad = None": (
        lambda m: setattr(m.first.weight, "grad", None),
        r"call zero_grad\(\) of the optimizer",
    ),
    "torch.autograd.grad": (
        lambda m: torch.autograd.grad(square_loss(m, 0, 0, 0), list(m.parameters())),
        r"call loss\.backward\(\)",
    ),
    "torch.save(model.state_dict())": (
        lambda m: torch.save(m.state_dict(), io.BytesIO()),
        r"luwu\.get_model_state_dict",
    ),
    "torch.save(model)": (lambda m: torch.save(m, io.BytesIO()), r"luwu\.get_model_state_dict"),
    "load_state_dict": (lambda m: m.load_state_dict({}), r"luwu\.set_model_state_dict"),
    "p.data.mul_": (
        lambda m: [p.data.mul_(0.5) for p in m.parameters()],
        r"luwu\.set_model_state_dict",
    ),
    "weight.copy_": (
        lambda m: m.first.weight.copy_(torch.ones(64, 64)),
        r"luwu\.set_model_state_dict",
    ),
    "nn.init": (lambda m: nn.init.xavier_uniform_(m.first.weight), r"luwu\.set_model_state_dict"),
    "an average of weights": (AveragedModel, r"average=luwu\.ema"),
    "copy.deepcopy": (copy.deepcopy, r"Copy it before luwu\.fully_shard"),
    "model.half()": (lambda m: m.half(), "choose the dtype of compute with mp_policy="),
    "model.to(device)": (lambda m: m.to("meta"), r"before luwu\.fully_shard"),
    "model.to_empty()": (lambda m: m.to_empty(device="cpu"), r"luwu\.init_weights\(model, fn\)"),
    "parameters_to_vector": (
        lambda m: nn.utils.parameters_to_vector(m.parameters()),
        r"luwu\.get_model_state_dict",
    ),
    "weight_norm": (lambda m: parametrizations.weight_norm(m.first), "in the network"),
    "a method that is no forward": (
        lambda m: m.first.weight @ torch.ones(64),
        r"luwu\.register_forward_method",
    ),
}
"""What a user writes -> what the message says to write."""


@pytest.mark.feature("calls that would do nothing")
@pytest.mark.feature("deepcopy of a sharded model")
@pytest.mark.feature("zero_grad(set_to_none=False)")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_where_it_is_made(mistake: str) -> None:
    """Goal: no such call returns; the message names the remedy."""
    with worker(FakeNetwork(1)):
        model = sharded()
        luwu.optim.SGD(model.parameters())
        do, remedy = MISTAKES[mistake]
        with pytest.raises(luwu.LuwuError, match=remedy):
            do(model)


@pytest.mark.feature("model.to() with the current device and dtype")
def test_a_model_that_is_where_it_should_be_is_not_moved() -> None:
    """Goal: .to(device) of a script that says it once more changes nothing, but for buffers."""
    with worker(FakeNetwork(1)):
        model = make_stack()
        model.register_buffer("scale", torch.ones(2, dtype=torch.float64))
        shard(model)
        optimizer = luwu.optim.SGD(model.parameters())
        assert model.to("cpu") is model
        assert model.float().scale.dtype == torch.float32
        wrapper = nn.Sequential(model).to(dtype=torch.float32)
        square_loss(wrapper[0], 0, 0, 0).backward()
        assert optimizer.step().applied


@pytest.mark.feature("calls that would do nothing")
def test_the_optimizers_own_state_dict_names_ours() -> None:
    """Goal: a checkpoint without moments is refused where it would be written, or read."""
    with worker(FakeNetwork(1)):
        model = sharded()
        optimizer = luwu.optim.SGD(model.parameters())
        with pytest.raises(luwu.ConfigError, match=r"luwu\.get_optimizer_state_dict"):
            optimizer.state_dict()
        with pytest.raises(luwu.ConfigError, match=r"luwu\.set_optimizer_state_dict"):
            optimizer.load_state_dict({})
        with pytest.raises(luwu.ConfigError, match=r"luwu\.get_optimizer_state_dict"):
            len(optimizer.state)


@pytest.mark.feature("frozen weights of other dtypes")
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_frozen_weights_of_other_dtypes_may_stay_in_the_worker(
    dtype: torch.dtype, alone: bool
) -> None:
    """Goal: refused in words that name ignored_params, which works: as a unit, or within one."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
        model[1].weight = nn.Parameter(torch.ones(4, 4).to(dtype), requires_grad=False)
        model[1].forward = lambda x: x @ model[1].weight.float()
        return model

    with worker(FakeNetwork(1)):
        model = make()
        if alone:
            luwu.fully_shard(model[1])
        luwu.fully_shard(model)
        with pytest.raises(luwu.ConfigError, match=r"1\.weight.*ignored_params"):
            luwu.optim.SGD(model[0].parameters(), lr=0.1)
    with worker(FakeNetwork(1)):
        model = make()
        luwu.fully_shard(model, ignored_params={model[1].weight})
        optimizer = luwu.optim.SGD(model[0].parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        assert optimizer.step().applied


@pytest.mark.feature("calls that would do nothing")
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_set_on_a_parameter_before_are_refused(kind: str) -> None:
    """Goal: a hook that would never run is named, with its parameter, by fully_shard."""
    with worker(FakeNetwork(1)):
        model = make_stack()
        getattr(model.first.weight, kind)(lambda *_: None)
        with pytest.raises(luwu.ConfigError, match=r"Linear has hooks.*after fully_shard"):
            shard(model)


@pytest.mark.feature("an optimizer made before fully_shard, or of torch")
def test_optimizers_that_would_update_nothing(tmp_path: Path) -> None:
    """Goal: torch's optimizer, made before or after fully_shard, trains nothing and says so: there
    is no backward without ours, and beside ours torch's cannot make a step."""

    def work(rank: int) -> None:
        model = seeded(lambda: Stack(blocks=1))
        before = torch.optim.SGD(model.parameters(), lr=1.0)
        shard(model)
        with pytest.raises(luwu.ConfigError, match=r"luwu\.fully_shard on the model before"):
            luwu.optim.SGD(seeded(lambda: Stack(blocks=1)).parameters())
        after = torch.optim.SGD(model.parameters(), lr=1.0)
        ours = luwu.optim.SGD(model.parameters())
        square_loss(model, 0, 0, 0).backward()
        for theirs in (before, after):
            with pytest.raises(luwu.LuwuError, match="pushed to the network inside backward"):
                theirs.step()
        ours.step()

    def without_ours(rank: int) -> None:
        model = sharded(lambda: Stack(blocks=1))
        torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(luwu.ConfigError, match=r"make luwu\.optim\.AdamW or SGD before"):
            square_loss(model, 0, 0, 0).backward()

    in_cluster(tmp_path, work)
    in_cluster(tmp_path, without_ours)


@pytest.mark.feature("hooks of the optimizer")
def test_step_hooks_run_around_a_step(tmp_path: Path) -> None:
    """Goal: torch's hooks of `step`, by inheritance; what a pre-hook changes counts in the step."""

    def work(rank: int) -> list[str]:
        model = sharded()
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.0)
        seen: list[str] = []

        def before(o: Any, args: Any, kwargs: Any) -> None:
            seen.append("before")
            o.param_groups[0]["lr"] = 0.5

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
        square_loss(model, 0, 0, 0).backward()
        optimizer.step()
        return seen

    def plain(rank: int) -> None:
        model = sharded()
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.5)
        square_loss(model, 0, 0, 0).backward()
        optimizer.step()

    found = in_cluster(tmp_path, work)
    assert found.results == [["before", "after"]]
    assert found.digest == in_cluster(tmp_path, plain).digest

"""State dicts in the shape of torch.distributed.checkpoint: out of a job and into one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from luwu.optim.state_dict import _DEFAULTS
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Stack, TiedStack, batch, shard

FULL = StateDictOptions(full_state_dict=True)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-2, "weight_decay": 0.1},
    "Adam": {"lr": 1e-2},
    "SGD": {"lr": 1e-2, "momentum": 0.9},
}


def make(seed: int = 7) -> Any:
    return seeded(TiedStack, seed)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain(name: str, last: int) -> tuple[Any, Any]:
    model = make()
    optimizer = getattr(torch.optim, name)(trained(model), fused=True, **OPTIMIZERS[name])
    train_steps(model, optimizer, 0, last)
    return model, optimizer


def network(name: str, model: nn.Module) -> Any:
    return getattr(luwu.optim, name)(trained(model), **OPTIMIZERS[name])


def assert_same(found: Any, expected: Any) -> None:
    """Nested dicts, lists and tensors are equal, bit for bit."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.feature("get_model_state_dict")
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_state_dicts_are_those_of_torch(name: str, tmp_path: Path) -> None:
    """I4. Goal: model and optimizer as torch's own functions give them for plain training, names,
    tied weights, buffers, counts of steps and all; on one rank, unless asked for."""

    def work(rank: int) -> Any:
        model = sharded(TiedStack)
        optimizer = network(name, model)
        train_steps(model, optimizer, 0, 3)
        return (
            luwu.get_model_state_dict(model),
            luwu.get_optimizer_state_dict(model, optimizer),
            luwu.get_model_state_dict(model, options=FULL),
            luwu.get_optimizer_state_dict(model, optimizer, options=FULL),
        )

    model, optimizer = plain(name, 3)
    (weights, state, again, state_again), second = in_cluster(tmp_path, work, world_size=2).results
    assert_same(weights, model.state_dict())
    expected = get_optimizer_state_dict(model, optimizer)
    assert_same(state["state"], expected["state"])
    ours, theirs = state["param_groups"][0], expected["param_groups"][0]
    assert sorted(ours["params"]) == sorted(theirs["params"])
    assert {k: theirs[k] for k in ours if k != "params"} == {
        k: v for k, v in ours.items() if k != "params"
    }
    assert second[:2] == ({}, {})
    assert_same(second[2:], (again, state_again))
    assert_same(again, weights)


@pytest.mark.feature("get_model_state_dict")
def test_weights_that_are_here_are_not_handed_out(tmp_path: Path) -> None:
    """Goal: after an evaluation the root is still here, in the dtype of compute; a state dict that
    is taken then is that of the step, in the dtype it was made with, and stays as it is."""

    def work(rank: int) -> None:
        model: Any = seeded(Stack)
        shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model(batch(0, 0, 0))
        found = luwu.get_model_state_dict(model)
        train_steps(model, optimizer, 0, 2)
        with torch.no_grad():
            model(batch(0, 0, 0))
        for name, expected in seeded(Stack).state_dict().items():
            assert torch.equal(found[name], expected), name

    in_cluster(tmp_path, work)


def test_frozen_parameters_may_be_left_out(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        model = sharded(TiedStack)
        network("SGD", model)
        return luwu.get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))

    found = in_cluster(tmp_path, work).results[0]
    assert found.keys() == make().state_dict().keys() - {"frozen"}


@pytest.mark.feature("set_model_state_dict, set_optimizer_state_dict")
@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_training_goes_on_from_state_dicts(meta: bool, name: str, tmp_path: Path) -> None:
    """I4. Goal: weights, buffers and moments of plain torch training are set, before and after the
    optimizer is made, and training goes on to the bits it would have come to."""
    source, optimizer = plain(name, 3)
    weights = source.state_dict()
    state = get_optimizer_state_dict(source, optimizer)

    def work(rank: int) -> dict[str, Tensor]:
        if meta:
            with torch.device("meta"):
                model: Any = TiedStack()
            model.cache = torch.ones(3)
        else:
            model = make(seed=99)
        shard(model)
        if meta:
            luwu.set_model_state_dict(model, weights if rank == 0 else {})
        luwu_optimizer = network(name, model)
        if not meta:
            luwu.set_model_state_dict(model, weights)
        elif rank:
            for buffer, value in (("running_mean", 0), ("running_var", 1)):
                getattr(model.norm, buffer).fill_(value)
        luwu.set_optimizer_state_dict(model, luwu_optimizer, state)
        assert luwu_optimizer.param_groups[0]["lr"] == 1e-2
        train_steps(model, luwu_optimizer, 3, 5)
        return luwu.get_model_state_dict(model)

    found = in_cluster(tmp_path, work).results[0]
    train_steps(source, optimizer, 3, 5)
    assert_same(found, source.state_dict())


@pytest.mark.feature("set_model_state_dict, set_optimizer_state_dict")
def test_a_resumed_run_takes_no_other_weights(tmp_path: Path) -> None:
    """Goal: a script that always loads its checkpoint may be resumed: the state counts."""

    def work(first: int, last: int) -> Any:
        def run(rank: int) -> Any:
            model = sharded(TiedStack)
            luwu.set_model_state_dict(model, make(seed=99).state_dict())
            optimizer = network("AdamW", model)
            assert optimizer.next_step == first
            model.norm.eval()
            train_steps(model, optimizer, first, last)

        return run

    state = tmp_path / "state"
    in_cluster(tmp_path, work(0, 2), state=state)
    resumed = in_cluster(tmp_path, work(2, 4), state=state, resume=True)
    assert resumed.digest == in_cluster(tmp_path / "whole", work(0, 4)).digest


@pytest.mark.feature("set_model_state_dict, set_optimizer_state_dict")
def test_dicts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Goal: all that is wrong is named, and nothing is half set."""

    def work(rank: int) -> None:
        model = sharded(TiedStack)
        weights = make(seed=3).state_dict()
        del weights["blocks.0.up.bias"]
        weights["extra"] = torch.ones(1)
        weights["frozen"] = torch.ones(5)
        with pytest.raises(luwu.ConfigError) as caught:
            luwu.set_model_state_dict(model, weights)
        text = str(caught.value)
        assert "blocks.0.up.bias is missing" in text
        assert "extra is unexpected" in text
        assert "frozen has shape (5,), expected (64,)" in text
        del weights["frozen"]
        luwu.set_model_state_dict(model, weights, options=StateDictOptions(strict=False))
        optimizer = network("AdamW", model)
        with pytest.raises(luwu.ConfigError, match="flatten_optimizer_state_dict"):
            luwu.get_optimizer_state_dict(
                model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)
            )
        groups = luwu.get_optimizer_state_dict(model, optimizer)["param_groups"]
        found = luwu.get_model_state_dict(model)
        for name, value in found.items():
            source = make() if name in ("blocks.0.up.bias", "frozen") else make(seed=3)
            assert torch.equal(value, source.state_dict()[name]), name
        for call in (
            lambda: luwu.set_model_state_dict(model, found),
            lambda: luwu.set_optimizer_state_dict(model, optimizer, {"param_groups": groups}),
        ):
            with pytest.raises(luwu.StepOrderError, match="after the first forward"):
                call()

    in_cluster(tmp_path, work)


@pytest.mark.feature("set_model_state_dict, set_optimizer_state_dict")
def test_optimizer_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source, optimizer = plain("AdamW", 1)
    state = get_optimizer_state_dict(source, optimizer)

    def changed(change: Any) -> Any:
        copied = {
            "state": {name: dict(each) for name, each in state["state"].items()},
            "param_groups": [dict(group) for group in state["param_groups"]],
        }
        change(copied)
        return copied

    wrong = {
        "not trained here": lambda s: s["state"].update(other=s["state"]["norm.bias"]),
        "has no exp_avg_sq": lambda s: s["state"]["norm.bias"].pop("exp_avg_sq"),
        "2 groups are given": lambda s: s["param_groups"].append({}),
        "other parameters: norm.bias": lambda s: s["param_groups"][0]["params"].remove("norm.bias"),
        "other parameters: 0, 1, 2": lambda s: s["param_groups"][0].update(params=[0, 1, 2]),
    }

    def work(rank: int) -> None:
        model = sharded(TiedStack)
        ours = network("AdamW", model)
        for text, change in wrong.items():
            with pytest.raises(luwu.ConfigError, match=text):
                luwu.set_optimizer_state_dict(model, ours, changed(change))
        with pytest.raises(luwu.ConfigError, match=r"luwu\.optim optimizer that was made"):
            luwu.get_optimizer_state_dict(model, optimizer)  # type: ignore[arg-type]
        luwu.get_model_state_dict(model)  # returns when the first weights are decided

    found = in_cluster(tmp_path, work)
    assert found.digest == digest_of(dict(make().named_parameters()))


def test_plain_models_are_not_ours() -> None:
    with pytest.raises(luwu.ConfigError, match="use its own state_dict"):
        luwu.get_model_state_dict(nn.Linear(2, 2))


def test_default_dtype_changes_no_state() -> None:
    """Goal: weights and moments go to the network and back in float32, whatever torch's default
    dtype is, such as bfloat16. Method: first ones that are given, and one step."""
    linear = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(linear.parameters(), fused=True)
    x = torch.linspace(-1, 1, 64)
    states = []
    for _ in range(2):
        linear(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append((linear.state_dict(), get_optimizer_state_dict(linear, optimizer)["state"]))
        states = copy.deepcopy(states)
    (weights, state), expected = states

    torch.set_default_dtype(torch.bfloat16)
    try:
        luwu.init_local(device="cpu", memory_budget="64MiB")
        model = luwu.fully_shard(nn.Linear(64, 64, dtype=torch.float32))
        network = luwu.optim.AdamW(model.parameters())
        luwu.set_model_state_dict(model, weights)
        groups = [{"params": [*weights]}]
        luwu.set_optimizer_state_dict(model, network, {"state": state, "param_groups": groups})
        model(x).square().mean().backward()
        network.step()
        moments = luwu.get_optimizer_state_dict(model, network)["state"]
        found = (luwu.get_model_state_dict(model), moments)
        luwu.finish()
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(found, expected)


def test_options_that_are_not_given_are_those_of_torch() -> None:
    """Goal: the defaults that stand here, so that nobody imports torch's for them, are torch's."""
    ours, theirs = vars(_DEFAULTS), vars(StateDictOptions())
    assert ours == {name: theirs[name] for name in ours}

"""Placeholders and conversion: what a script may do with a sharded model, and what must be loud."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from luwu.training.script.session import Session
from luwu.training.units.placeholder import Placeholder, PlaceholderError
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import worker


@pytest.fixture
def session() -> Iterator[Session]:
    with worker(FakeNetwork(1)) as session:
        yield session


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def make_sharded() -> nn.Sequential:
    model = make()
    luwu.fully_shard(model[0])
    return luwu.fully_shard(model)


@pytest.mark.feature("names, counts and shapes of parameters")
def test_metadata_works(session: Session) -> None:
    """Goal: names, counts, groups and printing work on placeholders."""
    model = make()

    def facts() -> list[tuple[object, ...]]:
        named = model.named_parameters()
        return [(n, p.shape, p.dtype, p.numel(), p.requires_grad) for n, p in named]

    before = facts()
    luwu.fully_shard(model)
    assert facts() == before
    parameter = model[0].weight
    assert isinstance(parameter, Placeholder)
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.is_leaf, parameter.ndim, len(parameter)) == (True, 2, 64)
    assert (parameter.stride(), parameter.is_contiguous()) == ((64, 1), True)
    assert (parameter.device, parameter.element_size()) == (torch.device("cpu"), 4)
    assert parameter in {parameter}
    assert "shape=(64, 64)" in repr(parameter)
    assert "Linear" in repr(model)
    parameter.requires_grad_(False)
    assert not parameter.requires_grad


READS: dict[str, Callable[[Any], object]] = {
    "add": lambda p: p + 1,
    "item": lambda p: p[0, 0].item(),
    "set data": lambda p: setattr(p, "data", torch.ones(1)),
    "detach": lambda p: p.detach(),
    "numpy": lambda p: p.numpy(),
    "tolist": lambda p: p.tolist(),
    "float": float,
    "bool": bool,
    "equal": lambda p: p == p,
    "clone": lambda p: p.clone(),
    "norm": torch.linalg.vector_norm,
    "ones_like": torch.ones_like,
    "stack": lambda p: torch.stack([p, p]),
    "to": lambda p: p.to(torch.bfloat16),
    "data_ptr": lambda p: p.data_ptr(),
    "storage": lambda p: p.untyped_storage(),
    "share_memory_": lambda p: p.share_memory_(),
    "iter": list,
    "deepcopy": copy.deepcopy,
    "save": lambda p: torch.save(p, io.BytesIO()),
    "backward": lambda p: p.backward(),
    "use": lambda p: nn.functional.linear(torch.ones(2, 64), p),
}


@pytest.mark.feature("values of parameters outside their unit")
@pytest.mark.parametrize("read", READS)
def test_reading_a_placeholder_raises(session: Session, read: str) -> None:
    """Goal: no value of a placeholder can be read or written, by whatever way."""
    model = make_sharded()
    with pytest.raises(PlaceholderError):
        READS[read](model[0].weight)


def test_outer_module_is_guarded_too(session: Session) -> None:
    """Goal: a module around the sharded one does not save or move it in silence."""
    outer = nn.Sequential(make_sharded())
    with pytest.raises(luwu.LuwuError):
        outer.state_dict()
    with pytest.raises(luwu.ConfigError):
        outer.double()


@pytest.mark.feature("the class is swapped in place")
def test_class_is_swapped_in_place(session: Session) -> None:
    """Goal: FSDP2's shape: same object, derived class, indexing gives plain modules."""
    model = make()
    inner = model[0]
    assert luwu.fully_shard(inner) is inner
    assert luwu.fully_shard(model) is model
    assert isinstance(inner, luwu.LuwuModule)
    assert isinstance(inner, nn.Linear)
    assert type(inner).__name__ == "LuwuLinear"
    assert type(model[1:]) is nn.Sequential


class Registered(nn.Linear):
    """Looks up the type hints of every class that derives from it, as models of libraries do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        get_type_hints(cls)


def test_a_class_that_looks_up_type_hints_can_be_sharded(session: Session) -> None:
    model = luwu.fully_shard(Registered(8, 8))
    luwu.optim.SGD(model.parameters(), lr=0.1)
    assert isinstance(model, luwu.LuwuModule)
    assert model(torch.ones(2, 8)).shape == (2, 8)


@pytest.mark.feature("mesh, dp_mesh_dims, shard_placement_fn, offload_policy")
@pytest.mark.parametrize("argument", ["mesh", "offload_policy", "dp_mesh_dims", "unheard_of"])
def test_arguments_of_fsdp_that_mean_nothing(session: Session, argument: str) -> None:
    """Goal: what cannot be honoured is refused with a reason."""
    with pytest.raises(TypeError, match=f"no {argument}="):
        luwu.fully_shard(make(), **{argument: object()})  # type: ignore[call-arg]


def test_wrong_use_of_fully_shard(session: Session) -> None:
    """Goal: each mistake is found when it is made, or when the optimizer is."""
    with pytest.raises(luwu.ConfigError, match="no forward"):
        luwu.fully_shard(nn.ModuleList([make()]))
    with pytest.raises(luwu.ConfigError, match="reduce_dtype"):
        luwu.fully_shard(make(), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="reshard_after_forward=2"):
        luwu.fully_shard(make(), reshard_after_forward=2)  # type: ignore[arg-type]
    with pytest.raises(luwu.ConfigError, match="no module of Conv1d"):
        luwu.fully_shard_each(make(), nn.Conv1d)
    model = make_sharded()
    with pytest.raises(luwu.ConfigError, match="twice"):
        luwu.fully_shard(model)


def test_optimizer_checks_its_parameters(session: Session) -> None:
    """Goal: an optimizer that could not update, or not all, is refused."""
    model = make()
    with pytest.raises(luwu.ConfigError, match=r"luwu\.fully_shard"):
        luwu.optim.AdamW(model.parameters())
    luwu.fully_shard(model)
    luwu.optim.AdamW(list(model.parameters())[:-1])  # another optimizer may have the last one
    with pytest.raises(luwu.ConfigError, match=r"2\.bias requires a gradient but is in no group"):
        model(torch.ones(1, 64))
    luwu.optim.AdamW(model.parameters())


@pytest.mark.feature("fused, foreach, capturable, differentiable, amsgrad")
@pytest.mark.feature("add_param_group after construction")
def test_optimizer_arguments(session: Session) -> None:
    """Goal: what means nothing here is refused, and torch's own checks hold."""
    model = make_sharded()
    for argument in ("fused", "foreach", "capturable", "differentiable", "amsgrad"):
        with pytest.raises(luwu.ConfigError, match=f"{argument}=True"):
            luwu.optim.AdamW(model.parameters(), **{argument: True})
    with pytest.raises(TypeError, match="unheard_of"):
        luwu.optim.SGD(model.parameters(), unheard_of=1)
    with pytest.raises(luwu.ConfigError, match="lr must not be below 0"):
        luwu.optim.SGD(model.parameters(), lr=-1.0)
    with pytest.raises(luwu.ConfigError, match="betas"):
        luwu.optim.AdamW(model.parameters(), betas=(0.9, 1.0))
    with pytest.raises(luwu.ConfigError, match="nesterov"):
        luwu.optim.SGD(model.parameters(), nesterov=True)
    with pytest.raises(luwu.ConfigError, match="update='later'"):
        luwu.optim.SGD(model.parameters(), update="later")
    with pytest.raises(TypeError, match=r"luwu\.optim\.Adam does"):
        luwu.optim.AdamW(model.parameters(), decoupled_weight_decay=True)
    coupled = {"params": model.parameters(), "decoupled_weight_decay": False}
    with pytest.raises(luwu.ConfigError, match=r"take luwu\.optim\.Adam"):
        luwu.optim.AdamW([coupled])
    optimizer = luwu.optim.AdamW(model.parameters(), fused=None, amsgrad=False)
    with pytest.raises(luwu.ConfigError, match="add_param_group"):
        optimizer.add_param_group({"params": []})
    with pytest.raises(luwu.ConfigError, match="has an optimizer already"):
        luwu.optim.AdamW(model.parameters())


@pytest.mark.feature("a model that changes after its optimizer is created")
def test_use_before_and_after_training(session: Session) -> None:
    """Goal: a frozen or replaced parameter later is loud."""
    model = make_sharded()
    model[2].bias.requires_grad_(False)
    luwu.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model[2].bias.requires_grad_(True)
    with pytest.raises(luwu.ConfigError, match=r"2\.bias: .* none of the optimizer's groups"):
        model(torch.ones(1, 64))


@pytest.mark.feature("parameters without a shape: LazyLinear")
@pytest.mark.parametrize("kind", [nn.LazyLinear, nn.LazyConv1d, nn.LazyBatchNorm1d])
def test_parameters_without_a_shape_are_refused(kind: Any, session: Session) -> None:
    """Goal: a module that has not seen its input yet is refused in one sentence, by name; it is
    taken once it has."""
    options = {"LazyLinear": [4], "LazyConv1d": [4, 1], "LazyBatchNorm1d": []}[kind.__name__]
    model = kind(*options)
    with pytest.raises(luwu.ConfigError, match=rf"weight of {kind.__name__} has no shape yet"):
        luwu.fully_shard(model)
    model(torch.ones(2, 4, 4))
    luwu.fully_shard(model)


def test_session_is_needed_once() -> None:
    """Goal: calls before init, and a second init, say so."""
    with pytest.raises(luwu.ConfigError, match=r"luwu\.init"):
        luwu.fully_shard(make())
    with worker(FakeNetwork(1)) as session, pytest.raises(luwu.ConfigError, match="called before"):
        assert luwu.session() is session
        assert (luwu.rank(), luwu.world_size(), luwu.device().type) == (0, 1, "cpu")
        luwu.init()


def test_session_of_a_failed_thread_is_over(tmp_path: Path) -> None:
    """Goal: a script that failed in a thread is no session of the others, garbage or not."""
    failed = []

    def work(rank: int) -> None:
        failed.append(luwu.session())
        raise RuntimeError("as planned")

    with pytest.raises(RuntimeError, match="as planned"):
        in_cluster(tmp_path, work)
    with pytest.raises(luwu.ConfigError, match=r"luwu\.init"):
        luwu.session()
    assert failed[0].nic.is_closed

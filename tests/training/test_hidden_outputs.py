"""Backwards that reach a unit past its outputs find its weights, or end with an error there."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributions import Independent, Normal

import luwu
from luwu.base.errors import StepOrderError
from tests.helpers.real_training import digest_of, in_cluster, seeded
from tests.helpers.training_harness import assert_same_bits

WAYS: list[dict[str, Any]] = [
    {"transport": "inproc"}, {"transport": "tcp"}, {"transport": "ipc"}, {"transport": "shm"},
    {"transport": "tcp", "optimizer_nodes": 2},
]  # fmt: skip


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Holder:
    def __init__(self, inner: Any) -> None:
        self.found = [inner]


Wrap = tuple[Callable[[Any], Any], Callable[[Any], Any]]
WRAPS: list[Wrap] = [
    (lambda x: (x,), lambda held: held[0]),
    (lambda x: {"x": [x]}, lambda held: held["x"][0]),
    (lambda x: UserDict(x=x), lambda held: held["x"]),
    (Slots, lambda held: held.inner),
    (Holder, lambda held: held.found[0]),
    (lambda x: lambda: x, lambda held: held()),
    (lambda x: iter([x]), next),
]
"""What puts a value into an object, and what takes it out again."""


class Layer(nn.Module):
    """Returns what it computed inside of some objects, and one tensor beside them."""

    def __init__(self, wraps: list[Wrap], beside: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.wraps, self.beside = wraps, beside

    def forward(self, x: Tensor) -> Any:
        between = torch.tanh(self.first(x))
        held = Independent(Normal(self.second(between), 1.0), 1)
        for wrap, _ in self.wraps:
            held = wrap(held)
        return held, (between if self.beside else None)

    def loss_of(self, returned: Any) -> Tensor:
        held, between = returned
        for _, unwrap in reversed(self.wraps):
            held = unwrap(held)
        loss: Tensor = held.log_prob(torch.ones(8)).sum()
        return loss if between is None else loss + between.square().sum()


class Model(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.before = nn.Linear(8, 8)
        self.layers = nn.ModuleList(
            Layer(rng.choices(WRAPS, k=rng.randint(0, 3)), rng.random() < 0.5) for _ in range(3)
        )
        self.order = rng.sample(range(3), 3)
        self.twice = rng.randrange(3)
        """This layer runs twice."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        returned = [layer(x) for layer in self.layers]
        layers = [self.layers[i] for i in range(3)]
        losses = [layer.loss_of(each) for layer, each in zip(layers, returned, strict=True)]
        again = layers[self.twice]
        loss = again.loss_of(again(x * 0.5))
        for index in self.order:
            loss = loss + losses[index]
        return loss


def inputs(step: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).requires_grad_()


def by_torch(model: nn.Module) -> Iterator[Tensor | None]:
    """The gradients of the inputs, step by step; the model is trained."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        x = inputs(step)
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield x.grad


def follow(
    model: nn.Module, optimizer: Any, expected: list[Tensor | None],
    evaluate: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """The same training, whose gradients of the inputs must be these; an evaluation in it."""
    for step, gradient in enumerate(expected):
        if step:
            evaluate()
        x = inputs(step)
        model(x).backward()
        evaluate()
        optimizer.step()
        optimizer.zero_grad()
        assert x.grad is not None
        assert gradient is not None
        torch.testing.assert_close(x.grad, gradient, rtol=0, atol=0)


@pytest.mark.feature("outputs of any class")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("seed", range(6))
def test_outputs_in_any_object_are_trained(seed: int, way: dict[str, Any], tmp_path: Path) -> None:
    """I4. Goal: backward finds a unit's weights wherever its forward put what it computed.
    Method: units that return tensors deep in objects of random kinds, one of them called twice;
    gradients of inputs and trained weights are those of torch, bit for bit."""
    plain = seeded(lambda: Model(seed), seed)
    expected = list(by_torch(plain))

    def work(rank: int) -> None:
        model = seeded(lambda: Model(seed), seed)
        luwu.fully_shard_each(model, Layer)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.01)
        follow(model, optimizer, expected)
        assert_same_bits(luwu.get_model_state_dict(model), plain.state_dict())

    in_cluster(tmp_path, work, **way)


class Keeps(nn.Module):
    """Keeps a second loss and an inner activation, which it does not return."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.aside = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        between = self.first(x)
        self.aside = self.second(between).square().sum()
        result: Tensor = self.second(torch.tanh(between))
        return result


def keeping(how: str, blocks: nn.Sequential) -> tuple[Tensor, Callable[[], Any]]:
    """The input, and a backward that does not begin at an output of the first block."""
    x = inputs(0)
    taken: list[Tensor] = []
    if how == "a hook":
        blocks[0].second.register_forward_hook(lambda module, args, output: taken.append(output))
    blocks(x)
    hidden = taken[0].sum() if how == "a hook" else blocks[0].aside
    if how == "autograd.grad":
        return x, lambda: setattr(x, "grad", torch.autograd.grad(hidden, [x])[0])
    return x, hidden.backward


@pytest.mark.feature("a backward that begins inside a unit")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("how", ["a second loss", "a hook", "autograd.grad", "saved on the CPU"])
def test_a_backward_inside_a_unit_is_right_or_names_it(
    how: str, frozen: bool, way: dict[str, Any], tmp_path: Path
) -> None:
    """Goal: a loss that a module keeps, or an activation that a hook takes, has the gradient that
    torch has, where the weights still lie in shared memory; else the backward raises, and names the
    unit. Never is there another number."""

    def make() -> nn.Sequential:
        blocks = seeded(lambda: nn.Sequential(*(Keeps() for _ in range(4))))
        assert isinstance(blocks, nn.Sequential)
        blocks[0].requires_grad_(not frozen)
        return blocks

    y, backward = keeping(how, make())
    backward()

    def work(rank: int) -> None:
        blocks = make()
        luwu.fully_shard_each(blocks, Keeps)
        luwu.optim.SGD([p for p in blocks.parameters() if p.requires_grad], lr=0.1)
        with save_on_cpu() if how == "saved on the CPU" else contextlib.nullcontext():
            x, backward = keeping(how, blocks)
        backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)

    if way["transport"] == "shm":
        in_cluster(tmp_path, work, **way)
        return
    with pytest.raises(StepOrderError, match="reached unit 0 past its outputs"):
        in_cluster(tmp_path, work, **way)


@pytest.mark.feature("torch.autograd.grad with create_graph=True")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_a_backward_of_a_backward_finds_the_weights(way: dict[str, Any], tmp_path: Path) -> None:
    """I4. Goal: a penalty on the gradient of the inputs, which reaches units through the graph of
    their backward, is trained bit for bit as in torch."""

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(3):
            x = inputs(step)
            y = model(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (y.square().mean() + slope.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

    start = seeded(lambda: nn.Sequential(*(Between() for _ in range(6))))
    plain = copy.deepcopy(start)
    steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1))

    def work(rank: int) -> None:
        model = copy.deepcopy(start)
        luwu.fully_shard_each(model, Between)
        steps(model, luwu.optim.SGD(model.parameters(), lr=0.1))
        assert_same_bits(luwu.get_model_state_dict(model), plain.state_dict())

    in_cluster(tmp_path, work, **way)


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize("transport", ["inproc", "shm"])
def test_a_graph_of_an_earlier_step_is_refused(transport: str, tmp_path: Path) -> None:
    """Goal: a backward over a forward of an earlier step, which begins inside a unit, raises as it
    does in torch after `step()`: the weights are others by then."""

    def work(rank: int) -> None:
        block = seeded(Keeps)
        luwu.fully_shard(block)
        optimizer = luwu.optim.SGD(block.parameters(), lr=0.1)
        block(inputs(0)).sum().backward()
        kept = block.aside
        optimizer.step()
        block(inputs(1)).sum().backward()
        optimizer.step()
        block(inputs(2))
        with pytest.raises((StepOrderError, RuntimeError), match=r"unit root |in-?place operation"):
            kept.backward()

    in_cluster(tmp_path, work, transport=transport)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, holder: Holder) -> Tensor:
        holder.found[0].append({"keys": self.keys(x)})
        result: Tensor = self.out(torch.stack([each["keys"] for each in holder.found[0]]).sum(0))
        return result


class Remembers(nn.Module):
    """Its block leaves what it computed in an object, as with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Attends()

    def forward(self, x: Tensor, holder: Holder) -> Tensor:
        result: Tensor = self.block(x, holder)
        return result


@pytest.mark.feature("a cache of keys and values that keeps a graph")
@pytest.mark.parametrize("keeps", [False, True])
def test_a_cache_that_holds_a_graph(keeps: bool, tmp_path: Path) -> None:
    """Goal: where a second forward reaches, through an object that the caller passes on, what the
    first one computed, backward raises and names the unit; of a unit that keeps its weights the
    gradients are those of torch, as its message promises. Without a graph the cache goes through.
    """

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, *, graph: bool) -> None:
        holder = Holder([])
        with torch.set_grad_enabled(graph):
            model(inputs(0), holder)
        model(inputs(1), holder).sum().backward()
        optimizer.step()

    start = seeded(Remembers)
    plain = copy.deepcopy(start)
    for graph in [False, keeps]:
        step(plain, torch.optim.SGD(plain.parameters(), lr=0.1), graph=graph)
        plain.zero_grad()

    def work(rank: int) -> None:
        model = copy.deepcopy(start)
        luwu.fully_shard(model.block, reshard_after_forward=not keeps)
        luwu.fully_shard(model)
        model.block.set_reshard_after_backward(not keeps)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, graph=False)
        step(model, optimizer, graph=True)

    if keeps:
        assert in_cluster(tmp_path, work).digest == digest_of(dict(plain.named_parameters()))
        return
    with pytest.raises(StepOrderError, match="reached unit block past its outputs"):
        in_cluster(tmp_path, work)


@pytest.mark.feature("torch.inference_mode around an evaluation")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("at", ["first", "between steps", "without an optimizer"])
def test_inference_mode_leaves_training_as_it_was(
    at: str, way: dict[str, Any], tmp_path: Path
) -> None:
    """Goal: an evaluation under torch.inference_mode may come first, between steps, or alone."""
    plain = seeded(lambda: Model(0), 0)
    expected = list(by_torch(copy.deepcopy(plain)))

    def work(rank: int) -> None:
        model = copy.deepcopy(plain)
        luwu.fully_shard_each(model, Layer)

        def evaluate() -> None:
            with torch.inference_mode():
                model(inputs(0).detach())

        if at == "without an optimizer":
            evaluate()
            evaluate()
            return
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.01)
        if at == "first":
            evaluate()
        follow(model, optimizer, expected, evaluate)

    in_cluster(tmp_path, work, **way)

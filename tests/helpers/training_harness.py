"""Workers in threads, trained through a `FakeNetwork` and, for comparison, in plain torch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.base.errors import StepAborted
from luwu.training.script import run
from luwu.training.script.session import Session
from tests.helpers.fake_nic import WAIT_S_MAX, FakeNetwork, FakeNic


def run_ranks(world_size: int, work: Callable[[int], Any]) -> list[Any]:
    """`work(rank)` of every rank, each in a thread of its own; raises the first error."""
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    ranks = range(world_size)
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


_making = threading.Lock()  # ranks share torch's random generator
Loss = Callable[[nn.Module, int, int, int], torch.Tensor]
"""(model, step, rank, part) -> loss of that rank's batch"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For every test of a module."""
    with alone():
        yield


@contextmanager
def alone() -> Iterator[None]:
    """Ranks are threads already: torch's own would only fight over the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def worker(
    network: FakeNetwork, rank: int = 0, *, device: Any = "cpu", **nic_options: Any
) -> Iterator[Session]:
    """A worker in this thread, from init to finish."""
    nic = FakeNic(network, rank, **nic_options)
    session = luwu.init(nic=nic, device=device)
    try:
        yield session
        if not session.is_finished:
            luwu.finish()
        assert nic.is_closed
    finally:
        session.mover.close()
        nic.close()
        run._here.session = None  # let the next test of this thread begin anew


def train(
    network: FakeNetwork, make: Callable[[], nn.Module], shard: Callable[[nn.Module], object],
    optimizer: Callable[[nn.Module], Any], loss: Loss, *, steps: int, backwards: int = 1,
    before_step: Callable[[nn.Module, Any, int], object] = lambda *_: None, **nic_options: Any,
) -> list[list[float]]:  # fmt: skip
    """Train on all ranks, going back where a step is lost; the losses of each rank."""

    def work(rank: int) -> list[float]:
        losses: dict[int, float] = {}
        with worker(network, rank, **nic_options):
            with _making:
                model = make()
            shard(model)
            optimizer_here = optimizer(model)
            step = optimizer_here.next_step
            while True:
                try:
                    if step == steps:
                        luwu.finish()
                        break
                    for part in range(backwards):
                        value = loss(model, step, rank, part)
                        value.backward()
                        losses[step] = value.item()
                    before_step(model, optimizer_here, step)
                    optimizer_here.step()
                    optimizer_here.zero_grad()
                    step += 1
                except StepAborted as error:
                    step = error.step
        return [losses[k] for k in sorted(losses)]

    results: list[list[float]] = run_ranks(network.world_size, work)
    return results


def reference(
    make: Callable[[], nn.Module], optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    loss: Loss, *, world_size: int, steps: int, backwards: int = 1,
    before_step: Callable[[nn.Module, Any, int], object] = lambda *_: None,
    dtype: torch.dtype | None = None,
) -> Mapping[str, torch.Tensor]:  # fmt: skip
    """The same training in plain torch: gradients added in rank order, divided once. `dtype`: of a
    copy of the weights that forward and backward see; gradients are added in float32."""
    model = make()
    plain = optimizer(model)
    computing = model if dtype is None else copy.deepcopy(model)
    for step in range(steps):
        for seen, master in zip(computing.parameters(), model.parameters(), strict=True):
            seen.data = master.data if dtype is None else master.data.to(dtype)
        total: dict[str, torch.Tensor] = {}
        for part in range(backwards):
            of_part: dict[str, torch.Tensor] = {}
            for rank in range(world_size):
                computing.zero_grad()
                loss(computing, step, rank, part).backward()
                for name, parameter in computing.named_parameters():
                    if parameter.grad is not None:
                        _add(of_part, name, parameter.grad.to(torch.float32))
            for name, gradient in of_part.items():
                _add(total, name, gradient)
        for name, parameter in model.named_parameters():
            parameter.grad = total[name] / world_size if name in total else None
        before_step(model, plain, step)
        plain.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _add(into: dict[str, torch.Tensor], name: str, gradient: torch.Tensor) -> None:
    into[name] = into[name] + gradient if name in into else gradient.clone()


def assert_same_bits(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """All parameters are equal, bit for bit."""
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different, f"parameters differ: {different}"

"""First weights: streamed to the network unit by unit, from values or from the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import StepAborted
from tests.checkpoint.test_load_pretrained import prepare, seeded
from tests.helpers.fake_nic import FakeNetwork, FakeNic
from tests.helpers.small_models import gpt_config, make_gpt, shard_gpt
from tests.helpers.training_harness import assert_same_bits, run_ranks, worker
from workers.gpt import GPT, GPTConfig

CONFIG = gpt_config(layers=2)


def expected(config: GPTConfig) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in make_gpt(config).named_parameters()}


def load(network: FakeNetwork, config: GPTConfig = CONFIG, *, meta: bool) -> None:
    device = "meta" if meta else "cpu"
    prepare(network, lambda: GPT(config), lambda m: luwu.init_weights(m, seeded), device=device)


@pytest.mark.feature("construction on meta, first weights unit by unit")
@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_first_weights(meta: bool, tied: bool) -> None:
    """Goal: whatever the device, the network gets what the function makes; rank 0 alone loads."""
    config = gpt_config(layers=2, tied=tied)
    network = FakeNetwork(2)
    load(network, config, meta=meta)
    assert_same_bits(network.masters(), expected(config))
    assert {rank for verb, rank, *_ in network.log if verb == "load"} == {0}


def test_meta_modules_reset_their_parameters() -> None:
    """Goal: without a function, `reset_parameters` is called, unit by unit."""
    network = FakeNetwork(1)
    with worker(network):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
        luwu.fully_shard(model[0])
        luwu.fully_shard(model)
        torch.manual_seed(5)
        luwu.optim.AdamW(model.parameters())
    torch.manual_seed(5)
    plain = nn.Linear(64, 64)
    assert torch.equal(network.master("0.weight"), plain.weight)
    assert torch.equal(network.master("1.weight"), torch.ones(64))


class Scaled(nn.Module):
    """Owns a parameter and cannot reset it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.register_buffer("offset", torch.arange(64.0), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.scale + self.offset
        return y


def test_who_cannot_be_filled_is_named() -> None:
    """Goal: a module without a way to its first values, and a function that leaves one out."""
    for fill, message in (
        (None, r"Scaled is on the meta device and has no reset_parameters"),
        (lambda module: None, r"buffer offset of Scaled was not filled"),
        (lambda module: module.offset.zero_(), r"parameter scale was not filled"),
    ):
        with pytest.raises(luwu.ConfigError, match=message), worker(FakeNetwork(1)):
            with torch.device("meta"):
                model = Scaled()
            luwu.fully_shard(model)
            if fill is not None:
                luwu.init_weights(model, fill)
            luwu.optim.AdamW(model.parameters())
            model(torch.zeros(64))


def test_buffers_on_meta_are_filled_on_every_rank() -> None:
    """Goal: buffers stay with the worker, so each rank makes its own."""

    def fill(module: Any) -> None:
        module.scale.fill_(2.0)
        module.offset.copy_(torch.arange(64.0))

    network = FakeNetwork(2)

    def work(rank: int) -> float:
        with worker(network, rank):
            with torch.device("meta"):
                model = Scaled()
            luwu.fully_shard(model)
            luwu.init_weights(model, fill)
            luwu.optim.AdamW(model.parameters())
            with torch.no_grad():
                return float(model(torch.ones(64)).sum())

    assert run_ranks(2, work) == [2.0 * 64 + 63 * 32] * 2


def test_load_is_repeated_after_an_abort() -> None:
    """Goal: an attempt that is lost during the load loses the load alone."""
    network = FakeNetwork(2)
    network.fail_at("load", unit=1)
    load(network, meta=True)
    assert network.attempt == 1
    assert_same_bits(network.masters(), expected(CONFIG))


def test_first_weights_are_kept_until_they_are_decided() -> None:
    """I2. Goal: without a function, the values that the model had. A node that had received all of
    them and was killed before they were decided gets them again, and the worker forgets them with
    the first pull. Method: the first pull finds a network that has lost them."""
    network = FakeNetwork(1)
    network.loses_first_weights = True
    network.fail_at("pull")
    with worker(network):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        luwu.fully_shard(model)
        placeholder: Any = model[0].weight
        luwu.optim.AdamW(model.parameters())
        with pytest.raises(StepAborted):
            model(torch.zeros(1, 64))
        assert placeholder.luwu_value is not None
        model(torch.zeros(1, 64))
        assert placeholder.luwu_value is None
    assert network.counts["load"] == 2 * len(network.layout.chunks)
    assert_same_bits(network.masters(), before)


@pytest.mark.feature("construction on meta, first weights unit by unit")
def test_one_unit_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a model on meta is never whole on a worker. Method: whenever a chunk is taken, count
    the parameters that have storage."""
    network = FakeNetwork(1)
    most = 0

    def count(nic: FakeNic, chunks: Any) -> None:
        nonlocal most

        def counted() -> Any:
            nonlocal most
            for entry in chunks:
                real = [p for p in model.parameters() if type(p) is nn.Parameter]
                most = max(most, len(real))
                yield entry

        plain_load(nic, counted())

    plain_load = FakeNic.load
    monkeypatch.setattr(FakeNic, "load", count)
    filled: list[int] = []

    def fill(module: nn.Module) -> None:
        filled.append(sum(p.numel() for p in model.parameters() if type(p) is nn.Parameter))
        seeded(module)

    with worker(network):
        with torch.device("meta"):
            model = GPT(CONFIG)
        shard_gpt(model)
        luwu.init_weights(model, fill)
        luwu.optim.AdamW(model.parameters())
    largest = max(p.numel() for p in GPT(CONFIG).parameters()) * 2
    assert most == 0
    assert max(filled) < largest

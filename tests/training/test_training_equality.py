"""I4: training through the network is plain torch on the mean gradient, bit for bit.

Sizes are multiples of 64 elements, where torch's fused kernels give the same bits for a parameter
alone and as a part of a flat vector.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

import luwu
from luwu.training.devices.weights import WEIGHTS
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import seeded
from tests.helpers.small_models import (
    NETWORK,
    STEPS,
    Block,
    Stack,
    batch,
    compare,
    gpt_config,
    gpt_loss,
    make_gpt,
    make_stack,
    shard,
    shard_gpt,
    square_loss,
)
from tests.helpers.training_harness import worker


@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("optimizer", sorted(NETWORK))
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("eager", [True, False])
def test_training_equals_torch(update: str, optimizer: str, world_size: int, eager: bool) -> None:
    """I4. Goal: same weights after some steps. Method: weights arrive early or late."""
    compare(optimizer=optimizer, update=update, world_size=world_size, eager=eager)


@pytest.mark.feature("reshard_after_forward, set_reshard_after_forward, set_reshard_after_backward")
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("prefetch_units", [0, 1, 5])
def test_resharding_and_prefetch_change_nothing(reshard: bool, prefetch_units: int) -> None:
    """I3, I4. Goal: what is kept or pulled ahead has no influence on the result."""
    network = compare(
        shard_model=functools.partial(shard, reshard_after_forward=reshard),
        update="streaming",
        prefetch_units=prefetch_units,
    )
    uses_count = network.counts["pull"] - network.counts["forget"]
    assert uses_count == 2 * STEPS * (10 if reshard else 5)  # 4 blocks and the root


@pytest.mark.feature("activation checkpointing, reentrant and not")
@pytest.mark.feature("tied weights, across units too")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "nonreentrant"])
@pytest.mark.parametrize("tied", [False, True])
def test_gpt_equals_torch(update: str, checkpointing: str, tied: bool) -> None:
    """I4. Goal: attention, embeddings, tied weights and both kinds of checkpoint."""
    config = gpt_config(checkpointing=checkpointing, tied=tied)
    make = functools.partial(make_gpt, config)
    network = compare(make, shard_gpt, gpt_loss, update=update, steps=3)
    if tied:
        assert "head.weight" not in network.masters()


@pytest.mark.feature("torch.autograd.graph.save_on_cpu")
@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "nonreentrant"])
def test_hooks_on_saved_tensors_get_all_but_weights(checkpointing: str) -> None:
    """I4. Goal: a copy of what backward needs holds no weights, which come and go.
    Method: hooks that copy every tensor, as `save_on_cpu` does on a GPU."""
    packed: list[bool] = []

    def copied(tensor: Tensor) -> Tensor:
        packed.append(tensor in WEIGHTS)
        return tensor.clone()

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        with saved_tensors_hooks(copied, torch.clone):
            return gpt_loss(model, step, rank, part)

    compare(
        functools.partial(make_gpt, gpt_config(checkpointing=checkpointing)), shard_gpt, loss,
        steps=3,
    )  # fmt: skip
    assert len(packed) > 0
    assert not any(packed)


@pytest.mark.feature("bfloat16, float16 on the wire and in compute")
def test_gpt_in_bfloat16_follows_float32_masters() -> None:
    """I4. Goal: bfloat16 on the wire, float32 in the network. Method: torch by hand: compute with
    rounded weights, add the ranks' gradients in float32, update the masters."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    make = functools.partial(make_gpt, gpt_config(dtype=torch.bfloat16))
    compare(
        make, functools.partial(shard_gpt, mp_policy=policy), gpt_loss, steps=3,
        dtype=torch.bfloat16,
    )  # fmt: skip


def test_ragged_sizes_stay_close() -> None:
    """I4. Goal: sizes that are no multiples of 64 differ by the last bit of a vectorised tail at
    most, once a step."""
    make = functools.partial(make_stack, blocks=2, width=33)

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        value: Tensor = model(batch(step, rank, part, width=33)).square().mean()
        return value

    compare(make, loss=loss, world_size=1, rel=1e-5)


@pytest.mark.feature("frozen parameters")
@pytest.mark.feature("parameter groups")
def test_groups_and_frozen_parameters() -> None:
    """Goal: every group has its own hyper-parameters; frozen weights are pulled, never pushed."""

    def make() -> nn.Module:
        model = make_stack()
        model.blocks[1].requires_grad_(False)
        model.first.bias.requires_grad_(False)
        return model

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        return [
            {"params": [p for n, p in trainable if "weight" in n], "lr": 3e-3},
            {"params": [p for n, p in trainable if "bias" in n], "weight_decay": 0.0},
        ]

    network = compare(make, groups=groups)
    frozen_unit = [unit.name for unit in network.layout.units].index("blocks.1")
    assert not [entry for entry in network.log if entry[0] == "push" and entry[4] == frozen_unit]


@pytest.mark.feature("learning rate schedulers")
def test_learning_rate_schedulers_work() -> None:
    """Goal: hyper-parameters count at each step. Method: one of torch's schedulers, both ways."""
    schedulers: dict[int, Any] = {}

    def schedule(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        scheduler = schedulers.get(id(optimizer))
        if scheduler is None:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
            schedulers[id(optimizer)] = scheduler
        elif step:
            scheduler.step()

    compare(steps=5, before_step=schedule)


class Twice(Stack):
    """One block is used twice, another by some ranks only."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.blocks[0](x)
        x = self.blocks[1](x)
        if not getattr(self, "leave_out", False):
            x = self.blocks[2](x)
        x = self.blocks[1](x)
        y: Tensor = self.last(x)
        return y


@pytest.mark.feature("a unit used twice, or not at all")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("absent_on", [(), (1,), (0, 1)])
def test_unit_used_twice_and_absent_unit(update: str, absent_on: tuple[int, ...]) -> None:
    """Goal: a shared unit is pushed once, whole; a unit without a gradient says so."""

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        model.leave_out = rank in absent_on and step != 1
        return square_loss(model, step, rank, part)

    compare(lambda: seeded(lambda: Twice(blocks=3)), loss=loss, update=update)


@pytest.mark.feature("two forwards before one backward")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_two_forwards_before_one_backward(update: str) -> None:
    """Goal: the gradient of a unit is final when both graphs have been run backward."""

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        one = square_loss(model, step, rank, 0)
        other = square_loss(model, step, rank, 1)
        return one + 2 * other

    compare(loss=loss, update=update)


@pytest.mark.feature("activation checkpointing, reentrant and not")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_over_two_units_and_one_unit_twice(update: str, reentrant: bool) -> None:
    """Goal: a region that is recomputed may hold several units, and a unit in several regions."""

    class Regions(Stack):
        def forward(self, x: Tensor) -> Tensor:
            def region(x: Tensor) -> Tensor:
                y: Tensor = self.blocks[1](self.blocks[0](x))
                return y

            x = self.first(x)
            x = checkpoint(region, x, use_reentrant=reentrant)
            x = checkpoint(region, x, use_reentrant=reentrant)
            y: Tensor = self.last(x)
            return y

    compare(lambda: seeded(lambda: Regions(blocks=2)), update=update)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_inside_a_unit(reentrant: bool) -> None:
    """Goal: a part of a unit is recomputed while the unit is pulled."""

    class Inner(Block):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(super().forward, x, use_reentrant=reentrant)
            return y

    def make() -> nn.Module:
        model = Stack(blocks=0)
        model.blocks.extend(Inner() for _ in range(3))
        return model

    compare(lambda: seeded(make), update="streaming")


@pytest.mark.feature("two backwards through one graph")
def test_retained_graph_runs_backward_twice() -> None:
    """Goal: both backwards of one graph are parts of the step."""

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        value = square_loss(model, step, rank, 0)
        value.backward(retain_graph=True)
        return 3 * value

    compare(loss=loss, world_size=1, steps=3)


@pytest.mark.feature("fully_shard on a module or a list of modules")
def test_units_of_several_modules_and_tied_blocks() -> None:
    """Goal: a unit may have several modules; a weight of two units belongs to the root."""

    def make() -> nn.Module:
        model = make_stack()
        model.blocks[3].up.weight = model.blocks[0].up.weight
        return model

    def shard_pairs(model: Any) -> None:
        luwu.fully_shard([model.blocks[0], model.blocks[1]])
        luwu.fully_shard([model.blocks[2], model.blocks[3]])
        luwu.fully_shard(model)

    network = compare(make, shard_pairs, update="streaming")
    layout = network.layout
    tied = next(i for i, p in enumerate(layout.parameters) if p.name == "blocks.0.up.weight")
    assert [unit.name for unit in layout.units if tied in unit.parameters] == ["root"]


@pytest.mark.feature("two forwards before one backward")
def test_two_forwards_then_two_backwards() -> None:
    """Goal: a graph waits while another one runs backward, and its units come back for it."""

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        one = square_loss(model, step, rank, 0)
        other = square_loss(model, step, rank, 1)
        one.backward()
        return 2 * other

    compare(loss=loss, world_size=1)


class TiedOutside(nn.Module):
    """A unit returns its weight, and a view of it, for use outside of it."""

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(64, 64)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            weight = self.table.weight
            return self.table(tokens), weight, {"transposed": weight.t()}

    def __init__(self) -> None:
        super().__init__()
        self.embedding = TiedOutside.Embedding()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        hidden, weight, views = self.embedding((x[:, :4] * 10).long().abs() % 64)
        hidden = self.block(hidden.mean(1))
        y: Tensor = nn.functional.linear(hidden, weight) @ views["transposed"]
        return y


@pytest.mark.feature("a unit that returns its weight")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("eager", [True, False])
def test_a_weight_that_a_unit_returns_is_used_outside(update: str, eager: bool) -> None:
    """I4. Goal: a head that is tied outside of the unit computes with the weight, though the unit
    has freed it, and its gradient is part of the weight's, in every step."""

    def shard_both(model: Any) -> None:
        luwu.fully_shard(model.embedding)
        luwu.fully_shard(model.block)
        luwu.fully_shard(model)

    compare(lambda: seeded(TiedOutside), shard_both, update=update, eager=eager)


@pytest.mark.feature("a unit that returns its weight")
def test_a_returned_weight_outlives_its_unit() -> None:
    """Goal: without a graph too; what the script holds does not change when the unit is freed."""
    with worker(FakeNetwork(1)):
        torch.manual_seed(3)
        model = TiedOutside()
        expected = model.embedding.table.weight.detach().clone()
        luwu.fully_shard(model.embedding)
        luwu.fully_shard(model)
        luwu.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            _, weight, views = model.embedding(torch.arange(4))
        assert torch.equal(weight, expected)
        assert torch.equal(views["transposed"], expected.t())

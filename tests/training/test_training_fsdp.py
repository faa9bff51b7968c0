"""FSDP2's methods, and models that are not a plain stack: the same results, or a refusal."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

import luwu
from luwu.training.script.module import _MEANINGLESS
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded
from tests.helpers.small_models import Block, Stack, batch, compare, make_stack, shard, square_loss
from tests.helpers.training_harness import reference, worker


def trainer(**arguments: Any) -> tuple[Any, luwu.optim.SGD]:
    model = sharded()
    return model, luwu.optim.SGD(model.parameters(), lr=1e-2, **arguments)


# -------------------------------------------------------------------------- weights, by hand


@pytest.mark.feature("unshard and reshard")
@pytest.mark.parametrize("async_op", [False, True])
def test_unshard_and_reshard(async_op: bool) -> None:
    """Goal: the weights are in the module in between, with the values the network has."""
    network = FakeNetwork(1)
    with worker(network):
        model, _ = trainer()
        block = model.blocks[1]
        handle = block.unshard(async_op=async_op)
        if async_op:
            handle.wait()
        expected = network.masters()["blocks.1.up.weight"]
        assert torch.equal(block.up.weight, expected)
        assert block.up.weight.grad is None
        with pytest.raises(luwu.LuwuError, match="in the network"):
            model.blocks[0].up.weight.sum()
        block.reshard()
        with pytest.raises(luwu.LuwuError, match="in the network"):
            block.up.weight.sum()
        block.reshard()  # nothing to do


@pytest.mark.feature("unshard and reshard")
def test_unshard_ahead_of_forward_is_one_pull() -> None:
    """Goal: a forward uses what was asked for; what is not used is forgotten."""
    network = FakeNetwork(1)
    with worker(network):
        model, optimizer = trainer()
        model.blocks[2].unshard(async_op=True)
        square_loss(model, 0, 0, 0).backward()
        optimizer.step()
        pulls = [unit for verb, _, step, _, unit in network.log if (verb, step) == ("pull", 0)]
        assert pulls[0] == 3
        assert len(pulls) == 9  # the root once, blocks twice
        model.blocks[1].unshard(async_op=True)
        model.blocks[1].reshard()
        assert network.log[-1][0] == "forget"
        model.blocks[0].unshard()
        copied = copy.deepcopy(model.blocks[0].up.weight)
        copied.data = 2 * copied.data  # the copy is the script's own


@pytest.mark.feature("forward and backward prefetch")
def test_prefetch_by_hand_asks_ahead() -> None:
    """Goal: the first step, whose order nobody knows, asks for what it was told to."""

    def pulls_count(with_lists: bool) -> list[int]:
        """At the forward of each block."""
        network, counts = FakeNetwork(1, eager=False), []
        with worker(network, prefetch_units=0):
            model, _ = trainer()
            blocks = list(model.blocks)
            for index, block in enumerate(blocks):
                if with_lists:
                    block.set_modules_to_forward_prefetch(blocks[index + 1 : index + 3])
                note = lambda *_: counts.append(network.counts["pull"])  # noqa: E731
                block.norm.register_forward_pre_hook(note)
            with pytest.raises(luwu.ConfigError, match="fully_shard was not called on this"):
                model.set_modules_to_forward_prefetch([nn.Linear(2, 2)])
            model(batch(0, 0, 0))
        return counts

    assert pulls_count(False) == [2, 3, 4, 5]
    assert pulls_count(True) == [4, 5, 5, 5]


@pytest.mark.feature("forward and backward prefetch")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_prefetch_by_hand_changes_no_bit(update: str) -> None:
    """I3, I4."""

    def shard_with_lists(model: Any) -> None:
        shard(model)
        blocks = list(model.blocks)
        for index, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[index + 1 : index + 3])
            block.set_modules_to_backward_prefetch(blocks[:index][::-1][:2])

    compare(shard_model=shard_with_lists, update=update, prefetch_units=1)


def reshard_one_block(model: Any) -> None:
    shard(model)
    model.set_reshard_after_forward(False)
    model.blocks[0].set_reshard_after_forward(True, recurse=False)


def never_reshard(model: Any) -> None:
    shard(model)
    model.set_reshard_after_forward(False)
    model.set_reshard_after_backward(False)


@pytest.mark.feature("reshard_after_forward, set_reshard_after_forward, set_reshard_after_backward")
@pytest.mark.parametrize(
    ("shard_model", "pulls_count", "options"),
    [
        (reshard_one_block, 6, {"update": "at_step"}),
        (reshard_one_block, 6, {"update": "streaming"}),
        (never_reshard, 5, {"backwards": 3}),
    ],
)
def test_resharding_can_be_changed(shard_model: Any, pulls_count: int, options: Any) -> None:
    """I4. Goal: the same bits, and as many pulls per step as the flags say: without resharding at
    all each unit once, whatever is accumulated."""
    network = compare(shard_model=shard_model, steps=3, **options)
    assert network.counts["pull"] - network.counts["forget"] == 2 * 3 * pulls_count


def test_flags_are_flags() -> None:
    """Goal: a misplaced argument is refused where it is given."""
    with worker(FakeNetwork(1)):
        model, _ = trainer()
        for method in (
            model.set_reshard_after_forward,
            model.set_reshard_after_backward,
            model.set_requires_gradient_sync,
            model.set_is_last_backward,
        ):
            with pytest.raises(TypeError, match="True or False, got 1"):
                method(1)


@pytest.mark.feature("methods of FSDP2 that have no meaning here")
@pytest.mark.parametrize("name", sorted(_MEANINGLESS))
def test_methods_that_mean_nothing_are_refused(name: str) -> None:
    """Goal: a script of FSDP2 that calls one is told why."""
    with worker(FakeNetwork(1)):
        model, _ = trainer()
        with pytest.raises(luwu.ConfigError, match=f"{name} means nothing here: "):
            getattr(model, name)(None)


def test_every_method_of_fsdp2_has_an_answer() -> None:
    """Goal: nothing of FSDP2's surface is missing, in any version of torch we support."""
    theirs = {name for name in vars(FSDPModule) if not name.startswith("_")}
    missing = {name for name in theirs if name not in vars(luwu.LuwuModule)}
    assert not missing


@pytest.mark.feature("reset_iter_state")
def test_reset_after_an_error() -> None:
    """Goal: after an error in forward or backward the step is computed anew, with the same bits."""

    def one_step(fails_in: str | None) -> dict[str, Tensor]:
        network = FakeNetwork(1)
        with worker(network):
            model, optimizer = trainer()
            if fails_in is not None:
                what = "forward_pre_hook" if fails_in == "forward" else "full_backward_pre_hook"
                hook = getattr(model.blocks[1], f"register_{what}")(_fail)
                with pytest.raises(ZeroDivisionError):
                    square_loss(model, 5, 0, 0).backward()
                hook.remove()
                with pytest.raises(luwu.ConfigError, match="call it on the root"):
                    model.blocks[0].reset_iter_state()
                model.reset_iter_state()
            while optimizer.next_step == 0:
                with contextlib.suppress(luwu.StepAborted):  # of what was pushed before the error
                    square_loss(model, 0, 0, 0).backward()
                    optimizer.step()
        return network.masters()

    expected = one_step(None)
    for where in ("forward", "backward"):
        found = one_step(where)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def _fail(*args: object) -> None:
    raise ZeroDivisionError


# -------------------------------------------------------------------------- models of other kinds


class Normed(nn.Module):
    """Batch norm has buffers, one of them an integer; dropout draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(F.relu(self.norm(self.first(x))))
        return y


@pytest.mark.feature("buffers that are not float (BatchNorm)")
def test_batch_norm_keeps_its_buffers() -> None:
    """I4. Goal: running statistics are the worker's own, as with FSDP2, and right."""
    seen: list[dict[str, Tensor]] = []

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        value = square_loss(model, step, rank, part)
        if hasattr(model, "luwu_unit"):
            seen.append({name: buffer.clone() for name, buffer in model.named_buffers()})
        return value

    def shard_normed(model: Any) -> None:
        luwu.fully_shard(model.norm)
        luwu.fully_shard(model)

    compare(lambda: seeded(Normed), shard_normed, loss, world_size=1, steps=3)
    assert [int(each["norm.num_batches_tracked"]) for each in seen] == [1, 2, 3]
    model = seeded(Normed)
    model(batch(0, 0, 0))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, seen[0][name])


class Nested(nn.Module):
    """Units inside units, a unit that is used twice, one that is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.ModuleDict({"inner": Block(), "own": nn.Linear(64, 64)})
        self.sometimes = Block()
        self.stack = nn.Sequential(Block(), nn.Sequential(Block(), Block()))

    def forward(self, x: Tensor, use: bool = False) -> Tensor:
        x = self.outer["own"](self.outer["inner"](self.outer["inner"](x)))
        y: Tensor = self.stack(self.sometimes(x) if use else x)
        return y


@pytest.mark.feature("nested units")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_nested_units(update: str) -> None:
    """I4. Goal: a unit in a unit in a unit; the parts first, as FSDP2 asks for."""

    def shard_nested(model: Any) -> None:
        for block in (model.outer["inner"], model.sometimes, model.stack[0], *model.stack[1]):
            luwu.fully_shard(block)
        luwu.fully_shard(model.stack[1])
        luwu.fully_shard(model.stack)
        luwu.fully_shard(model)

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        value: Tensor = model(batch(step, rank, part), use=step % 2 == 1).square().mean()
        return value

    compare(lambda: seeded(Nested), shard_nested, loss, update=update)


@pytest.mark.feature("autocast")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    """I4. Goal: weights travel in float32 and are cast by torch, in forward and its backward."""

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            y = model(batch(step, rank, part))
        return y.float().square().mean()

    compare(loss=loss, steps=3)


@pytest.mark.feature("autocast")
def test_autocast_caches_no_weights() -> None:
    """Goal: a unit used twice in one block of autocast, which keeps cast weights till its end."""

    def loss(model: Any, step: int, rank: int, part: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                model(batch(step, rank, 1))
            y = model(batch(step, rank, part))
        return y.float().square().mean()

    compare(loss=loss, steps=3)


@pytest.mark.feature("ignored_params")
def test_ignored_parameters_stay_with_the_worker() -> None:
    """I4. Goal: a parameter that is ignored stays an ordinary one, trained by torch's optimizer."""
    network = FakeNetwork(1)
    with worker(network):
        model: Any = make_stack(blocks=2)
        kept = model.last.bias
        shard(model, ignored_params=[kept])
        ours = luwu.optim.SGD([p for p in model.parameters() if p is not kept], lr=0.1)
        its_own = torch.optim.SGD([kept], lr=0.1)
        square_loss(model, 0, 0, 0).backward()
        ours.step()
        its_own.step()
        found = kept.detach().clone()
    plain: Any = make_stack(blocks=2)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    square_loss(plain, 0, 0, 0).backward()
    optimizer.step()
    assert torch.equal(found, plain.last.bias)
    assert "last.bias" not in network.masters()
    assert torch.equal(network.masters()["last.weight"], plain.last.weight)


# -------------------------------------------------------------------------- precision


class Recorded(Stack):
    """Keeps the dtypes it saw."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.dtypes = (x.dtype, self.first.weight.dtype, y.dtype)
        return y


@pytest.mark.feature("MixedPrecisionPolicy")
def test_policy_says_what_is_computed_in() -> None:
    """Goal: parameters, inputs and outputs have the dtypes that the policy names."""
    for cast in (True, False):
        with worker(FakeNetwork(1)):
            model: Any = seeded(Recorded)
            policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, output_dtype=torch.float32, cast_forward_inputs=cast
            )
            luwu.fully_shard(model, mp_policy=policy)
            luwu.optim.SGD(model.parameters())
            x = batch(0, 0, 0)
            assert model(x if cast else x.bfloat16()).dtype == torch.float32
            assert model.dtypes == (torch.bfloat16,) * 3


@pytest.mark.feature("MixedPrecisionPolicy")
def test_gradients_may_travel_in_float32(tmp_path: Path) -> None:
    """I4. Goal: bfloat16 compute, float32 gradients: pushes are twice as large, pulls are not, and
    what the worker adds up before it pushes is not rounded."""

    def work(reduce_dtype: torch.dtype | None) -> Any:
        def run(rank: int) -> tuple[int, int]:
            model: Any = make_stack(blocks=2)
            shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce_dtype))
            optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2)
            for step in range(2):
                for part in range(2):
                    model.set_requires_gradient_sync(part == 1)
                    square_loss(model, step, rank, part).backward()
                optimizer.step().wait()
            session = luwu.session()
            units = range(len(session.units))
            pulled = sum(session.layout.unit_wire_bytes(unit) for unit in units)
            return session.nic.counters.push_bytes, pulled

        return run

    expected = reference(
        lambda: make_stack(blocks=2),
        lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, fused=True),
        lambda model, step, rank, part: model(batch(step, rank, part).bfloat16()).square().mean(),
        world_size=1, steps=2, backwards=2, dtype=torch.bfloat16,
    )  # fmt: skip
    wide = in_cluster(tmp_path / "wide", work(torch.float32))
    narrow = in_cluster(tmp_path / "narrow", work(None))
    assert wide.digest == digest_of(expected) != narrow.digest
    assert wide.results[0] == (2 * narrow.results[0][0], narrow.results[0][1])

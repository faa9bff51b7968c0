"""I5 and design 6: what of the model is on a worker, where it lies, and in which order it comes."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.base.events import Recorder
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster, sharded, train_steps
from tests.helpers.small_models import (
    Block,
    Stack,
    gpt_config,
    gpt_loss,
    make_gpt,
    make_stack,
    shard,
    shard_gpt,
    square_loss,
)
from tests.helpers.training_harness import worker


@pytest.mark.parametrize("prefetch_units", [0, 2])
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "nonreentrant"])
def test_memory_bound(prefetch_units: int, update: str, checkpointing: str) -> None:
    """I5. Goal: window, one unit and the root at most, between steps and for the next one too; no
    optimizer state; nothing arrives ahead of who waits for it. The root is smaller than a block."""
    network = FakeNetwork(1)
    with worker(network, prefetch_units=prefetch_units) as session:
        model = make_gpt(gpt_config(layers=6, checkpointing=checkpointing))
        shard_gpt(model)
        optimizer: Any = luwu.optim.AdamW(model.parameters(), update=update)
        for step in range(4):
            gpt_loss(model, step, 0, 0).backward()
            assert session.pulls.bytes_count.now <= prefetch_units * session.model.unit_bytes_max
            optimizer.step()
            with torch.no_grad():
                gpt_loss(model, step, 0, 1)
        bound = (prefetch_units + 2) * session.model.unit_bytes_max
        assert session.pulls.bytes_count.peak <= bound


def test_prefetch_follows_the_order_of_the_last_step() -> None:
    """Goal: from the second step on every pull is under way before it is needed, in the order of
    use: forward, then backward in reverse."""
    network = FakeNetwork(1)
    with worker(network) as session:
        model = sharded()
        optimizer = luwu.optim.AdamW(model.parameters())
        early = []
        for step in range(3):
            square_loss(model, step, 0, 0).backward()
            optimizer.step()
            early.append((session.pulls.prefetcher.use_count, session.pulls.prefetcher.early_count))
        assert session.pulls.early_ratio == 1.0  # an eager network: every answer is early
    pulls = [(step, unit) for verb, _, step, _, unit in network.log if verb == "pull"]
    for step in range(3):
        assert [unit for at, unit in pulls if at == step] == [0, 1, 2, 3, 4, 4, 3, 2, 1]
    assert early == [(9, 9), (18, 18), (27, 27)]
    # After the last commit: as many as there were at once, the root, one unit and the window.
    assert [unit for at, unit in pulls if at == 3] == [0, 1, 2, 3]
    assert network.counts["forget"] == 4  # at finish


@pytest.mark.parametrize("reshard", [True, False], ids=["freed", "kept"])
def test_pulls_of_the_next_step_begin_while_a_streaming_backward_ends(reshard: bool) -> None:
    """I5. Goal: what the next forward uses is asked for before `step()`, ahead of the gradient of
    the same unit, in memory that the step has had once; an order that changes wastes it and no
    more. Method: the log of pulls and pushes of the third step."""
    network = FakeNetwork(1)
    with worker(network) as session:
        model = make_stack(blocks=6)
        shard(model, reshard_after_forward=reshard)
        optimizer = luwu.optim.AdamW(model.parameters(), update="streaming")
        for step in range(3):
            square_loss(model, step, 0, 0).backward()
            if step == 2:
                network.log.append(("commit", 0, 2, 0, -1))
            optimizer.step()
        peak = session.pulls.bytes_count.peak
    assert peak <= (4 if reshard else 7) * session.model.unit_bytes_max
    at_commit = network.log.index(("commit", 0, 2, 0, -1))
    log = [(verb, step, unit) for verb, _, step, _, unit in network.log[:at_commit]]
    early = [unit for verb, step, unit in log if (verb, step) == ("pull", 3)]
    assert early == ([3, 2, 1, 0] if reshard else [6, 5, 4, 3, 2, 1, 0])
    for unit in early:
        assert log.index(("pull", 3, unit)) < log.index(("push", 2, unit))


def test_what_is_asked_for_ahead_may_come_in_shared_memory() -> None:
    """Goal: a unit whose weights were copied in this step may be read in place in the next; else it
    would be copied for ever. Method: look at what is asked before each commit."""
    with worker(FakeNetwork(1)) as session:
        model = sharded(lambda: Stack(blocks=3))
        optimizer = luwu.optim.AdamW(model.parameters(), update="streaming")
        pull, asked = session.nic.pull, []

        def looking(step: int, *rest: Any, in_place: bool) -> Any:
            asked.append((step - session.step, in_place))
            return pull(step, *rest, in_place=in_place)

        session.nic.pull = looking
        for step in range(2):
            square_loss(model, step, 0, 0).backward()
            optimizer.step()
    assert (1, True) in asked
    assert (1, False) not in asked
    assert (0, False) in asked  # for backward, after forward copied it


def test_unforeseen_use_gives_up_what_was_prefetched() -> None:
    """Goal: when the order changes, the memory bound and the weights hold. Method: a block is
    left out, then used again."""
    network = FakeNetwork(1, eager=False)
    with worker(network) as session:
        model = sharded(lambda: Stack(blocks=5))
        optimizer = luwu.optim.AdamW(model.parameters())
        blocks = list(model.blocks)
        for step, order in enumerate(([0, 1, 2, 3, 4], [0, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2])):
            del model.blocks[:]
            model.blocks.extend(blocks[i] for i in order)
            square_loss(model, step, 0, 0).backward()
            optimizer.step()
        assert network.counts["forget"] > 0
        assert session.pulls.bytes_count.peak <= 4 * session.model.unit_bytes_max
        del model.blocks[:]
        model.blocks.extend(blocks)


def test_part_of_a_pull_counts_uses() -> None:
    """Goal: pulls of a unit within a step are numbered by use; one given up is not a use."""
    network = FakeNetwork(1)
    with worker(network):
        model = sharded(lambda: Stack(blocks=2))
        optimizer = luwu.optim.AdamW(model.parameters())
        for step in range(2):
            for part in range(2):
                square_loss(model, step, 0, part).backward()
            optimizer.step()
    asked = [(verb, step, unit, part) for verb, _, step, part, unit in network.log]
    parts = [entry[3] for entry in asked if entry[:3] == ("pull", 1, 1)]
    assert parts == [0, 1, 2, 3]


def test_gradient_leaves_as_soon_as_it_is_final() -> None:
    """Goal: a block is pushed before the backward of the block before it needs its weights."""
    network = FakeNetwork(1, eager=True)
    with worker(network, prefetch_units=0):
        model = sharded(lambda: Stack(blocks=3))
        optimizer = luwu.optim.AdamW(model.parameters(), update="streaming")
        square_loss(model, 0, 0, 0).backward()
        optimizer.step()
    calls = [(verb, unit) for verb, _, _, _, unit in network.log if verb in ("pull", "push")]
    assert calls == [
        ("pull", 0), ("pull", 1), ("pull", 2), ("pull", 3),
        ("pull", 3), ("push", 3), ("pull", 2), ("push", 2), ("pull", 1), ("push", 1), ("push", 0),
    ]  # fmt: skip


def test_spans_are_recorded(tmp_path: Any) -> None:
    """Goal: a timeline shows waiting and computing of each unit."""
    network = FakeNetwork(1, eager=False)
    with worker(network) as session:
        path = tmp_path / "events.jsonl"
        session.nic.recorder = Recorder(role="worker", path=path, printed=None)
        model = sharded(lambda: Stack(blocks=2))
        optimizer = luwu.optim.AdamW(model.parameters())
        square_loss(model, 0, 0, 0).backward()
        optimizer.step()
        session.nic.recorder.close()
    rows = [json.loads(line) for line in path.read_text().splitlines() if "end_ns" in line]
    spans = {(row["name"], row["unit"]) for row in rows}
    units = {"root", "blocks.0", "blocks.1"}
    assert spans == {
        (name, unit) for name in ("pull_wait", "forward", "backward", "flatten") for unit in units
    }
    assert all(row["start_ns"] <= row["end_ns"] and row["step"] == 0 for row in rows)


@pytest.mark.feature("only the root is a unit")
def test_one_unit_is_said() -> None:
    """Goal: who forgot the blocks hears how much is in memory at once, and what to call."""
    for blocks in (0, 2):
        with worker(FakeNetwork(1)) as session:
            printed = io.StringIO()
            session.nic.recorder = Recorder(role="worker", printed=printed)
            model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
            for block in model[:blocks]:
                luwu.fully_shard(block)
            luwu.fully_shard(model)
            luwu.optim.AdamW(model.parameters())
        said = printed.getvalue()
        if blocks:
            assert "one_unit" not in said
        else:
            assert 'WARNING worker.one_unit unit=root weights="32.50 KiB"' in said
            assert "luwu.fully_shard_each" in said


def test_output_views_may_not_be_changed_in_place() -> None:
    """Goal: the hook that pulls a unit before its backward cannot be lost in silence."""

    class Viewing(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).view(-1, 64)

    with worker(FakeNetwork(1)):
        model = nn.Sequential(Viewing(), Viewing())
        luwu.fully_shard(model[0])
        luwu.fully_shard(model)
        luwu.optim.AdamW(model.parameters())
        model(torch.ones(2, 64, requires_grad=True)).sum().backward()
        with pytest.raises(RuntimeError, match="modified inplace"):
            model[0](torch.ones(2, 64)).add_(1)


@pytest.mark.feature("register_forward_method")
def test_other_methods_can_be_registered() -> None:
    """Goal: a method other than forward finds the weights, if it is registered."""

    class Model(nn.Linear):
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight, self.bias)

    with worker(FakeNetwork(1)):
        model = luwu.fully_shard(Model(64, 64))
        optimizer = luwu.optim.AdamW(model.parameters())
        with pytest.raises(luwu.LuwuError, match="register_forward_method"):
            model.generate(torch.ones(1, 64))
        luwu.register_forward_method(model, "generate")
        model.generate(torch.ones(1, 64)).sum().backward()
        assert optimizer.step().applied


def test_calls_of_the_training_thread(tmp_path: Path) -> None:
    """Goal: a worker's Python stays out of the way of its compute: at most 350 calls a unit and
    step, where FSDP2 makes 2,400, whatever the number of units."""
    blocks, steps = 16, 3

    def work(rank: int) -> int:
        model = sharded(lambda: Stack(blocks=blocks))
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3)
        train_steps(model, optimizer, 0, 3)
        calls = Counter[str]()
        sys.setprofile(lambda frame, event, _: calls.update([event]))
        try:
            train_steps(model, optimizer, 3, 3 + steps)
        finally:
            sys.setprofile(None)
        return calls["call"]

    (count,) = in_cluster(tmp_path, work).results
    assert count / blocks / steps <= 350

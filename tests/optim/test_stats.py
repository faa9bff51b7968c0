"""Statistics: norms of gradient, weights and update per parameter, made in the update pass.

What is measured is that of one process with plain torch. The gradients that are compared have the
same bits (two ranks: a division by two), and so have the weights; norms are added in float64, in
another order, so 1e-12 of the norm is left for rounding. An update is the difference of two float32
in float32: exact here, where weights do not double in a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from luwu.base.errors import StateError
from luwu.nic.reader import FieldRead
from luwu.training.script.state_calls import StepStats, read_stats
from luwu.wire.statistics import STATS, stats_bytes
from tests.helpers.real_training import MIB, in_cluster, seeded, sharded
from tests.helpers.small_models import Block, Stack, batch

pytestmark = pytest.mark.feature("luwu.stats")

STEPS = 3
FULL = StateDictOptions(full_state_dict=True)
HYPER: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1}
Norms = dict[str, tuple[float, float, float]]


def make() -> Any:
    return seeded(lambda: Stack(blocks=2))


def one_step(model: Any, optimizer: Any, step: int, rank: int) -> Any:
    model(batch(step, rank, 0)).square().mean().backward()
    return optimizer.step()


def norms(stats: StepStats | None) -> Norms:
    assert stats is not None
    return {name: (s.grad_norm, s.weight_norm, s.update_norm) for name, s in stats.items()}


def norm_of(tensor: Tensor) -> float:
    return math.sqrt(math.fsum(tensor.double().square().flatten().tolist()))


def assert_near(found: Norms, expected: Norms, rel: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=rel), name


@functools.cache
def plain(max_norm: float | None) -> list[Norms]:
    """Of each step of two ranks, in plain torch."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), **HYPER, fused=True)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            model(batch(step, rank, 0)).square().mean().backward()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        grads = {name: norm_of(p.grad.div_(2)) for name, p in model.named_parameters()}
        whole = math.sqrt(math.fsum(norm**2 for norm in grads.values()))
        if max_norm is not None:
            assert whole > max_norm
            for p in model.parameters():
                p.grad.mul_(max_norm / (whole + 1e-6))
        optimizer.step()
        after = {name: p.detach() for name, p in model.named_parameters()}
        found.append({
            name: (grads[name], norm_of(now), norm_of(now - before[name]))
            for name, now in after.items()
        })  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("update", "max_norm"), [("at_step", None), ("at_step", 0.1), ("streaming", None)]
)
def test_norms_are_those_of_plain_torch(
    update: str, max_norm: float | None, tmp_path: Path
) -> None:
    """I4. Goal: gradient before clipping, weights after the step, and the update, of every
    parameter in every step; together the gradients are the norm that `step()` returns. (Of every
    kernel: `kernels/test_stats_pieces.py`.)"""

    def work(rank: int) -> list[Norms]:
        model = sharded(make)
        ours = luwu.optim.AdamW(
            model.parameters(), **HYPER, update=update, stats_every=1, max_grad_norm=max_norm
        )
        found = []
        for step in range(STEPS):
            result = one_step(model, ours, step, rank)
            stats = luwu.stats()
            assert stats is not None
            assert stats.step == step
            whole = math.sqrt(math.fsum(each.grad_norm**2 for each in stats.values()))
            assert whole == pytest.approx(result.grad_norm, rel=1e-14)
            found.append(norms(stats))
        return found

    first, second = in_cluster(tmp_path, work, world_size=2).results
    assert first == second
    for found, expected in zip(first, plain(max_norm), strict=True):
        assert_near(found, expected)


@functools.cache
def measured(directory: Path, **changes: Any) -> tuple[list[Any], str]:
    """Statistics of each step, and the digest at the end."""
    update = changes.pop("update", "at_step")

    def work(rank: int) -> list[Any]:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update, stats_every=1)
        found = []
        for step in range(STEPS):
            one_step(model, optimizer, step, rank)
            found.append(luwu.stats())
        return found

    if changes.pop("on_disk", False):
        changes["state"] = directory / "state"
    ranks = in_cluster(directory, work, world_size=2, **changes)
    assert ranks.results[0] == ranks.results[1]
    return ranks.results[0], ranks.digest


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str]:
    return measured(tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_bytes": 64 * 1024},
        {"has_switch": False, "chunk_bytes": 32 * 1024},
        {"on_disk": True, "memory_budget_bytes": 4 * MIB},
        {"on_disk": True, "chunk_bytes": 32 * 1024, "extent_chunks": 4},
        {"on_disk": True, "transport": "shm", "update": "streaming"},
        {"has_switch": False, "update": "streaming", "transport": "ipc"},
        {"kernel": "portable", "chunk_bytes": 32 * 1024},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_statistics_depend_on_values_alone(
    changes: dict[str, Any], expected: tuple[list[Any], str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Goal: bit for bit the same whatever chunks, extents, store, transport, kernel and order."""
    changes = dict(changes)
    if changes.pop("kernel", "") == "portable":  # no compiler, and nothing that it made before
        monkeypatch.setenv("PATH", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert measured(tmp_path, **changes) == expected


class Odd(nn.Module):
    """Tied weights, a frozen parameter, sizes that leave padding, and a block not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(70, 70)
        self.block, self.spare = Block(), Block()
        self.last = nn.Linear(70, 70, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(70), requires_grad=False)

    def forward(self, x: Tensor, is_spare_used: bool) -> Tensor:
        x = self.first(x) * self.frozen
        x = torch.cat([self.block(x[:, :64]), x[:, 64:]], 1)
        if is_spare_used:
            x = torch.cat([self.spare(x[:, :64]), x[:, 64:]], 1)
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_statistics_of_an_odd_model(dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Goal: tied parameters once; frozen ones, and those without a gradient, not at all; padding
    does not count (with eps=0 it is not a number); ranks of unequal weight; a loss scale.
    Method: weights and updates against the state dicts around each step, gradients as a whole."""

    def work(rank: int) -> None:
        model: Any = seeded(Odd)
        given = {} if dtype is None else {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype)}
        luwu.fully_shard_each(model, Block, **given)
        trained = [p for p in model.parameters() if p.requires_grad]
        eps = 1e-8 if dtype else 0.0  # rounded gradients can be zero
        optimizer = luwu.optim.AdamW(trained, lr=1e-3, eps=eps, loss_scale=8.0, stats_every=1)
        luwu.set_gradient_weight(1.0 + 2 * rank)
        before = luwu.get_model_state_dict(model, options=FULL)
        for step in range(2):
            loss = model(batch(step, rank, 0, width=70), is_spare_used=step == 1).square().mean()
            optimizer.scale(loss).backward()
            result = optimizer.step()
            after = luwu.get_model_state_dict(model, options=FULL)
            stats = luwu.stats()
            assert stats is not None
            names = {n for n, _ in model.named_parameters() if step or "spare" not in n}
            assert stats.keys() == names - {"frozen"}
            for name, found in stats.items():
                assert found.weight_norm == pytest.approx(norm_of(after[name]), rel=1e-12)
                change = norm_of(after[name] - before[name])
                assert found.update_norm == pytest.approx(change, rel=1e-12)
            whole = math.sqrt(math.fsum(found.grad_norm**2 for found in stats.values()))
            assert whole == pytest.approx(result.grad_norm, rel=1e-14)
            before = after

    in_cluster(tmp_path, work, world_size=2)


# -------------------------------------------------------------------------- which step it is


def test_only_steps_that_ask_are_measured(tmp_path: Path) -> None:
    """Goal: None at first; then the last step whose number `stats_every` divides, also after it was
    changed; what was measured stays until the next."""

    def work(rank: int) -> list[Any]:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2, stats_every=2)
        assert luwu.stats() is None
        assert not luwu.session().progress.is_begun, "nothing was sent for it"
        found = []
        for step in range(7):
            if step == 4:
                optimizer.stats_every = 5
            if step == 6:
                optimizer.stats_every = None
                assert optimizer.stats_every is None
            one_step(model, optimizer, step, rank)
            stats = luwu.stats()
            assert stats is not None
            found.append(stats.step)
        return found

    found = in_cluster(tmp_path, work, world_size=2).results
    assert found == [[0, 0, 2, 2, 2, 5, 5]] * 2


def test_a_reader_keeps_the_statistics_it_opened(tmp_path: Path) -> None:
    """Goal: what a reader sees is of one step, whatever is measured meanwhile; one that opened
    before any step was measured is told so."""

    def work(rank: int) -> None:
        model = sharded(make)
        optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2, stats_every=1)
        memory = memoryview(bytearray(stats_bytes(1)))
        with luwu.session().open_reader() as reader:
            assert reader.facts.measured_step is None
            one_step(model, optimizer, 0, rank).wait()
            with pytest.raises(StateError, match="no step was measured"):
                reader.read([FieldRead(0, STATS, memory)])
        with luwu.session().open_reader() as reader:
            before = luwu.stats()
            one_step(model, optimizer, 1, rank).wait()
            assert reader.facts.measured_step == 0
            assert read_stats(reader) == before
            after = luwu.stats()
        assert after is not None
        assert after.step == 1
        assert after != before

    in_cluster(tmp_path, work)


@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_lost_and_skipped_steps_leave_no_statistics(update: str, tmp_path: Path) -> None:
    """Goal: of an attempt that was given up nothing is seen: the replay's batch counts; a step that
    is skipped leaves the statistics of the step before it."""
    batches = {0: 0, 1: 7, 2: 2}  # step 1 is computed with the batch of another step

    def of_batches(model: Any, optimizer: Any, step: int) -> None:
        model(batch(batches[step], 0, 0)).square().mean().backward()

    def work(rank: int) -> tuple[Norms, int]:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update, stats_every=1)
        of_batches(model, optimizer, 0)
        optimizer.step().wait()
        of_batches(model, optimizer, 2)
        with pytest.raises(luwu.StepAborted):
            optimizer.zero_grad()
            of_batches(model, optimizer, 2)
        of_batches(model, optimizer, 1)
        optimizer.step()
        found = luwu.stats()
        (model(batch(2, 0, 0)).square().mean() * math.inf).backward()
        result = optimizer.step()
        skipped = luwu.stats()
        assert not result.applied
        assert skipped == found
        assert skipped is not None
        return norms(found), skipped.step

    def straight(rank: int) -> Norms:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update, stats_every=1)
        for step in range(2):
            of_batches(model, optimizer, step)
            optimizer.step()
        return norms(luwu.stats())

    found, step = in_cluster(tmp_path, work).results[0]
    assert step == 1
    assert found == in_cluster(tmp_path / "straight", straight).results[0]


def test_a_node_that_was_started_again_has_none(tmp_path: Path) -> None:
    """Goal: a resumed run says None until a measured step is decided, which is the next that
    `stats_every` divides."""

    def work(first: int, last: int) -> Callable[[int], list[int | None]]:
        def run(rank: int) -> list[int | None]:
            model = sharded(make)
            optimizer = luwu.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, stats_every=2)
            assert optimizer.next_step == first
            found = [luwu.stats()]
            for step in range(first, last):
                one_step(model, optimizer, step, rank)
                found.append(luwu.stats())
            return [None if each is None else each.step for each in found]

        return run

    state = tmp_path / "state"
    assert in_cluster(tmp_path, work(0, 1), state=state).results == [[None, 0]]
    resumed = in_cluster(tmp_path, work(1, 3), state=state, resume=True)
    assert resumed.results == [[None, None, 2]]


# -------------------------------------------------------------------------- refusals


def test_mistakes_are_refused(tmp_path: Path) -> None:
    """Goal: a rule that is none, statistics nobody asked for, a rule changed too late; each says
    what to do."""

    def work(rank: int) -> None:
        model = sharded(make)
        for wrong in (0, -1, True, 2.5, "2"):
            with pytest.raises(luwu.ConfigError, match="whole number of steps"):
                luwu.optim.AdamW(model.parameters(), stats_every=wrong)  # type: ignore[arg-type]
        optimizer = luwu.optim.AdamW(model.parameters(), update="streaming")
        with pytest.raises(luwu.ConfigError, match="whole number of steps"):
            optimizer.stats_every = 0
        with pytest.raises(luwu.ConfigError, match="stats_every=100"):
            luwu.stats()
        one_step(model, optimizer, 0, rank)
        with pytest.raises(luwu.ConfigError, match="stats_every=100"):
            luwu.stats()
        model(batch(1, rank, 0)).square().mean().backward()
        optimizer.stats_every = 1
        with pytest.raises(luwu.StepOrderError, match="changed after its backward began"):
            optimizer.step()
        optimizer.stats_every = None
        optimizer.step()

    in_cluster(tmp_path, work)
    with pytest.raises(luwu.ConfigError, match=r"luwu\.init"):
        luwu.stats()

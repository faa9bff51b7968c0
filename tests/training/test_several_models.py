"""Several models in one session: trained in turn, or frozen beside; none with an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import luwu
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster, seeded
from tests.helpers.small_models import Block, Stack, batch
from tests.helpers.training_harness import assert_same_bits, worker
from tests.optim.test_several_optimizers import Critic, compete, plain_competition


class Teacher(Stack):
    """A network of the same kind under a name of its own."""


def shard(*models: nn.Module) -> None:
    for model in models:
        luwu.fully_shard_each(model, Block)


def distil(student: Any, teacher: Any, optimizer: Any, through: bool) -> None:
    """Three steps; with `through`, gradients pass the teacher on their way to the student."""
    for step in range(3):
        x = batch(step, 0, 0)
        optimizer.zero_grad()
        if through:
            loss = teacher(student(x)).square().mean()
        else:
            with torch.no_grad():
                wanted = teacher(x)
            loss = (student(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()


@pytest.mark.feature("a frozen model beside the trained one")
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("teacher_first", [False, True])
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_a_teacher_trains_a_student_as_with_torch(
    through: bool, teacher_first: bool, update: str, tmp_path: Path
) -> None:
    """I1. Goal: the student's weights are torch's, bit for bit, and the teacher's stay; a state
    dict of either has its own names; the second step foresees what the first one used."""

    def work(rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        student, teacher = seeded(Stack), seeded(Teacher, 8).requires_grad_(False)
        shard(*((teacher, student) if teacher_first else (student, teacher)))
        optimizer = luwu.optim.SGD(student.parameters(), lr=0.1, update=update)
        names = [parameter.name for parameter in luwu.session().layout.parameters]
        assert names[0] == "first.weight"
        assert "Teacher.first.weight" in names
        distil(student, teacher, optimizer, through)
        assert len(luwu.session().units) == 2 * (len(student.blocks) + 1)
        return luwu.get_model_state_dict(student), luwu.get_model_state_dict(teacher)

    found, untouched = in_cluster(tmp_path, work).results[0]
    student, teacher = seeded(Stack), seeded(Teacher, 8).requires_grad_(False)
    distil(student, teacher, torch.optim.SGD(student.parameters(), lr=0.1), through)
    assert_same_bits(found, student.state_dict())
    assert_same_bits(untouched, teacher.state_dict())


@pytest.mark.feature("a frozen model beside the trained one")
def test_each_model_has_first_weights_of_its_own(tmp_path: Path) -> None:
    """Goal: files, a function that fills, and values: none is taken for another model's."""
    of_files = seeded(Teacher, 9).state_dict()
    (tmp_path / "files").mkdir()
    save_file(of_files, tmp_path / "files" / "model.safetensors")

    def fill(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 0.25)

    def work(rank: int) -> tuple[dict[str, Tensor], ...]:
        with torch.device("meta"):
            student, read = Stack(), Teacher().requires_grad_(False)
        kept = seeded(Teacher, 8).requires_grad_(False)
        shard(read, kept, student)
        luwu.init_weights(student, fill)
        luwu.load_pretrained(read, tmp_path / "files")
        luwu.optim.SGD(student.parameters(), lr=0.1)
        with torch.no_grad():
            student(batch(0, 0, 0))
        names = {parameter.name for parameter in luwu.session().layout.parameters}
        assert {"first.weight", "Teacher.first.weight", "Teacher_2.first.weight"} <= names
        return tuple(luwu.get_model_state_dict(model) for model in (student, read, kept))

    filled, read, kept = in_cluster(tmp_path, work).results[0]
    assert all(bool((value == 0.25).all()) for value in filled.values())
    assert_same_bits(read, of_files)
    assert_same_bits(kept, seeded(Teacher, 8).state_dict())


@pytest.mark.feature("several trained models in one run")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_two_models_are_trained_in_turn_as_with_torch(update: str, tmp_path: Path) -> None:
    """I1, I4. Goal: the weights of two optimizers of torch, bit for bit, also after a resume; each
    parameter counts its own steps. Method: AdamW; nodes with and without replicas."""
    plain, judge = plain_competition([0])

    def work(first: int, last: int) -> Callable[[int], tuple[Any, ...]]:
        def of_rank(rank: int) -> tuple[Any, ...]:
            maker, critic = seeded(Stack), seeded(Critic, 8)
            shard(maker, critic)
            optimizer = luwu.optim.AdamW(
                [{"params": maker.parameters()}, {"params": critic.parameters(), "lr": 2e-3}],
                lr=1e-3, update=update,
            )  # fmt: skip
            assert optimizer.next_step == 2 * first
            compete(maker, critic, [0], lambda _: optimizer.step(), steps=range(first, last))
            state = luwu.get_optimizer_state_dict(maker, optimizer).get("state", {})
            counts = {float(each["step"]) for each in state.values()}
            return counts, luwu.get_model_state_dict(maker), luwu.get_model_state_dict(critic)

        return of_rank

    state = tmp_path / "state"
    before = in_cluster(tmp_path / "a", work(0, 2), state=state).results[0]
    after = in_cluster(tmp_path / "b", work(2, 4), state=state, resume=True).results[0]
    assert (before[0], after[0]) == ({2.0}, {4.0})
    whole = in_cluster(
        tmp_path / "c", work(0, 4), optimizer_nodes=2, replicas=2, chunk_bytes=16 * 1024
    ).results[0]
    for _, found, of_critic in (after, whole):
        assert_same_bits(found, plain.state_dict())
        assert_same_bits(of_critic, judge.state_dict())


def test_a_rank_without_samples_freezes_too(tmp_path: Path) -> None:
    """Goal: what a script freezes counts for a rank that has no forward in the step. (The step was
    rejected: the ranks had frozen other parameters.)"""

    def work(rank: int) -> None:
        model = seeded(Stack)
        shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model.blocks.requires_grad_(step != 1)
            if rank == 0:
                model(batch(step, 0, 0)).square().mean().backward()
            else:
                luwu.empty_backward()
            optimizer.step()

    in_cluster(tmp_path, work, world_size=2)


def test_two_models_of_one_class_that_are_trained_are_refused() -> None:
    """Goal: where blocks were sharded and the model around them was forgotten, it is said."""
    with worker(FakeNetwork(1)):
        first, second = seeded(Stack), seeded(Stack)
        shard(first, second)
        with pytest.raises(luwu.ConfigError, match=r"no unit contains.*another class"):
            luwu.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with worker(FakeNetwork(1)):
        model = seeded(Stack)
        for block in model.blocks:
            luwu.fully_shard(block)
        with pytest.raises(luwu.ConfigError, match=r"call luwu\.fully_shard\(model\) on the model"):
            luwu.optim.SGD(model.blocks.parameters(), lr=0.1)


def test_a_parameter_of_two_models_is_refused() -> None:
    """Goal: one unit contains every module that a parameter is in, or its name is said."""
    with worker(FakeNetwork(1)):
        student, teacher = seeded(Stack), seeded(Teacher).requires_grad_(False)
        teacher.first.weight = student.first.weight.requires_grad_(False)
        shard(student)
        luwu.fully_shard(teacher)
        with pytest.raises(luwu.ConfigError, match=r"first\.weight is in two models"):
            luwu.optim.SGD((p for p in student.parameters() if p.requires_grad), lr=0.1)


@pytest.mark.feature("a model used without an optimizer")
@pytest.mark.parametrize("is_graph_made", [False, True])
def test_a_forward_before_any_optimizer(is_graph_made: bool, tmp_path: Path) -> None:
    """Goal: a script without an optimizer gets what torch computes, on every rank; unshard too; an
    optimizer that is made afterwards, and a backward, say what to do."""

    def work(rank: int) -> Tensor:
        model = seeded(Stack, 7 if rank == 0 else 8)
        shard(model)
        with torch.set_grad_enabled(is_graph_made):
            model.unshard()
            found: Tensor = model(batch(0, 0, 0))
        if is_graph_made:
            with pytest.raises(luwu.ConfigError, match="SGD before the first forward"):
                found.sum().backward()
        with pytest.raises(luwu.ConfigError, match="make the optimizer before the first forward"):
            luwu.optim.SGD(model.parameters(), lr=0.1)
        return found.detach()

    expected = seeded(Stack)(batch(0, 0, 0)).detach()
    for found in in_cluster(tmp_path, work, world_size=2).results:
        assert torch.equal(found, expected)


@pytest.mark.feature("a model without parameters")
def test_a_model_without_parameters() -> None:
    """Goal: it computes, and nobody joins a job for it."""
    with worker(FakeNetwork(1)):
        model = nn.Sequential(nn.ReLU(), nn.Flatten())
        luwu.fully_shard(model)
        x = torch.linspace(-1, 1, 4, requires_grad=True).view(1, 4)
        assert torch.equal(model(x), x.relu())
        model(x).sum().backward()
        assert not luwu.session().is_final
        luwu.finish()


def test_a_model_that_was_never_used_is_finished_at_once() -> None:
    """Goal: a script that shards a model and ends, without an optimizer or a forward, has joined no
    job, and waits for nobody. (It waited for a minute, and failed.)"""
    luwu.init_local(memory_budget="64MiB")
    luwu.fully_shard(nn.Linear(4, 2))
    nic = luwu.session().nic
    luwu.finish()
    assert nic.is_closed

"""Workers that compute with weights where the node wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.nic.shell import Nic
from luwu.protocol.actions import PARENT
from luwu.transport.interface import Delivery
from luwu.wire.altered import ASKED_MAX
from luwu.wire.codec import encode
from luwu.wire.messages import Pull, Weights
from switch_emu.process.places import WeightsPlaces
from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.local_job import Job, Worker, cluster_for, make_layout
from tests.helpers.real_training import MIB, Trained, in_cluster, seeded

STEPS = 4


def train(
    directory: Path, make: Callable[[], nn.Module], *, has_switch: bool, update: str = "streaming",
    world_size: int = 2, transport: str = "shm", kind: str = "AdamW", **named: Any,
) -> Trained:  # fmt: skip
    """A few steps; of each rank, the weights that it held at most and the bytes that it pulled."""

    def work(rank: int) -> tuple[int, int]:
        model = luwu.fully_shard_each(seeded(make), nn.Linear)
        make_optimizer = getattr(luwu.optim, kind)
        optimizer = make_optimizer(model.parameters(), lr=1e-3, update=update, **named)
        for step in range(STEPS):
            x = torch.full((2, 96), 0.1 * (step + rank + 1))
            model(x).square().mean().backward()
            optimizer.step()
        session = luwu.session()
        return session.pulls.bytes_count.peak, session.nic.counters.pull_bytes

    chunk_bytes = (48 if kind == "Muon" else 16) * 1024  # a matrix has room in it
    changes = {"transport": transport, "has_switch": has_switch, "world_size": world_size}
    return in_cluster(directory, work, chunk_bytes=chunk_bytes, **changes)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 8))


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_weights_are_used_where_they_lie(has_switch: bool, update: str, tmp_path: Path) -> None:
    """Goal: a worker holds no weights of its own, and pulls each unit once a step, though it is
    freed between forward and backward; `at_step` it lets go of them before the node overwrites
    them."""

    parameters = sum(parameter.numel() for parameter in two_layers().parameters())
    trained = train(tmp_path, two_layers, has_switch=has_switch, update=update)
    for held_bytes, pulled_bytes in trained.results:
        assert held_bytes == 0
        padding = 1.1
        assert STEPS * 4 * parameters <= pulled_bytes <= padding * (STEPS + 1) * 4 * parameters


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("units", [2, 9])
def test_weights_that_are_there_are_pulled_without_a_message(
    units: int, update: str, tmp_path: Path
) -> None:
    """Goal: the messages of a pull do not grow with the units.
    Method: each step is decided before the next begins, so all that it needs is there."""

    def work(rank: int) -> list[int]:
        model = seeded(lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(units))))
        luwu.fully_shard_each(model, nn.Linear)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update=update)
        session, counts = luwu.session(), []
        for step in range(STEPS):
            model(torch.full((2, 64), 0.1 * (step + rank + 1))).square().mean().backward()
            optimizer.step()
            session.complete()
            session.results.wait_for_last()
            found = session.nic.links.total(Pull, Weights)
            counts.append(found.messages_sent + found.messages_received)
        return counts

    changes = {"transport": "shm", "has_switch": True, "world_size": 2}
    for counts in in_cluster(tmp_path, work, **changes).results:
        assert counts[1] > 0
        assert counts[1:] == [counts[1]] * (STEPS - 1)


def test_weights_that_were_asked_for_and_not_used_are_let_go_before_the_commit(
    tmp_path: Path,
) -> None:
    """I3. Goal: what was found ahead of a use that did not come may be written over then."""

    def work(rank: int) -> list[int]:
        first, second = model = seeded(lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
        luwu.fully_shard_each(model, nn.Linear)
        first.set_modules_to_forward_prefetch([second])
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3)
        session, unused = luwu.session(), []
        commit, pulls = session.nic.commit, session.pulls

        def noting(*arguments: Any, **options: Any) -> Any:
            unused.append(len(pulls.prefetcher._pulls))
            return commit(*arguments, **options)

        session.nic.commit = noting
        for step in range(STEPS):
            (model if step < 2 else first)(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
        return unused

    (unused,) = in_cluster(tmp_path, work, transport="shm", has_switch=True, world_size=1).results
    assert unused == [0] * STEPS


def test_a_rank_whose_weights_were_written_over_goes_back_with_the_others(tmp_path: Path) -> None:
    """I3. Goal: a rank that read on after it had been left out computes nothing more before it
    learns of the attempt that counts; then it looks for weights as before.
    Method: rank 0 takes it that its weights were written over; rank 1 gives the attempt up."""

    def work(rank: int) -> tuple[list[int], bool]:
        model = luwu.fully_shard_each(seeded(lambda: nn.Sequential(nn.Linear(64, 64))), nn.Linear)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, update="at_step")
        nic, aborted, step = luwu.session().nic, [], 0
        while step < STEPS:
            try:
                if step == 2 and not aborted and rank == 0:
                    nic._board.was_overtaken = True
                model(torch.full((2, 64), 0.1 * (step + rank + 1))).square().mean().backward()
                if step == 2 and not aborted:
                    assert rank == 1
                    optimizer.zero_grad()
                    continue
                optimizer.step()
                step += 1
            except luwu.StepAborted as error:
                aborted.append(error.step)
                step = error.step
        return aborted, nic._board is not None

    found = in_cluster(tmp_path, work, transport="shm", has_switch=True, world_size=2).results
    assert list(found) == [([2], True), ([2], True)]


@contextmanager
def loaded(tmp_path: Path) -> Iterator[tuple[Nic, WeightsPlaces]]:
    """The NIC of a job that has its first weights, and the places of its node."""
    job = Job(world_size=1, layout=make_layout(extent_chunks=8))
    with cluster_for(job, tmp_path, transport="shm") as cluster:
        nic = cluster.nic(0)
        nic.connect()
        nic.join(job.description)
        nic.load(Worker(job)._initial_chunks())
        yield nic, cluster.node._places


@pytest.mark.parametrize("in_place", [True, False])
def test_weights_of_a_message_that_are_written_over_are_noticed(
    in_place: bool, tmp_path: Path
) -> None:
    """I3. Goal: a rank that was left out notices it, whether it uses what a message names, or has
    copied it. Method: the node writes over the place while the rank copies, or uses it."""
    with loaded(tmp_path) as (nic, places):
        into = memoryview(bytearray(nic._layout.unit_wire_bytes(0)))

        def write_over() -> memoryview:
            assert not is_early or places.claim(0, 0, 0, again=True) is not None
            return into

        assert len(nic._runs[0]) == 1
        for part, is_early in enumerate((False, True)):
            nic._board = None if in_place else nic._board
            handle = nic.pull(0, part, 0, write_over, in_place=in_place)
            nic.wait(handle)
            assert nic._board is not None
            assert (handle.shared is not None) == in_place
            if handle.shared is not None:
                write_over()
                handle.shared.release()
            assert nic._board.was_overtaken == is_early


def test_weights_that_come_late_are_not_looked_at(tmp_path: Path) -> None:
    """I6. Goal: in their place there are others by then: that is no altered memory.
    Method: weights with another checksum come after their pull, as often as would end the run."""
    with loaded(tmp_path) as (nic, _):
        nic.wait(nic.pull(0, 0, 0, lambda: memoryview(bytearray(nic._layout.unit_wire_bytes(0)))))
        nic.close()
        late = nic._core.out.stamped(
            Weights, step=0, part=0, index=0, dtype="float32", in_place=2, checksum=7
        )
        for _ in range(ASKED_MAX + 1):
            nic._received(Delivery(PARENT, encode(late), [memoryview(b"other")], is_shared=True))


def partly_frozen() -> nn.Module:
    model = nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(3)))
    model[1].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("has_switch", "named"),
    [
        (True, {"max_grad_norm": 0.01}),
        (False, {"average": luwu.ema(0.9)}),
        (False, {"state_dtype": "int8"}),
        (False, {"state_dtype": "bfloat16", "master_dtype": "bfloat16"}),
        (False, {"kind": "Muon"}),
        (False, {"kind": "SGD"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_weights_in_place_change_no_bit(
    has_switch: bool, named: dict[str, Any], tmp_path: Path
) -> None:
    """I3. Goal: masters that are updated where workers read them come to the weights of a job whose
    weights are sent; no worker has a copy."""
    named = {"has_switch": has_switch, "update": "at_step", **named}
    expected = train(tmp_path / "sent", partly_frozen, transport="tcp", **named)
    found = train(tmp_path / "placed", partly_frozen, **named)
    assert found.digest == expected.digest
    assert [held_bytes for held_bytes, _ in found.results] == [0, 0]


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_weights_that_a_switch_caches_are_used_where_they_lie(
    replicas: int, update: str, tmp_path: Path
) -> None:
    """I3. Goal: a worker holds no weights of its own, whether they have a checksum, and are asked
    for, or not; also those of a unit that is frozen, in even and in odd steps."""

    def work(rank: int) -> tuple[int, list[Any]]:
        model = luwu.fully_shard_each(seeded(partly_frozen), nn.Linear)
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = luwu.optim.AdamW(trained, lr=1e-3, update=update)
        losses = []
        for step in range(STEPS):
            loss = model(torch.full((2, 96), 0.1 * (step + rank + 1))).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return luwu.session().pulls.bytes_count.peak, losses

    changes = {"world_size": 2, "optimizer_nodes": 2, "replicas": replicas}
    limits = SwitchLimits(cache_bytes_max=MIB)
    expected = in_cluster(tmp_path / "sent", work, transport="tcp", **changes)
    found = in_cluster(
        tmp_path / "placed", work, transport="shm", switch_limits=limits, **changes
    )  # fmt: skip
    assert list(found.results) == [(0, losses) for _, losses in expected.results]


class Clamped(nn.Linear):
    """Changes its weight in forward, which no module may do here."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.change()
        return super().forward(x)


@pytest.mark.parametrize("change", [
    lambda m: m.weight.clamp_(-0.01, 0.01), lambda m: m.weight.data.clamp_(-0.01, 0.01),
    lambda m: setattr(m.weight, "data", m.weight.data.clamp(-0.01, 0.01)),
    lambda m: setattr(m, "weight", nn.Parameter(m.weight.clamp(-0.01, 0.01))),
], ids=["in place", "data in place", "other data", "another parameter"])  # fmt: skip
def test_a_weight_that_is_changed_is_noticed(
    change: Callable[[nn.Module], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the script reads an error, and neither dies of a signal nor changes what others see."""
    monkeypatch.setattr(Clamped, "change", change, raising=False)
    with pytest.raises(luwu.LuwuError, match=r"was (changed|replaced).* would be lost"):
        train(
            tmp_path, lambda: nn.Sequential(Clamped(96, 96), nn.Linear(96, 8)), has_switch=False,
            world_size=1,
        )  # fmt: skip

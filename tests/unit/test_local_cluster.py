"""Everything real but the processes: shells, transports, stores, and workers that follow a script.

A worker's gradient depends on the weights it pulled, its rank, the step and the parameter, and the
weights of every step depend on those before; so one wrong byte anywhere changes the digest. It is
compared with a plain loop over `torch.optim`.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError, DeadlineError, LuwuError, StepAborted
from luwu.base.events import Recorder
from luwu.base.outstanding import Outstanding
from luwu.layout import Layout, Parameter, Unit, padded
from luwu.nic.core import NicCore
from luwu.nic.shell import Nic, StepHandle
from luwu.testing.local import LocalCluster
from luwu.transport.inprocess import InProcessNetwork
from luwu.wire.actions import Send
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.messages import Decided, Pull, Role, Verdict, Welcome
from switch_emu.node.actions import Update
from switch_emu.node.pages import store_config, weights_digest
from switch_emu.node.pipeline import Pipeline
from switch_emu.node.plan import plan_node
from switch_emu.payload import Payload
from switch_emu.store import DecidedStep, MemoryPageStore
from switch_emu.switch.core import SwitchLimits
from switch_emu.switch.slots import Contribution

KIB, MIB = 1024, 1024**2
STEPS = 4
LARGE = 64 * MIB

SHAPES: list[tuple[tuple[int, ...], bool, int]] = [
    ((96, 64), True, 0),
    ((33,), True, 1),
    ((50,), False, 0),
    ((70, 130), True, 0),
    ((64,), True, 1),
    ((130, 64), True, 0),
    ((), True, 1),
]
"""(shape, trainable, group): ragged ends, a frozen parameter, a scalar, two groups."""


def make_layout(chunk_kib: int = 16, wire_dtype: str = "float32") -> Layout:
    """Three units, nine chunks of 16 KiB."""
    return Layout(
        parameters=tuple(
            Parameter(
                name=f"p{i}", shape=shape, trainable=trainable, group=group, wire_dtype=wire_dtype
            )
            for i, (shape, trainable, group) in enumerate(SHAPES)
        ),
        units=(
            Unit(name="first", parameters=(0, 1)),
            Unit(name="second", parameters=(2, 3, 4)),
            Unit(name="third", parameters=(5, 6)),
        ),
        chunk_bytes=chunk_kib * KIB,
    )


GROUPS = (
    {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False},
    {"lr": 3e-2, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.0, "eps": 1e-8, "maximize": False},
)


@dataclass(frozen=True)
class Job:
    """What a cluster trains."""

    layout: Layout = field(default_factory=make_layout)
    world_size: int = 2
    steps: int = STEPS
    update: str = "streaming"
    max_grad_norm: float | None = None
    poison_step: int | None = None
    """The step in which the last rank pushes one element that is not finite."""

    @property
    def description(self) -> Description:
        return Description(
            layout=self.layout, optimizer="adamw", update=self.update, state_fields=("m", "v")
        )

    def hyper(self, step: int) -> StepHyper:
        """A schedule: the learning rate falls from step to step."""
        groups = tuple(group | {"lr": group["lr"] / (1 + step)} for group in GROUPS)
        return StepHyper(groups=groups, max_grad_norm=self.max_grad_norm)

    @property
    def least_bytes(self) -> int:
        """A budget for a handful of chunks."""
        return 24 * self.layout.chunk_bytes


def initial(parameter: int, elems: int) -> Any:
    """Weights before step 0, float32."""
    return np.random.default_rng(parameter).standard_normal(elems, dtype=np.float32)


def gradient(weights: Any, rank: int, step: int, parameter: int) -> Any:
    """What a rank computes of the weights it sees: one product and one sum, rounded exactly, of
    sizes that make every order of addition round differently."""
    pattern = (np.arange(weights.size) * (2 * rank + 3) + step * 7 + parameter * 13) % 101 - 50
    own = np.float32(0.37 + 0.11 * rank)
    return weights * own + pattern.astype(np.float32) * np.float32(0.013)


def on_wire(values: Any, dtype: str) -> Any:
    """float32 values rounded as the wire rounds them, still float32."""
    return torch.from_numpy(values).to(getattr(torch, dtype)).to(torch.float32).numpy()


# ---------------------------------------------------------------------------- the plain loop


@dataclass(frozen=True)
class Reference:
    """What a job must come to."""

    digest: str
    outcomes: list[tuple[bool, float]]
    """(applied, norm of the mean gradient) of every step."""


@functools.cache
def _plain(world_size: int, steps: int, dtype: str, poison: int | None, clip: float | None) -> Any:
    job = Job(
        layout=make_layout(wire_dtype=dtype), world_size=world_size, steps=steps,
        poison_step=poison, max_grad_norm=clip,
    )  # fmt: skip
    return _plain_loop(job, dtype)


def plain(job: Job) -> Reference:
    """The job in one loop over torch's fused AdamW; independent of chunks and order of work."""
    dtype = job.layout.parameters[0].wire_dtype
    result: Reference = _plain(job.world_size, job.steps, dtype, job.poison_step, job.max_grad_norm)
    return result


def _plain_loop(job: Job, dtype: str) -> Reference:
    rows = job.layout.parameters
    # As the layout does, each is padded with zeros to 64: torch's scalar code for a ragged end
    # rounds otherwise (design note 0004).
    weights = [torch.zeros(padded(row.elems)) for row in rows]
    for index, row in enumerate(rows):
        weights[index][: row.elems] = torch.from_numpy(initial(index, row.elems))
    trained = [index for index, row in enumerate(rows) if row.trainable]
    optimizer = torch.optim.AdamW(
        [
            {"params": [weights[i].requires_grad_() for i in trained if rows[i].group == group]}
            | {"weight_decay": hyper["weight_decay"], "betas": (hyper["beta1"], hyper["beta2"])}
            for group, hyper in enumerate(GROUPS)
        ],
        fused=True,
    )
    outcomes = []
    for step in range(job.steps):
        for group, values in zip(optimizer.param_groups, job.hyper(step).groups, strict=True):
            group["lr"] = values["lr"]
        squares = []
        for index in trained:
            seen = on_wire(weights[index].detach().numpy()[: rows[index].elems], dtype)
            grads = [
                on_wire(gradient(seen, rank, step, index), dtype) for rank in range(job.world_size)
            ]
            mean = functools.reduce(np.add, grads) / np.float32(job.world_size)
            weights[index].grad = torch.zeros_like(weights[index])
            weights[index].grad[: mean.size] = torch.from_numpy(mean)
            squares.append(np.sum(mean.astype(np.float64) ** 2))
        norm = math.sqrt(math.fsum(squares))
        if step == job.poison_step:
            outcomes.append((False, math.inf))
            continue
        outcomes.append((True, norm))
        if job.max_grad_norm is not None and norm > job.max_grad_norm:
            for index in trained:
                weights[index].grad *= np.float32(job.max_grad_norm / (norm + 1e-6))
        optimizer.step()
    digest = WeightsDigest()
    for row, values in zip(rows, weights, strict=True):
        digest.update(row.name, row.dtype, row.shape, values.detach().numpy()[: row.elems])
    return Reference(digest.hexdigest(), outcomes)


# ---------------------------------------------------------------------------- a worker


@dataclass
class Seen:
    """What one worker was told."""

    outcomes: dict[int, tuple[bool, float]] = field(default_factory=dict)
    aborted_steps: list[int] = field(default_factory=list)
    first_step: int = -1


class Worker:
    """Runs a job on a NIC as a training script would; one for all ranks of a cluster."""

    def __init__(self, job: Job, *, cancel_step: int | None = None, stop_at: int | None = None):
        self.job, self._layout = job, job.layout
        self._stop = job.steps if stop_at is None else stop_at
        self._cancel_step = cancel_step

    def __call__(self, nic: Nic) -> Seen:
        seen = Seen()
        joined = nic.join(self.job.description)
        seen.first_step = joined.step
        if not joined.loaded and nic.rank == 0:
            nic.load(self._initial_chunks())
        handles: dict[int, StepHandle] = {}
        step = joined.step
        while True:
            try:
                while step < self._stop:
                    handles[step] = self._step(nic, step, not seen.aborted_steps)
                    step += 1
                for number, handle in handles.items():
                    seen.outcomes[number] = handle.settled()
                return seen
            except StepAborted as exc:
                seen.aborted_steps.append(exc.step)
                step = exc.step

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        hyper = encode_hyper(self.job.hyper(step))
        units = range(len(self._layout.units))
        streaming = self.job.update == "streaming"
        kept = {}
        for unit in units:  # forward
            kept[unit] = self._pull(nic, step, 0, unit)
        if streaming:
            nic.begin(step, hyper)
        pushes = []
        for unit in reversed(units):
            again = self._pull(nic, step, 1, unit)
            assert bytes(again) == bytes(kept[unit]), "forward and backward saw other weights"
            grads = self._gradients(again, nic.rank, step, unit)
            dtype = self._layout.chunks[0].wire_dtype
            pushes.append(nic.push(step, 0, unit, grads, dtype, last=streaming))
        for push in pushes:
            nic.wait(push)
        if step == self._cancel_step and may_cancel and nic.rank == 0:
            nic.cancel("the loss looks wrong")
        return nic.commit(step, 1, hyper)

    def _pull(self, nic: Nic, step: int, use: int, unit: int) -> memoryview:
        into = memoryview(bytearray(self._layout.unit_wire_bytes(unit)))
        nic.wait(nic.pull(step, use, unit, into))
        return into

    def _gradients(self, weights: memoryview, rank: int, step: int, unit: int) -> memoryview:
        """The flat vector of the unit's trainable parameters, zero where there is padding."""
        dtype = getattr(torch, self._layout.chunks[0].wire_dtype)
        flat = torch.frombuffer(weights, dtype=dtype).to(torch.float32).numpy()
        grads = np.zeros_like(flat)
        for index in self._layout.units[unit].parameters:
            place = self._layout.placements[index]
            part = slice(place.start, place.start + place.elems)
            if self._layout.parameters[index].trainable:
                grads[part] = gradient(flat[part], rank, step, index)
        if step == self.job.poison_step and rank == self.job.world_size - 1 and unit == 1:
            grads[17] = np.nan
        return memoryview(torch.from_numpy(grads).to(dtype).view(torch.uint8).numpy())

    def _initial_chunks(self) -> Any:
        for chunk in self._layout.chunks:
            values = np.zeros(chunk.elems, np.float32)
            for segment in self._layout.segments(chunk.index):
                whole = initial(segment.parameter, self._layout.parameters[segment.parameter].elems)
                values[segment.chunk_start : segment.chunk_start + segment.elems] = whole[
                    segment.parameter_start : segment.parameter_start + segment.elems
                ]
            yield chunk.index, memoryview(values.view(np.uint8))


@contextmanager
def cluster_for(job: Job, tmp_path: Path, **changes: Any) -> Any:
    """A cluster for the job, in RAM unless a state directory is named."""
    values: dict[str, Any] = {
        "world_size": job.world_size,
        "state": None,
        "memory_budget_bytes": LARGE,
        "chunk_bytes": job.layout.chunk_bytes,
        "summary": tmp_path / "summary.json",
    }
    with LocalCluster(**(values | changes)) as cluster:
        yield cluster


def check(cluster: LocalCluster, job: Job, results: Sequence[Seen]) -> None:
    """Weights and outcomes are those of the plain loop."""
    expected = plain(job)
    assert cluster.weights_digest() == expected.digest
    for seen in results:
        assert sorted(seen.outcomes) == list(range(seen.first_step, job.steps))
        for step, (applied, norm) in seen.outcomes.items():
            assert applied is expected.outcomes[step][0]
            # The node divides the norm of the sum, the loop norms the mean: rounded to float32.
            assert norm == pytest.approx(expected.outcomes[step][1], rel=1e-6)


every_order = pytest.mark.parametrize("update", ["streaming", "at_step"])
every_place = pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])


# ---------------------------------------------------------------------------- the same bits


@every_order
@every_place
@pytest.mark.parametrize("transport", ["inproc", "ipc", "tcp"])
def test_training_gives_the_bits_of_a_plain_loop(
    transport: str, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I3, I4. Goal: two workers, four steps: the weights of torch's AdamW on the mean gradient.
    Method: on disk, with a budget of 24 chunks, so that sums are spilled where they are kept."""
    job = Job(update=update)
    with cluster_for(
        job, tmp_path, transport=transport, has_switch=has_switch, state=tmp_path / "state",
        memory_budget_bytes=job.least_bytes,
    ) as cluster:  # fmt: skip
        check(cluster, job, cluster.run(Worker(job)))
        if update == "at_step":
            assert cluster.node.core.held.spilled_count > 0
            assert cluster.node.spill.bytes_read > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert not list((tmp_path / "state").glob("spill*"))


@every_order
@every_place
def test_a_large_budget_changes_nothing(has_switch: bool, update: str, tmp_path: Path) -> None:
    """I3. Goal: nothing is spilled, nothing is read from disk, and the bits are the same."""
    job = Job(update=update)
    with cluster_for(job, tmp_path, has_switch=has_switch, state=tmp_path / "state") as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        assert cluster.node.core.held.spilled_count == 0
        assert cluster.node.spill is None
        assert cluster.node.store.stats.bytes_read == 0


@every_order
@pytest.mark.parametrize("chunk_kib", [16, 32, 1024])
@pytest.mark.parametrize("world_size", [1, 3])
def test_neither_chunks_nor_workers_change_the_arithmetic(
    world_size: int, chunk_kib: int, update: str, tmp_path: Path
) -> None:
    """I3. Goal: sums in rank order, whatever a chunk is; in RAM without a state directory."""
    job = Job(layout=make_layout(chunk_kib), update=update, world_size=world_size)
    with cluster_for(job, tmp_path, has_switch=world_size > 1) as cluster:
        check(cluster, job, cluster.run(Worker(job)))


@every_order
@every_place
def test_bfloat16_travels_and_float32_counts(has_switch: bool, update: str, tmp_path: Path) -> None:
    """I3, I4. Goal: weights and gradients travel rounded; masters and sums are float32."""
    job = Job(layout=make_layout(wire_dtype="bfloat16"), update=update)
    with cluster_for(job, tmp_path, has_switch=has_switch) as cluster:
        check(cluster, job, cluster.run(Worker(job)))


@every_order
def test_a_switch_without_slots(update: str, tmp_path: Path) -> None:
    """I3. Goal: contributions that find no slot are summed at the node, with the same bits, and
    spilled raw when there is no room."""
    job = Job(update=update, world_size=3)
    with cluster_for(
        job, tmp_path, state=tmp_path / "state", memory_budget_bytes=job.least_bytes,
        switch_limits=SwitchLimits(slot_bytes_max=0, copies_bytes_max=0),
    ) as cluster:  # fmt: skip
        check(cluster, job, cluster.run(Worker(job)))
        assert cluster.switch.core.raw_count >= STEPS * 3


def test_clipping_is_that_of_torch(tmp_path: Path) -> None:
    """I4. Goal: at_step takes the exact norm, then clips, then updates."""
    job = Job(update="at_step", max_grad_norm=0.5)
    with cluster_for(job, tmp_path) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
    assert plain(job).digest != plain(replace(job, max_grad_norm=None)).digest


# ---------------------------------------------------------------------------- losses and skips


@every_order
@every_place
@pytest.mark.parametrize("budget", ["tiny", "large"])
def test_a_cancelled_step_is_replayed(
    budget: str, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I1, I2. Goal: what was pushed in a cancelled step is nowhere in the state; all ranks are told
    the step to go on from, once, and the replay gives the same bits.
    Method: rank 0 cancels step 1 after its pushes, streamed updates included."""
    job = Job(update=update)
    with cluster_for(
        job, tmp_path, has_switch=has_switch, state=tmp_path / "state",
        memory_budget_bytes=job.least_bytes if budget == "tiny" else LARGE,
    ) as cluster:  # fmt: skip
        results = cluster.run(Worker(job, cancel_step=1))
        check(cluster, job, results)
        assert [seen.aborted_steps for seen in results] == [[1], [1]]


@every_order
@every_place
def test_a_gradient_that_is_not_finite_skips_the_step(
    has_switch: bool, update: str, tmp_path: Path
) -> None:
    """Goal: the whole step is skipped and said so, on all ranks; moments and Adam's count of
    updates do not move, and the job goes on.
    Method: one NaN of the last rank in step 2, also as the last step of a job."""
    for steps in (STEPS, 3):
        job = Job(update=update, poison_step=2, steps=steps)
        state = tmp_path / f"state-{steps}"
        with cluster_for(job, tmp_path, has_switch=has_switch, state=state) as cluster:
            results = cluster.run(Worker(job))
            check(cluster, job, results)
            assert all(seen.outcomes[2] == (False, math.inf) for seen in results)
            assert not any(seen.aborted_steps for seen in results)
    untouched = Job(update=update, steps=2)
    assert plain(Job(update=update, poison_step=2, steps=3)).digest == plain(untouched).digest


# ---------------------------------------------------------------------------- resume


@every_order
@every_place
@pytest.mark.parametrize("budget", ["tiny", "large"])
def test_resume_gives_the_bits_of_one_run(
    budget: str, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I2, I3. Goal: closed after two steps and opened again, the job ends as if it had not been.
    Method: weights after two steps are checked too; the later start must not load any."""
    job = Job(update=update)
    first_half = replace(job, steps=2)
    changes = {
        "has_switch": has_switch,
        "state": tmp_path / "state",
        "memory_budget_bytes": job.least_bytes if budget == "tiny" else LARGE,
    }
    with cluster_for(job, tmp_path, **changes) as cluster:
        check(cluster, first_half, cluster.run(Worker(job, stop_at=2)))
    with cluster_for(job, tmp_path, **changes, resume=True) as cluster:
        results = cluster.run(Worker(job))
        check(cluster, job, results)
        assert [seen.first_step for seen in results] == [2, 2]


def test_resume_of_a_finished_job_has_nothing_to_do(tmp_path: Path) -> None:
    """Goal: opened again at its last step, a job ends at once with the same weights."""
    job = Job()
    for resume in (False, True, True):
        state = tmp_path / "state"
        with cluster_for(job, tmp_path, state=state, resume=resume) as cluster:
            check(cluster, job, cluster.run(Worker(job)))


# ---------------------------------------------------------------------------- refusals


def used_state(tmp_path: Path) -> Path:
    """A state directory after two steps."""
    job = Job(steps=2)
    with cluster_for(job, tmp_path, state=tmp_path / "state") as cluster:
        cluster.run(Worker(job))
    return tmp_path / "state"


def refusal(job: Job, tmp_path: Path, **changes: Any) -> str:
    """Text of the ConfigError with which a cluster ends."""
    with cluster_for(job, tmp_path, **changes) as cluster, pytest.raises(ConfigError) as caught:
        cluster.run(Worker(job))
    return str(caught.value)


def test_used_state_without_resume_is_refused(tmp_path: Path) -> None:
    """I6. Goal: training on top of an old run is never an accident."""
    state = used_state(tmp_path)
    text = refusal(Job(), tmp_path, state=state)
    assert f"{state} holds the state of a job after 2 decided steps" in text
    assert "--resume" in text
    assert "--state" in text


@every_place
def test_state_of_another_model_is_refused(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: the text names what differs and what to do; the state is as it was."""
    state = used_state(tmp_path)
    other = make_layout()
    rows = (replace(other.parameters[0], shape=(96, 65)), *other.parameters[1:])
    job = Job(layout=replace(other, parameters=rows))
    text = refusal(job, tmp_path, state=state, resume=True, has_switch=has_switch)
    assert "the state is that of another job" in text
    assert 'parameters[0]: ["p0", [96, 65]' in text
    assert 'expected ["p0", [96, 64]' in text
    assert "give the right --state, or a new directory" in text
    with cluster_for(Job(), tmp_path, state=state, resume=True) as cluster:
        check(cluster, Job(), cluster.run(Worker(Job())))


def test_another_order_of_work_is_another_job(tmp_path: Path) -> None:
    """I6. Goal: the difference is named by its word."""
    text = refusal(Job(update="at_step"), tmp_path, state=used_state(tmp_path), resume=True)
    assert 'update: "at_step", expected "streaming"' in text


def test_another_chunk_is_refused_with_the_right_one(tmp_path: Path) -> None:
    """Goal: page geometry is fixed when the store is made; the text gives the flag that works."""
    text = refusal(Job(layout=make_layout(32)), tmp_path, state=used_state(tmp_path), resume=True)
    assert "was made with chunks of 16KiB, asked for 32KiB; use --chunk 16KiB" in text


def test_a_budget_without_room_for_the_state_is_refused(tmp_path: Path) -> None:
    """I5. Goal: without a directory the state must fit into RAM; the text gives the number."""
    job = Job()
    text = refusal(job, tmp_path, memory_budget_bytes=job.least_bytes)
    named = int(text.split("give ")[1].split("KiB")[0]) * KIB
    assert "a directory with --state" in text
    plan_node(budget_bytes=named, chunk_bytes=job.layout.chunk_bytes, world_size=2, has_switch=True)
    with cluster_for(job, tmp_path, memory_budget_bytes=named) as cluster:
        check(cluster, job, cluster.run(Worker(job)))


@every_place
def test_ranks_that_train_different_things_are_refused(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: both ranks and the difference are named.
    Method: the two ranks agree on everything but the digest of their data."""
    job = Job()

    def worker(nic: Nic) -> Any:
        agreement = {"data": "abc" if nic.rank == 0 else "abd", "seed": "7"}
        return nic.join(replace(job.description, agreement=agreement))

    with (
        cluster_for(job, tmp_path, has_switch=has_switch) as cluster,
        pytest.raises(ConfigError) as caught,
    ):
        cluster.run(worker)
    text = str(caught.value)
    assert "ranks 0, 1 do not train the same" in text
    assert "agreement.data: " in text
    assert '"abc"' in text
    assert '"abd"' in text
    assert "seed" not in text
    assert "run the same script on the same data on every rank" in text


@every_order
@every_place
def test_different_hyper_parameters_are_refused(
    has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I6. Goal: ranks that would update differently are named, before anything is updated."""
    job = Job(update=update)

    class Differs(Worker):
        def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
            if nic.rank == 1 and step == 1:
                self.job = replace(job, max_grad_norm=9.0)
            return super()._step(nic, step, may_cancel)

    with (
        cluster_for(job, tmp_path, has_switch=has_switch) as cluster,
        pytest.raises(ConfigError) as caught,
    ):
        workers = [Differs(job), Differs(job)]
        cluster.run(lambda nic: workers[nic.rank](nic))
    assert "the hyper-parameters of step 1 differ between ranks" in str(caught.value)
    assert "ranks 0: " in str(caught.value)
    assert "ranks 1: " in str(caught.value)


@every_place
def test_another_protocol_version_is_refused(
    has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: two installations that do not understand each other say so.
    Method: the workers state the next version."""
    monkeypatch.setattr("luwu.nic.core.PROTOCOL_VERSION", 2)
    text = refusal(Job(), tmp_path, has_switch=has_switch)
    assert "protocol version 2 is spoken by you, 1 here" in text
    assert "install the same luwu on both sides" in text


# ---------------------------------------------------------------------------- waits


def alone(cluster: LocalCluster, ask: Callable[[Nic], object]) -> str:
    """Text of the DeadlineError of rank 0, whose partner never says anything."""
    nic = cluster.nic(0)
    with pytest.raises(DeadlineError) as caught:
        ask(nic)
    return str(caught.value)


@every_place
def test_a_wait_ends_and_says_what_for(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: a rank that never comes ends the wait of the others, who say what they wait for
    and what to do; switch or node say which rank it is."""
    job = Job()
    with cluster_for(job, tmp_path, has_switch=has_switch, grace_s=0.2) as cluster:
        text = alone(cluster, lambda nic: nic.join(job.description))
        assert "worker 0 waited" in text
        assert "for all ranks to join (Welcome: the parent waits for all ranks)" in text
        assert "--grace" in text
        parent = cluster.switch if has_switch else cluster.node
        assert parent.waits_for() == "Hello of ranks 1"


def test_a_wait_for_a_gradient_says_which(tmp_path: Path) -> None:
    """I6. Goal: the rank that stopped is named by the switch, what cannot go on by the worker that
    waits. Method: rank 1 joins, pulls nothing, pushes nothing; rank 0 commits its step and wants
    the weights of the next."""
    job = Job(update="at_step")
    release = threading.Event()

    def worker(nic: Nic) -> None:
        if nic.rank == 1:
            nic.join(job.description)
            release.wait(30)
            return
        try:
            Worker(job)(nic)
        finally:
            release.set()

    with cluster_for(job, tmp_path, grace_s=0.2) as cluster:
        with pytest.raises(DeadlineError) as caught:
            cluster.run(worker)
        assert "for the pull of step 1, unit 0 (weights for the pull of step 1" in str(caught.value)
        assert "of ranks 1" in cluster.switch.waits_for()


def test_nobody_at_the_other_end(tmp_path: Path) -> None:
    """I6. Goal: the address and the transport's own words are in the text."""
    transport = InProcessNetwork().transport()
    with Nic(
        transport, endpoint="inproc://nowhere", job=1, rank=3, world_size=4, chunk_bytes=16 * KIB,
        connect_timeout_s=0.1,
    ) as nic:  # fmt: skip
        with pytest.raises(DeadlineError) as caught:
            nic.connect()
        text = str(caught.value)
        assert "worker 3 waited" in text
        assert "for inproc://nowhere to answer" in text
        assert "nothing listens at inproc://nowhere" in text


def test_a_closed_nic_ends_the_waits(tmp_path: Path) -> None:
    """I6, I8. Goal: a thread that waits is not left behind when its NIC is closed.
    Method: rank 0 waits for a partner that never comes; no deadline would end it here."""
    job = Job()
    failures: list[Exception] = []

    def wait(nic: Nic) -> None:
        try:
            nic.join(job.description)
        except LuwuError as exc:
            failures.append(exc)

    with cluster_for(job, tmp_path) as cluster:
        nic = cluster.nic(0)
        thread = threading.Thread(target=wait, args=(nic,), daemon=True)
        thread.start()
        nic.close()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert "worker 0" in str(failures[0])
    assert "closed" in str(failures[0])


def test_a_parent_that_comes_late_hears_at_once(tmp_path: Path) -> None:
    """Goal: what was asked before there was a connection is said when there is one, not at the
    next repetition (2 s). Method: the NIC joins before anybody listens."""
    network, description = InProcessNetwork(), Job().description
    with Nic(
        network.transport(), endpoint="inproc://late", job=1, rank=0, world_size=1,
        chunk_bytes=16 * KIB,
    ) as nic:  # fmt: skip
        encoded = description.to_bytes()
        nic._command(lambda now: nic._core.join(now, encoded, description.hash), wait=True)
        parent = network.transport()
        parent.listen("inproc://late")
        received = [parent.receive(10**9) for _ in range(2)]
        assert [type(item).__name__ for item in received] == ["PeerUp", "Delivery"]
    parent.close()


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """I8. Goal: after a job, and after a refusal, no thread of it is left."""
    before = set(threading.enumerate())
    job = Job()
    with cluster_for(job, tmp_path, transport="ipc") as cluster:
        cluster.run(Worker(job))
    refusal(job, tmp_path, memory_budget_bytes=job.least_bytes)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive() or "GarbageCollector" in type(thread).__name__, thread


def test_a_job_does_not_wait_for_repetitions(tmp_path: Path) -> None:
    """Goal: where nothing is lost, nothing is asked for twice: every request is answered once it
    can be, so the pause before a repetition (2 s) never shows.
    Method: 20 short jobs; a repeated message would be the answer to a lost one."""
    repeated: list[str] = []

    class Told(Outstanding[Any]):
        def due(self, now_ns: int) -> list[Any]:
            again = super().due(now_ns)
            repeated.extend(type(send.message).__name__ for send in again)
            return again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("luwu.wire.uplink.Outstanding", Told)
        for index in range(20):
            job = Job(
                update=("streaming", "at_step")[index % 2], poison_step=(None, 2)[index // 10]
            )
            with cluster_for(job, tmp_path, has_switch=index % 4 < 2) as cluster:
                check(cluster, job, cluster.run(Worker(job)))
    assert repeated == []


def test_a_worker_ahead_of_the_decision_asks_when_it_can_be_answered() -> None:
    """Goal: a fast worker pulls for step t + 2 before step t is decided (a slow disk); the parent
    would drop that, so it is asked when the decision comes, not at a repetition.
    Method: the NIC's core alone, with a parent's messages made by hand."""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=1)
    stamp = {"job": 1, "epoch": 0, "attempt": 1, "generation": 1, "role": Role.NODE, "rank": 0}
    parent: dict[str, Any] = {**stamp, "incarnation": 9}

    def pulls(actions: list[Any]) -> list[tuple[int, int]]:
        sent = [action.message for action in actions if isinstance(action, Send)]
        return [(pull.step, pull.chunk) for pull in sent if isinstance(pull, Pull)]

    core.join(0, b"job", "hash")
    core.received(1, Welcome(**parent, step=0, loaded=True, push_window_bytes=MIB))
    assert pulls(core.pull(2, 1, 0, 0, [4])) == [(0, 4)]
    core.commit(3, 0, "h", 1, b"hyper")
    assert pulls(core.pull(4, 2, 1, 0, [4])) == [(1, 4)]
    core.received(5, Verdict(**parent, step=0, applied=True, grad_norm=1.0))
    assert pulls(core.pull(6, 3, 2, 0, [4, 5])) == []
    assert pulls(core.pull(7, 4, 2, 0, [6])) == []
    core.forget(4)
    actions = core.received(8, Decided(**parent, step=0, applied=True, grad_norm=1.0))
    assert pulls(actions) == [(2, 4), (2, 5)]
    assert pulls(core.pull(9, 5, 2, 0, [7])) == [(2, 7)]


# ---------------------------------------------------------------------------- the pipeline


class Answers:
    """The methods of a core that the pipeline calls when an update is done."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def updated(self, update: Any, squares: Any, weights: Any) -> list[Any]:
        self.calls.append("updated")
        return []

    def written(self, update: Any) -> list[Any]:
        self.calls.append("written")
        return []


@every_order
def test_an_update_of_an_aborted_attempt_does_no_harm(update: str) -> None:
    """I2. Goal: an update under way when its attempt is given up leaves no trace in the store, is
    reported as any other, and does not stop the node.
    Method: the attempt is raised in the store before the pipeline takes the update up."""
    job = Job(update=update)
    store = MemoryPageStore(store_config(job.description))
    for page in range(store.config.page_count):
        store.write(page, 0, 0, bytes(store.config.kind(page).record_bytes))
    store.prepare(DecidedStep(version=0, attempt=0))
    store.decide(0, 0)
    digest = weights_digest(store, job.layout)
    grad = Payload(memoryview(np.ones(4096, np.float32).view(np.uint8)))
    action = Update(
        chunk=0, step=0, attempt=0, divisor=2.0, grad_norm=1.0, hyper=encode_hyper(job.hyper(0)),
        contributions=(Contribution(3, 2.0, True, "float32", grad, grad.nbytes),), publish=False,
    )  # fmt: skip
    done = threading.Semaphore(0)
    answers: Any = Answers()
    store.record_attempt(1)
    pipeline = Pipeline(
        answers, store, job.description, job=1, updates_count=1, reads_count=1,
        recorder=Recorder(role="node", printed=None), wake=done.release,
    )  # fmt: skip
    pipeline.start(action)
    for _ in range(2):
        assert done.acquire(timeout=10)
        for finished in pipeline.take_finished():
            finished()
    pipeline.close()
    assert answers.calls == ["updated", "written"]
    store.abort(0)
    store.prepare(DecidedStep(version=1, attempt=1))
    store.decide(1, 1)
    assert weights_digest(store, job.layout) == digest

"""I1 to I4: a local cluster ends with the bits of a plain loop, whatever happens on the way."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from switch_emu.switch.core.actions import SwitchLimits
from tests.unit.local_job import (
    LARGE,
    STEPS,
    Job,
    Worker,
    check,
    cluster_for,
    every_order,
    every_place,
    make_layout,
    plain,
)

# ---------------------------------------------------------------------------- the same bits


@every_order
@every_place
@pytest.mark.parametrize("transport", ["inproc", "ipc", "tcp", "shm"])
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
            assert cluster.node.core.budget.spilled_count > 0
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
        assert cluster.node.core.budget.spilled_count == 0
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

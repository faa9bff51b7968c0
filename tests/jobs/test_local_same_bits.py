"""I1 to I4: a local cluster ends with the bits of a plain loop, whatever happens on the way.

Every way to run: `tests/evidence/digests.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from tests.helpers.local_job import (
    STEPS,
    Job,
    Worker,
    check,
    cluster_for,
    every_order,
    every_place,
    plain,
)

# ---------------------------------------------------------------------------- the same bits


@every_order
@every_place
def test_training_gives_the_bits_of_a_plain_loop(
    has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I3, I4. Goal: two workers, four steps: the weights of torch's AdamW on the mean gradient.
    Method: on disk, with a budget of 24 chunks, so that sums are spilled where they are kept."""
    job = Job(update=update)
    with cluster_for(
        job, tmp_path, has_switch=has_switch, state=tmp_path / "state",
        memory_budget_bytes=job.least_bytes,
    ) as cluster:  # fmt: skip
        check(cluster, job, cluster.run(Worker(job)))
        if update == "at_step":
            assert cluster.node.core.budget.spilled_count > 0
            assert cluster.node.spill.bytes_read > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert not list((tmp_path / "state").glob("spill*"))


# ---------------------------------------------------------------------------- losses and skips


@every_order
@every_place
def test_a_cancelled_step_is_replayed(has_switch: bool, update: str, tmp_path: Path) -> None:
    """I1, I2. Goal: what was pushed in a cancelled step is nowhere in the state; all ranks are told
    the step to go on from, once, and the replay gives the same bits.
    Method: rank 0 cancels step 1 after its pushes, streamed updates included."""
    job = Job(update=update)
    with cluster_for(
        job, tmp_path, has_switch=has_switch, state=tmp_path / "state",
        memory_budget_bytes=job.least_bytes,
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
def test_resume_gives_the_bits_of_one_run(has_switch: bool, update: str, tmp_path: Path) -> None:
    """I2, I3. Goal: closed after two steps and opened again, the job ends as if it had not been.
    Method: weights after two steps are checked too; the later start must not load any."""
    job = Job(update=update)
    first_half = replace(job, steps=2)
    changes = {
        "has_switch": has_switch,
        "state": tmp_path / "state",
        "memory_budget_bytes": job.least_bytes,
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

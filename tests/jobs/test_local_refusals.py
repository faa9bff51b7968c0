"""I5, I6: what cannot work is refused by name, with the next thing to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.base.limits import PROTOCOL_VERSION
from luwu.nic.shell import Nic
from luwu.nic.threads import StepHandle
from switch_emu.node.plan import plan_node
from tests.helpers.local_job import (
    KIB,
    Job,
    Worker,
    check,
    cluster_for,
    every_order,
    every_place,
    make_layout,
    refusal,
    used_state,
)
from tests.helpers.waiting import is_soon
from tests.simulate.test_trees import TREES


def other_job() -> Job:
    """One whose first parameter has another shape."""
    layout = make_layout()
    rows = (replace(layout.parameters[0], shape=(96, 65)), *layout.parameters[1:])
    return Job(layout=replace(layout, parameters=rows))


@pytest.mark.parametrize(
    ("job", "resume", "said"),
    [
        (Job(), False, r"/state holds the state of a job after 2 decided steps.*--resume.*--state"),
        (Job(update="at_step"), True, 'update: "at_step", expected "streaming"'),
        (
            Job(layout=make_layout(32)), True,
            "was made with chunks of 16KiB, asked for 32KiB; use --chunk 16KiB",
        ),
    ],
)  # fmt: skip
def test_a_used_state_is_not_taken_for_another_job(
    job: Job, resume: bool, said: str, tmp_path: Path
) -> None:
    """I6. Goal: training on top of an old run is never an accident; another order of work is
    another job; the geometry of pages is fixed when the store is made. What differs is named."""
    text = refusal(job, tmp_path, state=used_state(tmp_path), resume=resume)
    assert re.search(said, text, re.DOTALL), text


@every_place
def test_state_of_another_model_is_refused(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: the text names what differs and what to do; the state is as it was."""
    state = used_state(tmp_path)
    text = refusal(other_job(), tmp_path, state=state, resume=True, has_switch=has_switch)
    assert "the state is that of another job" in text
    assert 'parameters[0]: ["p0", [96, 65]' in text
    assert 'expected ["p0", [96, 64]' in text
    assert "give the right --state, or a new directory" in text
    with cluster_for(Job(), tmp_path, state=state, resume=True) as cluster:
        check(cluster, Job(), cluster.run(Worker(Job())))


def test_a_budget_without_room_for_the_state_is_refused(tmp_path: Path) -> None:
    """I5. Goal: without a directory the state must fit into RAM; the text gives the number."""
    job = Job()
    text = refusal(job, tmp_path, memory_budget_bytes=job.least_bytes)
    named = int(text.split("give ")[1].split("KiB")[0]) * KIB
    assert "a directory with --state" in text
    plan_node(budget_bytes=named, chunk_bytes=job.layout.chunk_bytes, world_size=2, has_switch=True)
    with cluster_for(job, tmp_path, memory_budget_bytes=named) as cluster:
        check(cluster, job, cluster.run(Worker(job)))


class LeavingWorker(Worker):
    """A worker that closes its connections at its end, as the end of its process would."""

    def __call__(self, nic: Nic) -> Any:
        try:
            return super().__call__(nic)
        finally:
            nic.close()


@every_place
def test_a_job_that_is_refused_ends(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: what no worker can ever be served by does not listen any longer: after the workers
    have left, switch and node end, each with the reason."""
    job = Job()
    changes: dict[str, Any] = {"memory_budget_bytes": job.least_bytes, "has_switch": has_switch}
    with cluster_for(job, tmp_path, **changes) as cluster:
        with pytest.raises(ConfigError, match="memory_budget: two sides of the state"):
            cluster.run(LeavingWorker(job))
        cluster.wait_until_served()
        errors = [each for each in cluster.errors if isinstance(each, ConfigError)]
        assert sorted(each.code for each in errors) == ["E205", "E207"][: 1 + has_switch]


@every_place
def test_a_switch_whose_workers_have_another_state_ends(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: the switch of a job that the node refuses is of no use to another one: it ends. The
    node goes on listening for the job that its state belongs to."""
    changes: dict[str, Any] = {
        "state": used_state(tmp_path), "resume": True, "has_switch": has_switch,
    }  # fmt: skip
    with cluster_for(other_job(), tmp_path, **changes) as cluster:
        with pytest.raises(ConfigError, match="the state is that of another job"):
            cluster.run(LeavingWorker(other_job()))
        assert is_soon(lambda: bool(cluster.errors))
        assert "the job was rejected: the state is that of another job" in str(cluster.errors[0])


@pytest.mark.feature("different models or data on two workers")
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
@pytest.mark.parametrize("place", ["switch", "no-switch", "tree"])
def test_different_hyper_parameters_are_refused(place: str, update: str, tmp_path: Path) -> None:
    """I6. Goal: what differs, each value and its ranks, before anything is updated; in a tree whose
    leaves each agree, too."""
    tree = TREES["ranks in turn"] if place == "tree" else None
    job = Job(update=update, world_size=4 if tree else 2, tree=tree)

    class Differs(Worker):
        def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
            if nic.rank % 2 and step == 1:
                self.job = replace(job, max_grad_norm=9.0)
            return super()._step(nic, step, may_cancel)

    with (
        cluster_for(job, tmp_path, has_switch=place != "no-switch") as cluster,
        pytest.raises(ConfigError) as caught,
    ):
        workers = [Differs(job) for _ in range(job.world_size)]
        cluster.run(lambda nic: workers[nic.rank](nic))
    ranks, others = ("0, 2", "1, 3") if tree else ("0", "1")
    found = f"max_grad_norm is None on ranks {ranks} and 9.0 on ranks {others}"
    assert f"the hyper-parameters of step 1 differ between ranks ({found})" in str(caught.value)


@every_place
def test_another_protocol_version_is_refused(
    has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: two installations that do not understand each other say so.
    Method: the workers state the next version."""
    monkeypatch.setattr("luwu.nic.core.membership.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    text = refusal(Job(), tmp_path, has_switch=has_switch)
    versions = f"you use protocol version {PROTOCOL_VERSION + 1}, this side {PROTOCOL_VERSION}"
    assert versions in text
    assert "install the same luwu on both sides" in text

"""The cases of `luwu predict validate --machine`: what they cover, and that each can be run."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from luwu.commands.predict_machine import CASES, Case, Shape
from luwu.estimate.job import gpt_job
from luwu.estimate.played import machine_job
from luwu.estimate.shape import kept_in_ram
from luwu.launch.serving import decide_sizes, node_plan
from luwu.predict.driven.machine_play import predict_machine_step
from luwu.predict.machine.machine import MachineJob
from tests.unit.test_predict_laws_machine import FLOORS

TRANSPORTS = ("ipc", "tcp", "shm")


@pytest.mark.feature("runs on this machine, predicted before they are measured")
def test_cases_cover_workers_transports_memory_nodes_and_replicas() -> None:
    """Goal: one to eight workers; each transport in RAM, out of core, with two nodes and with
    replicas; budgets down to an eighth."""
    assert {case.workers for case in CASES} == set(range(1, 9))
    assert {case.parts for case in CASES} == {0, 2, 4, 8}
    assert len(set(CASES)) == len(CASES)
    kinds = {(case.transport, bool(case.parts), case.nodes, case.replicas) for case in CASES}
    assert kinds == {
        (transport, *kind)
        for transport, kind in product(
            TRANSPORTS, ((False, 1, 1), (True, 1, 1), (True, 2, 1), (True, 2, 2))
        )
    }


def planned(case: Case, data: Path) -> MachineJob:
    config = case.config(Shape(), data)
    sizes = decide_sizes(config, None)
    job = gpt_job(config, sizes, is_in_ram=not case.parts)
    plan = node_plan(config, sizes)
    assert plan.budget_bytes == sizes.memory_budget_bytes // case.nodes
    return machine_job(
        job, plan, kept_in_ram(job, plan, job.store), nodes=config.optimizer_nodes,
        replicas=config.replicas,
    )  # fmt: skip


def resident_ratio(job: MachineJob, node: int) -> float:
    """Share of a node's pages that stay in its memory."""
    chunks = [(unit, at) for unit, sizes in enumerate(job.chunks) for at in range(len(sizes))]
    own = [
        place for number, place in enumerate(chunks)
        if (node - number) % job.nodes < job.replicas
    ]  # fmt: skip
    return sum(job.stays(unit, at, node) for unit, at in own) / len(own)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.workers}-{c.transport}-{c.place}")
def test_each_case_can_be_planned(case: Case, tmp_path: Path) -> None:
    """Goal: no case is rejected on an ordinary machine: its budget holds a plan. A node keeps less
    than its share of the budget, and only pages that it holds."""
    data = tmp_path / "text"
    data.write_text("1 2 3 " * 1000, encoding="ascii")
    job = planned(case, data)
    assert (job.workers, job.nodes, job.replicas) == (case.workers, case.nodes, case.replicas)
    for node in range(case.nodes):
        assert resident_ratio(job, node) <= (1 / case.parts if case.parts else 1)
    if not case.parts:
        assert resident_ratio(job, 0) == 1
    every = (1 << case.nodes) - 1
    assert all(bits & ~every == 0 for unit in job.resident for bits in unit)


def test_replicas_take_longer_than_two_nodes_alone(tmp_path: Path) -> None:
    """Goal: a case with replicas is played to its end, and costs what it repeats."""
    data = tmp_path / "text"
    data.write_text("1 2 3 " * 1000, encoding="ascii")
    two, both = (
        predict_machine_step(
            planned(Case(workers=2, transport="ipc", parts=4, nodes=2, replicas=n), data), FLOORS
        )
        for n in (1, 2)
    )
    assert both.step_s > two.step_s
    assert both.work_s["updates"] == pytest.approx(2 * two.work_s["updates"])

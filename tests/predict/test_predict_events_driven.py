"""Steps that the project's own cores decide: equal to closed forms where those hold, and others
where a decision is changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import make_question
from luwu.predict.driven import driven, driven_worker
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.driven.driven_node import DrivenNode
from luwu.predict.driven.engines import Engine
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import STATE_BYTES
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems import in_network
from luwu.predict.systems.in_network import OptimizerNodes, node_resources, predict_in_network_step
from switch_emu.node.core import actions as do
from switch_emu.node.core.gathering import Gathering, Updates
from switch_emu.node.core.step import Step
from switch_emu.node.plan import plan_node

COARSE = 1 << 29
"""A layer of 13 B in three chunks: quick."""


def luwu(catalogue: Catalogue, **changes: Any) -> tuple[TrainingJob, OptimizerNodes]:
    """GPT of 13 B on eight workers, at 100 Gbit/s; `node` changes the node."""
    node = {"processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 12}
    table = {
        "system": "luwu", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
        "software": "deepspeed-2023", "devices": 8, "sequence": 2048, "batch": 32,
        "micro_batch": 4, "recompute": "full", **changes,
        "node": {**node, **changes.get("node", {})},
    }  # fmt: skip
    question = make_question(table, catalogue)
    assert isinstance(question.part, OptimizerNodes)
    return question.job, question.part


def worked(
    monkeypatch: pytest.MonkeyPatch, job: TrainingJob, nodes: OptimizerNodes
) -> tuple[float, Counter[str]]:
    """A step with one worker, and the seconds that each engine was at work; none is at two jobs."""
    busy_s, ends_s, work = Counter[str](), Counter[str](), Engine.work

    def seen(self: Engine, seconds: float) -> Any:
        yield from work(self, seconds)
        assert self._clock.now_s - ends_s[self.name] >= seconds * (1 - 1e-9)  # rounding
        ends_s[self.name] = self._clock.now_s
        busy_s[self.name] += seconds

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "work", seen)
        return play_driven_steps(job, nodes, chunk_bytes=COARSE, workers=1), busy_s


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize(
    ("micro_batch", "node"),
    [
        (1, {"cached": 1.0}), (4, {"cached": 1.0}), (64, {"cached": 1.0}), (4, {"disks": 48}),
        (16, {}), (64, {}), (4, {"pulls": 1, "cached": 1.0}),
    ],
)  # fmt: skip
def test_predict_laws_driven_steps_are_the_closed_form(
    catalogue: Catalogue, micro_batch: int, node: dict[str, Any]
) -> None:
    """L6. Goal: where drives are not what is waited for, the cores' step is the closed form
    within 3 %."""
    job, nodes = luwu(catalogue, micro_batch=micro_batch, batch=8 * micro_batch, node=node)
    closed = predict_in_network_step(job, nodes)
    step_s = play_driven_steps(job, nodes)
    assert step_s == pytest.approx(closed.seconds, rel=0.03)


NARROW = {"state_dtype": "int8", "master_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("pulls", "cached", "stored"),
    [(pulls, cached, {}) for pulls in (1, 2) for cached in (0.0, 0.25, 1.0)] + [(1, 0.25, NARROW)],
)
def test_predict_laws_driven_bytes_are_conserved(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, pulls: int, cached: float,
    stored: dict[str, str],
) -> None:  # fmt: skip
    """L1 to L5. Goal: in each step every parameter is pulled as often as the question says, pushed,
    read, updated and written once; memory passes what the closed form says. To 1e-5, as layouts
    are padded."""
    job, nodes = luwu(catalogue, node={"pulls": pulls, "cached": cached, **stored})
    _, busy_s = worked(monkeypatch, job, nodes)
    parameters = 3 * job.model.parameters
    state = parameters * (4.125 if stored else STATE_BYTES) * (1 - cached)
    expected = {
        "down": 2 * pulls * parameters / in_network.way_rate(job, nodes, "pull"),
        "up": job.software.gradient_bytes * parameters / in_network.way_rate(job, nodes, "push"),
        "disk read": nodes.host.read(state), "disk write": nodes.host.write(state),
        "node memory": node_resources(job, nodes, parameters)["node memory"],
    }  # fmt: skip
    assert {name: busy_s[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("micro_batch", "count"), [(1, 2), (2, 4), (4, 8)])
def test_predict_laws_driven_pushes_go_on_behind_the_next_forward(
    catalogue: Catalogue, micro_batch: int, count: int
) -> None:
    """L6. Goal: with gradients of 4 bytes and a state in memory, a step is its phases, or its first
    forward and all pushes, within 5 %: the closed form once was 30 % too slow, as pushes waited for
    forwards. The sums of a step wait in memory until it is whole."""
    job, nodes = luwu(
        catalogue, micro_batch=micro_batch, batch=8 * micro_batch * count,
        software="megatron-2023", node={"cached": 1.0, "memory_bytes": "2 TB"},
    )  # fmt: skip
    closed = predict_in_network_step(job, nodes)
    step_s = play_driven_steps(job, nodes, chunk_bytes=COARSE)
    assert step_s == pytest.approx(closed.seconds, rel=0.05)


def test_predict_laws_driven_steps_wait_for_drives(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4. Goal: where drives bind, steps cannot run ahead of their writes: in their stride they
    take at least the time that writing takes, and less than reading and writing in turn. A thread
    has its page until it is written; so slow drives delay the next forward, as the closed form
    says, with few drives and with many."""
    job, nodes = luwu(catalogue, micro_batch=1, batch=8, node={"disks": 6})
    closed = predict_in_network_step(job, nodes)
    assert closed.binding == "disk write"
    written_s = closed.resources["disk write"]
    monkeypatch.setattr(driven_worker, "STEPS", 6)
    step_s = play_driven_steps(job, nodes, chunk_bytes=COARSE)
    assert written_s * 0.99 < step_s < written_s + closed.resources["disk read"]
    assert step_s == pytest.approx(closed.seconds, rel=0.1)
    quick = replace(nodes, host=replace(nodes.host, disks=48))
    closed = predict_in_network_step(job, quick)
    assert play_driven_steps(job, quick) == pytest.approx(closed.seconds, rel=0.05)


def test_two_workers_stand_for_all(catalogue: Catalogue) -> None:
    """Goal: the switch sums what equal workers push at once; a third one changes nothing but what
    is played, and one alone is as long on its way; one layer alone is played, too."""
    job, nodes = luwu(catalogue)
    steps_s = [
        play_driven_steps(job, nodes, chunk_bytes=COARSE, workers=count) for count in (1, 2, 3)
    ]
    assert steps_s == [pytest.approx(steps_s[0])] * 3
    assert play_driven_steps(replace(job, model=replace(job.model, layers=1)), nodes) > 0


def test_predict_laws_driven_micro_batches(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: several micro-batches are pulled and pushed as often, folded, and updated once; with
    the state in memory they take the closed form's time and the updates that `at_step` leaves
    behind the last backward."""
    job, nodes = luwu(catalogue, batch=128, node={"cached": 1.0})
    kinds, doing = Counter[type](), DrivenNode._do

    def counting(self: DrivenNode, actions: Any) -> None:
        kinds.update(map(type, actions))
        doing(self, actions)

    monkeypatch.setattr(DrivenNode, "_do", counting)
    step_s, busy_s = worked(monkeypatch, job, nodes)
    pulled_s = 3 * 4 * 2 * 2 * job.model.parameters / in_network.way_rate(job, nodes, "pull")
    assert busy_s["down"] == pytest.approx(pulled_s, rel=1e-5)
    assert kinds[do.Fold] == 4 * kinds[do.Update] > 0
    closed = predict_in_network_step(job, nodes)
    least = closed.seconds - closed.parts["tail"]
    most = least + node_resources(job, nodes, job.model.parameters)["node memory"]
    assert least <= step_s * 1.01
    assert step_s <= most * 1.01


def test_predict_laws_driven_spills_are_read_back(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what is beyond the node's room for sums goes to drives and comes back once, and takes
    time; without drives that is refused."""
    job, nodes = luwu(catalogue, batch=64, node={"cached": 1.0, "disks": 1})
    bare = replace(nodes, host=replace(nodes.host, disk=None, disks=0))
    spilled_s, spilled = worked(monkeypatch, job, nodes)
    with pytest.raises(ConfigError, match=r"node.disks: .*1,024 MiB.*give disk and disks"):
        play_driven_steps(job, bare, chunk_bytes=COARSE)
    monkeypatch.setattr(
        driven, "plan_node", lambda **asked: replace(plan_node(**asked), sums_bytes=10**12)
    )
    held_s, held = worked(monkeypatch, job, nodes)
    read_share = nodes.host.read(1.0) / nodes.host.write(1.0)
    assert spilled["disk read"] == pytest.approx(spilled["disk write"] * read_share) != 0
    assert not held["disk write"]
    assert spilled_s > held_s
    assert play_driven_steps(job, bare, chunk_bytes=COARSE) == held_s


# ---------------------------------------------------------------------- a decision is changed


def test_a_decision_of_the_node_changes_the_prediction(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design 4. Goal: what the node's core decides is said once, for runs and predictions. Method:
    `Updates` is changed to update a page only when the gradient of the whole step has come; the
    predicted step is longer by what backward hid before."""
    job, nodes = luwu(catalogue, node={"cached": 1.0})
    step_s, start = play_driven_steps(job, nodes, chunk_bytes=COARSE), Updates.start

    def late(self: Updates, step: Step) -> None:
        sums = (step.extents.get(extent) for extent in self._shard.trainable)
        if all(each is not None and each.complete_up_to(1) for each in sums):
            start(self, step)

    monkeypatch.setattr(Updates, "start", late)
    # A receipt may wait for room only where pages are updated as their gradients come.
    monkeypatch.setattr(Gathering, "_can_owe", lambda *_: False)
    updates_s = node_resources(job, nodes, job.model.parameters)["node memory"]
    assert play_driven_steps(job, nodes, chunk_bytes=COARSE) > step_s + 0.5 * updates_s


# ---------------------------------------------------------------------- refused


def test_bad_prediction_of_driven_steps(catalogue: Catalogue) -> None:
    """Goal: what cannot be played is refused, with what would fit."""
    job, nodes = luwu(catalogue, batch=64)
    with pytest.raises(ConfigError, match=r"chunk: .*multiple of 16KiB"):
        play_driven_steps(job, nodes, chunk_bytes=5000)

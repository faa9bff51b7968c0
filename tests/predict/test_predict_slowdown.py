"""One device that is slower than the others: all wait for it, as far as they wait for compute."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.predict.ask.question import Question, make_question
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.systems.in_network import predict_in_network_step

HOST = {
    "processor": "Xeon-5320", "memory_bytes": "512 GiB", "disk": "P5510-3.84T", "disks": 12,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model": "GPT-13B", "device": "A100-80", "network": "roce-100g", "software": "megatron-2023",
    "devices": 8, "sequence": 2048, "batch": 64, "micro_batch": 8, "recompute": "full",
}  # fmt: skip
STAGES = {"pipeline": 4, "batch": 64, "micro_batch": 1}
TABLES: dict[str, dict[str, Any]] = {
    "luwu": {**SMALL, "node": HOST},
    "zero3": SMALL,
    "zero-offload": {**SMALL, "host": {**HOST, "devices": 8}},
    "zero-infinity": {**SMALL, "host": {**HOST, "devices": 8}},
    "3d": {**SMALL, **STAGES},
    "ddp": {**SMALL, "model": "GPT-1.3B"},
    "atp": {**SMALL, "model": "GPT-1.3B"},
}


def question(catalogue: Catalogue, system: str, **more: Any) -> Question:
    made = make_question({"system": system, **TABLES[system], **more}, catalogue)
    assert isinstance(made, Question)
    return made


@pytest.mark.parametrize("system", TABLES)
def test_predict_laws_a_slow_device_makes_all_wait(catalogue: Catalogue, system: str) -> None:
    """Goal: a step is longer, by no more than the device is slower; and more with more."""
    even = question(catalogue, system).answer().seconds
    found = [
        question(catalogue, system, slowdown=slowdown).answer().seconds / even
        for slowdown in (1, 1.2, 1.5, 3)
    ]
    assert found[0] == 1
    assert found == sorted(set(found))
    assert 1 < found[1] <= 1.2
    assert found[3] <= 3


def test_predict_laws_a_device_alone_is_as_much_slower(catalogue: Catalogue) -> None:
    """O4. Goal: where nothing is exchanged, all of a step is compute."""
    alone: dict[str, Any] = {"devices": 1, "batch": 8}
    even, slow = (
        question(catalogue, "ddp", **alone, slowdown=slowdown).answer() for slowdown in (1, 1.25)
    )
    assert slow.seconds == pytest.approx(1.25 * even.seconds)


def test_predict_laws_a_slow_device_that_nobody_waits_for(catalogue: Catalogue) -> None:
    """Goal: where LuWu's node binds by far, a little slower costs less than that."""
    small: dict[str, Any] = {"micro_batch": 1, "batch": 8}
    even, slow = (
        question(catalogue, "luwu", **small, slowdown=slowdown).answer() for slowdown in (1, 1.1)
    )
    assert even.binding == slow.binding != "compute"
    assert slow.seconds < 1.05 * even.seconds


def test_predict_laws_slow_workers_in_events_are_the_closed_form(catalogue: Catalogue) -> None:
    """L6. Goal: the node waits for the slowest worker; the project's own cores wait as long."""
    made = question(catalogue, "luwu", slowdown=1.5)
    assert made.nodes is not None
    closed = predict_in_network_step(made.job, made.nodes)
    expected = closed.seconds
    assert play_driven_steps(made.job, made.nodes) == pytest.approx(expected, rel=0.03)

"""No step is shorter than its busiest resource needs, or longer with more of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer
from luwu.predict.ask.keys import SYSTEMS
from luwu.predict.ask.question import AnyQuestion, make_question
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Curve
from luwu.predict.inference.inference_sockets import SocketJob
from luwu.predict.model.job import StepTime
from luwu.predict.systems.in_network import OptimizerNodes
from tests.predict.tables import LUWU, NODE, asked
from tests.predictions import Trial, main, quick_playing, random_table, trials

RATES = (
    ("memory_rate",), ("bf16", "fp8", "matmul_bf16", "matmul_fp8"), ("all_reduce", "domain_rate"),
    ("host_rate",),
)  # fmt: skip
SLOW: dict[str, Any] = {
    "system": "3d", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "software": "nemo-2024", "devices": 64, "sequence": 8192, "batch": 128, "tensor": 4,
    "pipeline": 4, "virtual": 20, "sequence_parallel": True, "recompute": "selective",
}  # fmt: skip


def test_predict_laws_no_step_is_shorter_than_its_busiest_resource(catalogue: Catalogue) -> None:
    """P2. Goal: of a thousand random questions of all systems none is answered, or played, with
    less than a port, a device, a memory or a drive needs; and each limits some of them. Method:
    needs are counted apart from the model; `make campaign` asks 100,000."""
    found = list(trials(1000, 0, catalogue))
    assert [(trial.violations, trial.table) for trial in found if trial.violations] == []
    longest = {max(each.needs, key=lambda name: each.needs[name]) for each in found}
    assert {"port", "compute", "memory", "push", "pull", "disk write"} <= longest
    assert any(each.played_s is not None for each in found)


def twice(thing: Any, *names: str) -> Any:
    """With twice of what it has of these numbers and curves."""
    found = {}
    for name in names:
        value = getattr(thing, name, None)
        if isinstance(value, Curve):
            found[name] = replace(value, rates=tuple(2 * rate for rate in value.rates))
        elif value is not None:
            found[name] = 2 * value
    return replace(thing, **found)


def faster(question: Any) -> Iterator[tuple[str, Any]]:
    """The question with twice of one thing each, and what that is."""
    job, part = question.job, getattr(question, "part", None)
    more = {"job": replace(job, network=twice(job.network, "rate"))}
    if isinstance(part, OptimizerNodes):
        more["part"] = replace(part, network=twice(part.network, "rate"))
    yield "network", replace(question, **more)
    kind = "processor" if isinstance(job, SocketJob) else "device"
    for names in RATES:
        own = twice(getattr(job, kind), *names)
        yield names[0], replace(question, job=replace(job, **{kind: own}))
    if part is not None:
        for name in ("disks", "processors"):
            yield name, replace(question, part=replace(part, host=twice(part.host, name)))
    if isinstance(part, OptimizerNodes):
        yield "nodes", replace(question, part=twice(part, "nodes"))
        yield "cached", replace(question, part=replace(part, cached=1.0))


def test_predict_laws_more_is_never_slower(catalogue: Catalogue) -> None:
    """Goal: of random questions of all systems none takes longer, for a step or for a token, with
    twice the rate of a port, a device, a memory or a drive, or with more nodes; and no part of a
    step is below zero."""
    random, seen = Random(0), Counter[str]()
    for number in range(1000):
        with suppress(ConfigError):
            system = tuple(SYSTEMS)[number % len(SYSTEMS)]
            question = make_question(random_table(system, random), catalogue)
            before = parts_of(question)
            assert min(before.values()) >= 0
            for name, more in faster(question):
                assert sum(parts_of(more).values()) <= sum(before.values()) * (1 + 1e-9), name
                seen[name] += 1
    assert len(seen) == 9
    assert min(seen.values()) > 50


def parts_of(question: AnyQuestion) -> dict[str, float]:
    """Of a step, or between two tokens."""
    found = question.answer()
    return found.parts if isinstance(found, StepTime) else found.decode.parts


def test_bad_prediction_is_found() -> None:
    """Goal: the count can fail: a step, and a play, that are shorter than a need."""
    trial = Trial({}, seconds=1.0, needs={"port": 2.0, "compute": 0.5}, played_s=1.5)
    assert trial.violations == [
        "port needs 2 s, the answer takes 1 s", "port needs 2 s, the play takes 1.5 s",
    ]  # fmt: skip


def test_predictions_end_with_their_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the campaign's program counts what it asked, and jobs that were played."""
    assert main(["--count", "20"]) == main(["--cores", "2"]) == 0
    *_, last, _, differ = capsys.readouterr().out.splitlines()
    assert (last, differ) == ("20 trials, 0 violations", "2 trials, 0 violations")


def test_predict_laws_an_interleaved_pipeline_takes_what_its_port_needs(
    catalogue: Catalogue,
) -> None:
    """P1, P2, T5. Goal: 70B in twenty parts a stage on 12.5 Gbit/s a device: the closed form says
    what the port needs."""
    question = asked(SLOW, catalogue)
    network = replace(question.job.network, rate=12.5e9 / 8)
    question = replace(question, job=replace(question.job, network=network))
    sent = sum(each.port_bytes for each in question.exchanges().values())
    port_s = sent / question.job.network.port_rate
    step = question.answer()
    assert step.binding == "network port"
    assert step.seconds - step.parts["straggling"] == pytest.approx(port_s)


def test_predict_laws_a_play_measures_a_step_like_all_after_it(catalogue: Catalogue) -> None:
    """P2. Goal: where the drive binds, the first steps leave the next one less to write; the step
    that is measured comes after them. (Of 100,000 random questions one was 3 % too short.)"""
    question = asked(
        LUWU, catalogue, network="roce-400g", software="llama-2024", devices=32, sequence=8192,
        micro_batch=2, nics_per_host=2, recompute="none", node={**NODE, "disks": 1},
    )  # fmt: skip
    step = question.answer()
    assert step.binding == "disk write"
    assert question.nodes is not None
    how = quick_playing(question.job)
    played_s = play_driven_steps(question.job, question.nodes, **how)
    assert step.resources["disk write"] < played_s
    assert played_s == pytest.approx(step.seconds, rel=0.1)
    several = replace(question, job=replace(question.job, batch=128))
    said = [
        any("believe the cores" in w for w in answer(q)["warnings"]) for q in (question, several)
    ]
    assert said == [False, True]

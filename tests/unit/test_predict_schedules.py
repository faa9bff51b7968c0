"""Pipeline schedules: equal to closed forms where stages are equal and sends free, and laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from luwu.predict.events.engines import Span
from luwu.predict.events.pipeline_training import (
    layers_of_stages,
    pipeline_of,
    play_training_step,
    played_step_s,
)
from luwu.predict.events.schedules import (
    BACKWARD,
    FORWARD,
    Part,
    Pipeline,
    PlayedPipeline,
    Task,
    longest_path_s,
    play_pipeline,
    tasks_of,
)
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.memory import activation_bytes, layer_activation_bytes
from luwu.predict.model.traffic import stage_bytes
from luwu.predict.systems.training import predict_step
from tests.unit.event_pipelines import play_by_events

SHAPES = [
    (1, 1, 1), (1, 1, 4), (2, 1, 1), (4, 1, 2), (4, 1, 8), (8, 1, 64), (2, 2, 2), (2, 2, 4),
    (4, 2, 4), (4, 3, 8), (8, 4, 8), (8, 3, 64), (8, 12, 16),
]  # fmt: skip
"""Stages, parts of each, micro-batches."""


def equal(stages: int, virtual: int, micro_batches: int, **changes: Any) -> Pipeline:
    """A pipeline of equal parts, whose stages take 1 s forward and 2 s backward."""
    part = Part(forward_s=1 / virtual, backward_s=2 / virtual)
    parts = ((part,) * virtual,) * stages
    return replace(Pipeline(parts=parts, micro_batches=micro_batches), **changes)


def uneven(**changes: Any) -> Pipeline:
    """Every part, send and exchange takes its own time."""
    parts = tuple(
        tuple(
            Part(
                forward_s=1 + (3 * stage + part) % 4, backward_s=2 + (stage + 2 * part) % 3,
                reduce_s=0.5 + stage, gather_s=0.25 + part,
            )
            for part in range(2)
        )
        for stage in range(4)
    )  # fmt: skip
    plan = Pipeline(
        parts=parts, micro_batches=8, send_s=0.3, sent_bytes=100.0, data_overlap=0.6,
        optimizer_s=(0.1, 0.2, 0.3, 0.4),
    )  # fmt: skip
    return replace(plan, **changes)


# ---------------------------------------------------------------------- orders


@pytest.mark.parametrize(("stages", "virtual", "micro_batches"), SHAPES)
def test_predict_laws_a_stage_does_each_task_once(
    stages: int, virtual: int, micro_batches: int
) -> None:
    """E1, E2. Goal: each micro-batch goes forward and backward through each part once, forward
    first."""
    for stage in range(stages):
        tasks = tasks_of(stage, stages, virtual, micro_batches)
        assert len(tasks) == len(set(tasks)) == 2 * virtual * micro_batches
        at = {task: index for index, task in enumerate(tasks)}
        for task in tasks:
            if task.kind == BACKWARD:
                assert at[task._replace(kind=FORWARD)] < at[task]


def test_predict_laws_orders_of_the_source() -> None:
    """E1, E2. Goal: as SC'21 draws them: in 1F1B the first of four stages does three forwards
    before it turns, the last one none; interleaved, the first does 2 * 3 + 4."""
    first, last = (tasks_of(stage, 4, 1, 8) for stage in (0, 3))
    text = "".join(task.kind[0] for task in first)
    assert text == "fff" + "fb" * 5 + "bbb"
    assert "".join(task.kind[0] for task in last) == "fb" * 8
    tasks = tasks_of(0, 4, 2, 8)
    assert [task.kind for task in tasks[:12]] == [FORWARD] * 11 + [BACKWARD]
    assert [(task.part, task.micro_batch) for task in tasks[:10]] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (0, 4), (0, 5),
    ]  # fmt: skip
    assert tasks[11].part == 1


def kept_parts(tasks: Sequence[Task]) -> int:
    """Forwards whose backward has not ended, at most: what a stage keeps activations of (E4)."""
    kept = most = 0
    for task in tasks:
        kept += 1 if task.kind == FORWARD else 0
        most = max(most, kept)
        kept -= 1 if task.kind == BACKWARD else 0
    return most


@pytest.mark.parametrize(("virtual", "micro_batches"), [(1, 2), (1, 8), (1, 64), (2, 16), (6, 64)])
def test_predict_laws_the_first_stage_keeps_what_memory_counts(
    catalogue: Catalogue, virtual: int, micro_batches: int
) -> None:
    """E4, Y3. Goal: the closed form of activations counts as many as the order keeps."""
    made = job(catalogue, virtual=virtual, batch=32 * micro_batches)
    kept = kept_parts(tasks_of(0, 8, virtual, micro_batches)) / virtual
    layers = made.model.layers / made.pipeline
    assert kept * layers * layer_activation_bytes(made) == pytest.approx(activation_bytes(made))
    assert kept >= kept_parts(tasks_of(7, 8, virtual, micro_batches)) / virtual


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("stages", "virtual", "micro_batches"), SHAPES)
def test_predict_laws_equal_stages_are_the_closed_form(
    stages: int, virtual: int, micro_batches: int
) -> None:
    """E3. Goal: with equal parts and free sends, T4's bubble, to rounding; also of sizes of 1."""
    played = play_pipeline(equal(stages, virtual, micro_batches))
    expected = 3 * (micro_batches + (stages - 1) / virtual)
    assert played.seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_predict_laws_sends_are_waited_for_all_along(stages: int) -> None:
    """E5. Goal: in 1F1B each micro-batch costs 2 c (p - 1)/p more, not only the first and last;
    interleaved there is one more under way on each stage, and only the ends cost."""
    c = 0.01
    two, four = (play_pipeline(equal(stages, 1, m, send_s=c)).seconds for m in (200, 400))
    assert (four - two) / 200 == pytest.approx(3 + 2 * c * (stages - 1) / stages, rel=1e-9)
    two, four = (play_pipeline(equal(stages, 2, m, send_s=c)).seconds for m in (200, 400))
    assert (four - two) / 200 == pytest.approx(3, rel=1e-9)


@pytest.mark.parametrize("virtual", [1, 2, 6])
def test_predict_laws_the_last_stage_makes_others_wait(virtual: int) -> None:
    """T4. Goal: an output layer on the last stage costs m times its own time, as the closed form
    has it, within 1 %."""
    plan = equal(8, virtual, 64)
    *others, last = plan.parts
    head = replace(last[-1], forward_s=last[-1].forward_s + 0.02,
                   backward_s=last[-1].backward_s + 0.04)  # fmt: skip
    played = play_pipeline(replace(plan, parts=(*others, (*last[:-1], head))))
    assert played.seconds == pytest.approx(3 * (64 + 7 / virtual) + 64 * 0.06, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [{}, {"data_overlap": 0.0}, {"data_overlap": 1.0},
     {"send_s": 0.0}, {"send_s": 3.0}, {"optimizer_s": ()}],
    ids=str,
)  # fmt: skip
def test_predict_laws_played_steps_are_longest_paths(change: dict[str, Any]) -> None:
    """E6. Goal: whatever parts differ, an event core gives the same step and spans, to rounding."""
    plan = uneven(**change)
    played, events = play_pipeline(plan), play_by_events(plan)
    assert played.seconds == longest_path_s(plan) == pytest.approx(events.seconds, rel=1e-12)
    assert [_rounded(span) for span in _sorted(played)] == [
        _rounded(span) for span in _sorted(events)
    ]


def _sorted(played: PlayedPipeline) -> list[Span]:
    return sorted(played.record.spans, key=lambda span: (span.engine, span.job, span.start_s))


def _rounded(span: Span) -> Span:
    return replace(span, start_s=round(span.start_s, 9), end_s=round(span.end_s, 9))


# ---------------------------------------------------------------------- laws of records


def test_predict_laws_engines_do_one_thing_and_bytes_are_conserved() -> None:
    """Goal: no engine is at two jobs; each boundary carries all activations and gradients once;
    compute does all tasks and is busy for as long as they take."""
    plan = uneven()
    record = play_pipeline(plan).record
    for engine in {span.engine for span in record.spans}:
        spans = sorted(record.of(engine), key=lambda span: (span.start_s, span.end_s))
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(spans)), engine
    boundaries = plan.stages * plan.virtual - 1
    sent = sum(span.amount for span in record.spans if span.engine.endswith("port"))
    assert sent == 2 * boundaries * plan.micro_batches * plan.sent_bytes
    for stage, parts in enumerate(plan.parts):
        work = plan.micro_batches * sum(part.forward_s + part.backward_s for part in parts)
        assert record.busy_s(f"stage {stage}") == pytest.approx(work + plan.optimizer_s[stage])
        exchange = sum(part.reduce_s + part.gather_s for part in parts)
        assert record.amount(f"stage {stage} data") == pytest.approx(exchange)


def test_predict_laws_nothing_is_used_before_it_arrived() -> None:
    """Goal: a task begins after the send of what it works on has ended."""
    plan = uneven()
    record = play_pipeline(plan).record
    begun = {
        (stage, span.job): span.start_s
        for stage in range(4)
        for span in record.of(f"stage {stage}")
    }
    sends = [span for span in record.spans if span.engine.endswith("port")]
    assert sends
    for span in sends:
        kind, micro_batch, _, part = span.job.split()
        source, target = int(span.engine.split()[1]), dict(span.fields)["to_stage"]
        step = 1 if kind == FORWARD else -1
        assert (source + step) % 4 == target
        wrapped = int(part) + (source + step) // 4
        assert begun[target, f"{kind} {micro_batch} part {wrapped}"] >= span.end_s


@pytest.mark.parametrize("key", ["send_s", "forward_s", "backward_s", "reduce_s", "gather_s"])
def test_predict_laws_faster_is_never_slower_in_schedules(key: str) -> None:
    """Goal: half the time of anything makes no step longer."""
    plan = uneven()
    if key == "send_s":
        faster = replace(plan, send_s=plan.send_s / 2)
    else:
        parts = tuple(
            tuple(replace(part, **{key: getattr(part, key) / 2}) for part in each)
            for each in plan.parts
        )
        faster = replace(plan, parts=parts)
    assert play_pipeline(faster).seconds <= play_pipeline(plan).seconds


def test_predict_laws_two_steps_are_identical() -> None:
    """Goal: the same record, span by span."""
    assert play_pipeline(uneven()) == play_pipeline(uneven())


@pytest.mark.parametrize("stage", [0, 3, 7])
def test_predict_laws_one_slow_stage_sets_the_pace(stage: int) -> None:
    """Goal: a stage that is 20 % slower makes a long step 20 % longer, wherever it is, and all
    stages being slower makes all of it so."""
    base = play_pipeline(equal(8, 1, 400)).seconds
    plan = equal(8, 1, 400)
    slower = tuple(
        replace(part, forward_s=1.2 * part.forward_s, backward_s=1.2 * part.backward_s)
        for part in plan.parts[stage]
    )
    parts = (*plan.parts[:stage], slower, *plan.parts[stage + 1 :])
    slow = play_pipeline(replace(plan, parts=parts)).seconds
    assert slow / base == pytest.approx(1.2, rel=0.01)
    whole = play_pipeline(replace(plan, parts=(slower,) * 8)).seconds
    assert whole == pytest.approx(1.2 * base)


def test_predict_laws_overlapped_exchange_hides_behind_the_ends() -> None:
    """Goal: with no overlap the exchange adds all of the stage that ends last; with all of it
    beside compute, and time enough there, nothing."""
    part = Part(forward_s=1, backward_s=2, reduce_s=0.8, gather_s=0.4)
    plan = Pipeline(parts=((part,),) * 4, micro_batches=8)
    assert play_pipeline(plan).seconds == pytest.approx(33 + 1.2)
    assert play_pipeline(replace(plan, data_overlap=1.0)).seconds == pytest.approx(33)
    slow = replace(part, gather_s=1.5, reduce_s=2.5)
    late = play_pipeline(Pipeline(parts=((slow,),) * 4, micro_batches=8, data_overlap=1.0))
    assert late.seconds == pytest.approx(33 + 0.5 + 0.5)


# ---------------------------------------------------------------------- jobs


def job(catalogue: Catalogue, **changes: Any) -> TrainingJob:
    """GPT-3 on 2,048 A100, eight stages."""
    table = {
        "model": catalogue.model("GPT-175B"), "device": catalogue.device("A100-80"),
        "network": catalogue.network("ib-hdr"), "software": software("megatron-2023"),
        "devices": 2048, "sequence": 2048, "batch": 1024, "tensor": 8, "pipeline": 8,
        "sequence_parallel": True,
    }  # fmt: skip
    return TrainingJob(**{**table, **changes})


@pytest.mark.parametrize("virtual", [1, 3, 12])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_predict_laws_played_training_is_the_closed_form(
    catalogue: Catalogue, virtual: int, recompute: str
) -> None:
    """T4. Goal: with equal stages (no vocabulary to speak of) and a network that takes no time, a
    job's step is that of the closed form within 1 %."""
    network = replace(catalogue.network("ib-hdr"), rate=1e18, latency_s=0.0)
    model = replace(catalogue.model("GPT-175B"), vocab=8)
    made = job(catalogue, model=model, network=network, virtual=virtual, recompute=recompute)
    assert ratio(made) == pytest.approx(1, abs=0.01)
    assert played_step_s(made) == pytest.approx(predict_step(made).seconds, rel=0.01)


def ratio(made: TrainingJob) -> float:
    """Played over closed form, both without straggling: what the schedule makes of it."""
    straggling_s = predict_step(made).parts["straggling"]
    return (played_step_s(made) - straggling_s) / play_training_step(made).closed_s


def waited_s(made: TrainingJob) -> float:
    """What sends add to a step without the data parallel exchange."""
    plan = pipeline_of(made)
    alone = replace(plan, parts=tuple(
        tuple(replace(part, reduce_s=0.0, gather_s=0.0) for part in each) for each in plan.parts
    ))  # fmt: skip
    return longest_path_s(alone) - longest_path_s(replace(alone, send_s=0.0))


def test_predict_laws_one_stage_is_played_too(catalogue: Catalogue) -> None:
    """Goal: sizes of one: no send, no bubble."""
    made = job(catalogue, model=catalogue.model("GPT-13B"), devices=8, pipeline=1, batch=4)
    assert waited_s(made) == 0
    assert ratio(made) == pytest.approx(1, abs=0.001)
    spans = play_training_step(made).record.spans
    assert not [span for span in spans if span.engine.endswith("port")]


def test_sends_of_a_slow_network(catalogue: Catalogue) -> None:
    """T5, P2. Goal: 1F1B waits for sends at each of the 128 micro-batches, as the closed form says;
    an output layer, which the others wait for anyway, hides some of it, which only the play knows;
    interleaved in twelve parts, they are in the open where the framework hides none, and where it
    hides most, the port limits both."""
    slow = job(catalogue, network=catalogue.network("virtio-10g"), devices=64, batch=128)
    equal_job = replace(slow, model=replace(slow.model, vocab=8))
    send_s, waited = pipeline_of(equal_job).send_s, waited_s(equal_job)
    assert waited == pytest.approx(2 * 7 / 8 * 128 * send_s, rel=0.1)
    closed = predict_step(equal_job).parts["pipeline exchange"]
    assert waited == pytest.approx(closed, rel=0.15)
    assert 14 * send_s < waited_s(slow) < waited
    network = replace(slow.network, rate=slow.network.rate / 4)
    parts_job = replace(slow, virtual=12, network=network)
    port_s = 2 * 12 * 128 * pipeline_of(parts_job).send_s
    assert ratio(parts_job) == pytest.approx(1, abs=0.1)
    assert predict_step(parts_job).parts["pipeline exchange"] == pytest.approx(port_s)
    hiding = replace(parts_job, software=replace(parts_job.software, overlaps="all"))
    hidden = replace(hiding, network=replace(network, rate=network.rate / 2))
    assert predict_step(hidden).binding == "network port"
    assert ratio(hidden) == pytest.approx(1, abs=0.05)


def test_predict_laws_plans_play_what_pictures_show(catalogue: Catalogue) -> None:
    """E6. Goal: where the port does not limit, what plans play is what is drawn, and straggling."""
    for virtual in (1, 3):
        made = job(catalogue, virtual=virtual, devices=64)
        straggling_s = predict_step(made).parts["straggling"]
        drawn_s = play_training_step(made).record.end_s
        assert played_step_s(made) == pytest.approx(drawn_s + straggling_s)


def test_stages_share_layers(catalogue: Catalogue) -> None:
    """E7, E9. Goal: what is left over goes to the middle; all layers, the embedding and the output
    layer are somewhere, once."""
    llama = replace(catalogue.model("Llama3-405B"), layers=126)
    made = job(catalogue, model=llama, pipeline=16, batch=2048)
    assert layers_of_stages(made) == (7, *[8] * 14, 7)
    assert sum(layers_of_stages(made)) == 126
    plan = pipeline_of(made)
    first, second, *_, last = plan.parts
    assert second[0].forward_s * 7 / 8 < first[0].forward_s < second[0].forward_s
    assert last[0].backward_s > second[0].backward_s * 7 / 8
    assert plan.sent_bytes == stage_bytes(made) == 2 * 2048 * llama.hidden / 8


@pytest.mark.parametrize("virtual", [1, 8])
def test_ends_take_places_of_layers(catalogue: Catalogue, virtual: int) -> None:
    """E7. Goal: with ends that count as layers, as 405B is trained, the first and the last stage
    have a layer fewer, in their first and last part; all layers are there, and the step is that of
    the closed form within 1 %, of which the network has no part."""
    network = replace(catalogue.network("ib-hdr"), rate=1e18, latency_s=0.0)
    made = job(
        catalogue, model=catalogue.model("Llama3-405B"), pipeline=16, devices=1024, batch=512,
        virtual=virtual, ends_as_layers=True, network=network,
    )  # fmt: skip
    assert layers_of_stages(made) == (7, *[8] * 14, 7)
    plan = pipeline_of(made)
    layer_s = plan.parts[1][0].forward_s * made.virtual / 8
    assert plan.parts[0][0].forward_s < (8 / made.virtual - 1) * layer_s + 0.1 * layer_s
    assert ratio(made) == pytest.approx(1, abs=0.01)

"""Continuous batching played: laws of rounds, memory and waiting; saturated, the closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.events.serving import (
    PiecesWork,
    Request,
    Round,
    Served,
    percentile,
    requests_at_random,
    serve,
    stage_seconds,
)
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.curves import Notes
from luwu.predict.inference.inference import Work, layer_time, predict_continuous, predict_round
from luwu.predict.inference.inference_job import InferenceJob


def requests_at_once(count: int, input_tokens: int, output_tokens: int) -> list[Request]:
    """All there at the beginning."""
    return [Request(input_tokens=input_tokens, output_tokens=output_tokens)] * count


def job(catalogue: Catalogue, **changes: Any) -> InferenceJob:
    """Llama 70B on eight H100."""
    table = {
        "model": catalogue.model("Llama3-70B"), "device": catalogue.device("H100-80"),
        "network": catalogue.network("ib-ndr"), "tensor": 8, "precision": "fp8",
        "kv_precision": "fp8", "input_tokens": 1024, "output_tokens": 256, "batch": 64,
        "batching": "continuous",
    }  # fmt: skip
    return InferenceJob(**{**table, **changes})


def saturated(made: InferenceJob, waves: int, seed: int = 1) -> tuple[Served, float, float]:
    """Served a tenth more requests than it can answer; tokens a second in the second half of that
    time, and those of the closed form."""
    batch, closed = predict_continuous(made)
    rate = batch / closed.seconds
    requests = requests_at_random(
        int(waves * batch), 1.1 * rate / made.output_tokens, seed, made.input_tokens,
        made.output_tokens,
    )  # fmt: skip
    served = serve(made, requests)
    last_s = requests[-1].arrive_s
    tokens = sum(answers(each) for each in served.rounds if last_s / 2 < each.end_s <= last_s)
    return served, tokens / (last_s / 2), rate


def answers(of: Round) -> int:
    """Tokens that came out of a round."""
    return of.decodes + of.ended


def first_token_s(served: Served, share: float = 0.5) -> float:
    """Time to the first token that such a share of requests had at most."""
    return percentile(sorted(each.first_token_s for each in served.answers), share)


# ---------------------------------------------------------------------- closed forms


def test_predict_laws_one_request_is_its_rounds(catalogue: Catalogue) -> None:
    """IN8. Goal: alone, a prompt takes one round per budget's worth, and each token a round."""
    made = job(catalogue, budget_tokens=512)
    (answer,) = (served := serve(made, requests_at_once(1, 1024, 4))).answers
    pieces = [predict_round(made, PiecesWork(prefill_tokens=512, prompt=512 * (1 + 2 * each),
                                             ended=each)).seconds for each in (0, 1)]  # fmt: skip
    decodes = [predict_round(made, Work(decodes=1, context=1024 + each)).seconds
               for each in (1, 2, 3)]  # fmt: skip
    assert answer.first_token_s == pytest.approx(sum(pieces))
    assert answer.end_s == served.end_s == pytest.approx(sum(pieces) + sum(decodes))
    assert served.between_s == pytest.approx(sorted(decodes))
    assert [each.prefill_tokens for each in served.rounds] == [512, 512, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "within"),
    [
        ({"batch": 64}, 0.04),
        ({"batch": 256}, 0.04),
        ({"batch": 256, "input_tokens": 128, "output_tokens": 128}, 0.02),
        ({"batch": 128, "input_tokens": 2048, "output_tokens": 128}, 0.04),
        ({"batch": 128, "input_tokens": 2048, "output_tokens": 128, "budget_tokens": 1024}, 0.01),
        ({"batch": 256, "tensor": 2, "pipeline": 4, "input_tokens": 2048, "output_tokens": 128,
          "budget_tokens": 512}, 0.01),
        ({"batch": 256, "tensor": 4, "pipeline": 2, "input_tokens": 2048, "output_tokens": 128,
          "budget_tokens": 512}, 0.01),
    ],
    ids=str,
)  # fmt: skip
def test_predict_laws_saturation_is_the_closed_form(
    catalogue: Catalogue, change: dict[str, Any], within: float
) -> None:
    """IN6. Goal: with more equal requests than can be answered, tokens a second are those of the
    closed form: within 1 % where every round is as full as its budget, within 4 % where rounds
    differ (the closed form counts a decode more for each answer, whose first token is the
    prefill's)."""
    _, found, expected = saturated(job(catalogue, **change), waves=5)
    assert found == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("pipeline", [1, 3, 4])
def test_predict_laws_stages_are_the_round(catalogue: Catalogue, pipeline: int) -> None:
    """IN11. Goal: a round's stages take what the closed form says of all of it, also where layers
    are left over."""
    made = job(catalogue, tensor=4, pipeline=pipeline)
    time = predict_round(made, Work(decodes=20, context=100, prefill_tokens=300, prompt=700))
    seconds = stage_seconds(made, time)
    assert sum(seconds) == pytest.approx(time.seconds)
    assert len(seconds) == pipeline


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_predict_laws_pieces_add_up_to_a_prompt(catalogue: Catalogue, piece: int) -> None:
    """IN9. Goal: attention of a prompt is the same in any pieces."""
    made = job(catalogue)
    whole = layer_time(made, Work(prefill_tokens=1000, prompt=1000), Notes())["attention"]
    found = 0.0
    for start in range(0, 1000, piece):
        size = min(piece, 1000 - start)
        work = PiecesWork(prefill_tokens=size, prompt=2 * start + size, ended=0)
        found += layer_time(made, work, Notes())["attention"]
    assert found == pytest.approx(whole)


def test_events_see_that_stages_wait_for_long_rounds(catalogue: Catalogue) -> None:
    """Goal: what the closed form misses: with stages, a group's round with a prompt holds up the
    rounds of the others; 10 % and more of tokens a second, here, where pieces of equal rounds cost
    none."""
    made = job(catalogue, tensor=1, pipeline=8, input_tokens=2048, output_tokens=128)
    served, found, expected = saturated(made, waves=5)
    assert 0.6 < found / expected < 0.9
    assert percentile(served.between_s, 0.95) > 2 * percentile(served.between_s, 0.5)


# ---------------------------------------------------------------------- what is conserved


def mixed(count: int) -> list[Request]:
    """Requests of different lengths, three a second."""
    return [
        Request(arrive_s=index / 3, input_tokens=1 + 997 * index % 3000,
                output_tokens=1 + 31 * index % 90)
        for index in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"tensor": 2, "pipeline": 4}, {"batch": 1}], ids=str)
def test_predict_laws_all_tokens_come_out(catalogue: Catalogue, change: dict[str, Any]) -> None:
    """IN8, IN10. Goal: every prompt is read once, every token made once; no round is over budget,
    no stage at two rounds, no time below zero; answers are in the order of the requests."""
    made = job(catalogue, budget_tokens=700, **{"batch": 16, **change})
    requests = mixed(60)
    served = serve(made, requests)
    assert sum(each.prefill_tokens for each in served.rounds) == sum(
        each.input_tokens for each in requests
    )
    assert sum(answers(each) for each in served.rounds) == sum(
        each.output_tokens for each in requests
    )
    assert len(served.between_s) == sum(each.output_tokens - 1 for each in requests)
    for each in served.rounds:
        assert 0 < each.decodes + each.prefill_tokens <= made.budget_tokens
        assert each.decodes <= made.batch
    tokens = sum(each.decodes + each.prefill_tokens for each in served.rounds)
    for stage in range(made.pipeline):
        spans = served.record.of(f"stage {stage}")
        assert served.record.amount(f"stage {stage}") == tokens
        assert all(a.end_s <= b.start_s for a, b in pairwise(spans))
    assert [each.request for each in served.answers] == requests
    assert min(each.first_token_s for each in served.answers) > 0


def test_predict_laws_memory_is_never_over(catalogue: Catalogue) -> None:
    """IN10. Goal: sequences that are longer than the batch was counted for wait until memory has
    room; as many as it holds are at once, and not one more."""
    made = job(catalogue, tensor=2, batch=400, input_tokens=100, output_tokens=50)
    served = serve(made, requests_at_once(60, 20000, 200))
    assert served.peak_bytes <= made.device.memory_bytes
    one = serve(made, requests_at_once(1, 20000, 200)).peak_bytes
    two = serve(made, requests_at_once(2, 20000, 200)).peak_bytes
    assert made.device.memory_bytes - served.peak_bytes < two - one
    most = max(each.decodes for each in served.rounds)
    assert most <= (served.peak_bytes - one) / (two - one) + 1 + 1e-9
    assert len(served.answers) == 60


def test_predict_laws_sizes_of_one_are_served(catalogue: Catalogue) -> None:
    """Goal: one request of one token each way, a batch of one."""
    served = serve(job(catalogue, batch=1, budget_tokens=1), requests_at_once(3, 1, 1))
    assert [answers(each) for each in served.rounds] == [1, 1, 1]
    assert served.between_s == ()
    assert first_token_s(served, 1.0) == served.end_s


# ---------------------------------------------------------------------- waiting


def test_predict_laws_no_wait_without_load(catalogue: Catalogue) -> None:
    """Goal: of requests far apart each is served as if it were alone; of more a second, none of
    the percentiles is sooner, and tokens come out no slower."""
    made = job(catalogue)
    alone = serve(made, requests_at_once(1, 1024, 256))
    apart = [Request(arrive_s=100.0 * each, input_tokens=1024, output_tokens=256)
             for each in range(5)]  # fmt: skip
    rare = serve(made, apart)
    assert first_token_s(rare, 1.0) == pytest.approx(first_token_s(alone))
    waits = [percentile(each.between_s, 0.95) for each in (rare, alone)]
    assert waits[0] == pytest.approx(waits[1])
    loads = [serve(made, requests_at_random(120, each, 5, 1024, 256)) for each in (1, 4, 16, 64)]
    for share in (0.5, 0.95):
        firsts = [first_token_s(each, share) for each in loads]
        assert firsts == sorted(firsts)
    rates = [sum(map(answers, each.rounds)) / each.end_s for each in loads]
    assert rates == sorted(rates)
    assert all(first_token_s(each, 0.95) >= first_token_s(each) for each in loads)


def test_predict_laws_faster_devices_serve_no_slower(catalogue: Catalogue) -> None:
    """Goal: twice the memory rate, or the rate of products, ends no later."""
    made = job(catalogue)
    requests = requests_at_once(200, 1024, 64)
    base = serve(made, requests)
    device = made.device
    assert device.matmul_fp8 is not None
    curve = replace(device.matmul_fp8, rates=tuple(2 * each for each in device.matmul_fp8.rates))
    for faster in (
        replace(device, memory_rate=2 * device.memory_rate), replace(device, matmul_fp8=curve)
    ):  # fmt: skip
        served = serve(replace(made, device=faster), requests)
        assert served.end_s < base.end_s
        assert first_token_s(served) < first_token_s(base)


def test_predict_laws_two_servings_are_identical(catalogue: Catalogue) -> None:
    """Goal: the same record, span by span; a seed draws the same arrivals, another one others,
    and as many a second as is asked for."""
    made = job(catalogue, tensor=4, pipeline=2)
    requests = requests_at_random(50, 4.0, 9, 500, 20)
    assert serve(made, requests) == serve(made, requests)
    assert requests == requests_at_random(50, 4.0, 9, 500, 20)
    assert requests != requests_at_random(50, 4.0, 10, 500, 20)
    many = requests_at_random(20000, 4.0, 9, 1, 1)
    assert many[-1].arrive_s == pytest.approx(20000 / 4.0, rel=0.02)


def test_percentiles_are_by_nearest_rank() -> None:
    """Goal: what is measured, not between."""
    values = [1.0, 2.0, 3.0, 4.0]
    shares = (0.25, 0.5, 0.51, 0.95, 1.0)
    assert [percentile(values, each) for each in shares] == [1, 2, 3, 4, 4]


def test_groups_share_sequences_evenly(catalogue: Catalogue) -> None:
    """IN11. Goal: no group begins all that comes at once."""
    served = serve(job(catalogue, tensor=2, pipeline=4), requests_at_once(8, 256, 16))
    firsts = Counter(each.group for each in served.rounds for _ in range(each.ended))
    assert firsts == {group: 2 for group in range(4)}


# ---------------------------------------------------------------------- refused


def test_bad_prediction_serving(catalogue: Catalogue) -> None:
    """Goal: a request that never fits is refused."""
    with pytest.raises(ConfigError, match=r"tensor: 8 of H100-80 do not hold .*one sequence"):
        serve(job(catalogue), requests_at_once(1, 10**8, 1))

"""Requests that come one by one: asked in a file, played, answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.question import InferenceQuestion, make_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference import arrivals
from luwu.predict.inference.arrivals import Arrivals, serve, stage_seconds
from luwu.predict.inference.inference import Work, layer_time, predict_continuous, predict_round
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.model.job import StepTime

ARRIVALS: dict[str, Any] = {"per_second": 2.0, "requests": 60, "seed": 3}
QUESTION: dict[str, Any] = {
    "system": "inference", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "tensor": 4, "precision": "fp8", "kv_precision": "fp8", "batch": 32,
    "batching": "continuous", "input_tokens": 512, "output_tokens": 40, "arrivals": ARRIVALS,
}  # fmt: skip


def asked(catalogue: Catalogue, **changes: Any) -> dict[str, Any]:
    """The answer, with other arrivals."""
    table = {**QUESTION, "arrivals": {**ARRIVALS, **changes}}
    return answer(make_question(table, catalogue))


def test_arrivals_are_what_is_answered(catalogue: Catalogue) -> None:
    """Goal: percentiles are of all requests, and the rest of the answer is that without arrivals;
    a seed draws the same ones, another one others."""
    question = make_question(QUESTION, catalogue)
    assert isinstance(question, InferenceQuestion)
    found = asked(catalogue)
    played = serve(question.job, Arrivals(**ARRIVALS).times_s())
    firsts = sorted(played.first_token_s)
    assert len(firsts) == 60
    assert found["arrivals"]["first_token_s"] == {
        name: firsts[rank - 1] for name, rank in (("median", 30), ("p95", 57), ("p99", 60))
    } | {"mean": pytest.approx(sum(firsts) / 60)}
    assert found["arrivals"]["tokens_per_s"] == pytest.approx(60 * 40 / played.end_s)
    assert found["arrivals"] == asked(catalogue)["arrivals"]
    assert found["arrivals"] != asked(catalogue, seed=4)["arrivals"]
    without = {key: value for key, value in QUESTION.items() if key != "arrivals"}
    alone = answer(make_question(without, catalogue))
    assert alone.pop("error")["first_token_factor"] > found["error"]["first_token_factor"]
    assert alone == {k: v for k, v in found.items() if k not in ("arrivals", "error")}
    json.dumps(found)


def test_predict_laws_more_requests_wait_longer(catalogue: Catalogue) -> None:
    """Goal: no percentile gets shorter with more requests a second; more than can be answered is
    a warning, fewer is none."""
    found = [asked(catalogue, per_second=rate, requests=300) for rate in (0.5, 5.0, 50.0, 5000.0)]
    for key in ("first_token_s", "answer_s"):
        for share in ("median", "p95", "p99"):
            times = [each["arrivals"][key][share] for each in found]
            assert times == sorted(times)
    for rate, each in zip((0.5, 5.0, 50.0, 5000.0), found, strict=True):
        is_more = rate >= each["arrivals"]["bound_per_second"]
        assert any("more come than can be answered" in said for said in each["warnings"]) == is_more
    assert 5.0 < found[0]["arrivals"]["bound_per_second"] < 50.0


def test_arrivals_are_told(catalogue: Catalogue) -> None:
    """Goal: people see what was played; answers of one token have no time between tokens."""
    said = text(asked(catalogue))
    assert "2 requests per second, of at most" in said
    assert "between tokens" in said.partition("2 requests per second")[2]
    one = answer(make_question({**QUESTION, "output_tokens": 1}, catalogue))
    assert one["arrivals"]["token_s"] is None
    assert "between tokens" not in text(one).partition("2 requests per second")[2]


# ---------------------------------------------------------------------- laws


def job(catalogue: Catalogue, **changes: Any) -> InferenceJob:
    """Llama 70B on eight H100."""
    table = {
        "model": catalogue.model("Llama3-70B"), "device": catalogue.device("H100-80"),
        "network": catalogue.network("ib-ndr"), "tensor": 8, "precision": "fp8",
        "kv_precision": "fp8", "input_tokens": 1024, "output_tokens": 256, "batch": 64,
        "batching": "continuous",
    }  # fmt: skip
    return InferenceJob(**{**table, **changes})


def test_predict_laws_one_request_is_its_rounds(catalogue: Catalogue) -> None:
    """IN8. Goal: alone, a prompt takes one round per budget's worth, and each token a round."""
    made = job(catalogue, budget_tokens=512, output_tokens=4)
    served = serve(made, [0.0])
    pieces = [predict_round(made, Work(prefill_tokens=512, prompt=512 * (1 + 2 * each),
                                       ended=each)).seconds for each in (0, 1)]  # fmt: skip
    decodes = [predict_round(made, Work(decodes=1, context=1024 + each)).seconds
               for each in (1, 2, 3)]  # fmt: skip
    assert served.first_token_s == pytest.approx([sum(pieces)])
    assert served.answer_s == [served.end_s] == pytest.approx([sum(pieces) + sum(decodes)])
    assert served.between_s == pytest.approx(decodes)


@pytest.mark.parametrize(
    ("change", "within"),
    [
        ({"batch": 64}, 0.06),
        ({"batch": 128, "input_tokens": 2048, "output_tokens": 128, "budget_tokens": 1024}, 0.02),
        ({"batch": 256, "tensor": 2, "pipeline": 4, "input_tokens": 2048, "output_tokens": 128,
          "budget_tokens": 512}, 0.02),
    ],
    ids=str,
)  # fmt: skip
def test_predict_laws_saturation_is_the_closed_form(
    catalogue: Catalogue, change: dict[str, Any], within: float
) -> None:
    """IN6. Goal: with more requests than can be answered, tokens a second are those of the closed
    form, which counts a decode more for each answer, whose first token is the prefill's. Method: a
    tenth more come; the second half is counted."""
    made = job(catalogue, **change)
    batch, closed = predict_continuous(made)
    rate = batch / closed.seconds
    times_s = Arrivals(
        per_second=1.1 * rate / made.output_tokens, requests=int(5 * batch), seed=1
    ).times_s()
    middle, last = (serve(made, times_s[: len(times_s) // part]) for part in (2, 1))
    tokens = (len(times_s) - len(times_s) // 2) * made.output_tokens
    assert tokens / (last.end_s - middle.end_s) == pytest.approx(rate, rel=within)


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
    whole = layer_time(made, Work(prefill_tokens=1000, prompt=1000), {})["attention"]
    found = 0.0
    for start in range(0, 1000, piece):
        size = min(piece, 1000 - start)
        work = Work(prefill_tokens=size, prompt=2 * start + size, ended=0)
        found += layer_time(made, work, {})["attention"]
    assert found == pytest.approx(whole)


@pytest.mark.parametrize("change", [{}, {"tensor": 2, "pipeline": 4}, {"batch": 1}], ids=str)
def test_predict_laws_all_tokens_come_out(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """IN8, IN10. Goal: every prompt is read once, every token made once; no round is over budget,
    no time below zero."""
    made = job(catalogue, budget_tokens=700, output_tokens=30, **{"batch": 16, **change})
    rounds: list[Work] = []

    def seen(made: InferenceJob, work: Work) -> StepTime:
        rounds.append(work)
        return predict_round(made, work)

    monkeypatch.setattr(arrivals, "predict_round", seen)
    served = serve(made, [each / 3 for each in range(60)])
    assert sum(work.prefill_tokens for work in rounds) == 60 * 1024
    assert sum(work.answers for work in rounds) == 60 * 30
    assert len(served.between_s) == 60 * 29
    assert all(0 < work.tokens <= made.budget_tokens for work in rounds)
    assert max(work.decodes for work in rounds) <= made.batch
    assert min(served.first_token_s) > 0
    assert len(served.answer_s) == 60

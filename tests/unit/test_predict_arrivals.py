"""Requests that come one by one: asked in a file, played by the event core, answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.ask.answer import answer, side_by_side, text
from luwu.predict.ask.question import InferenceQuestion, make_question
from luwu.predict.events.serving import percentile, requests_at_random, serve
from luwu.predict.hardware.catalogue import Catalogue

ARRIVALS: dict[str, Any] = {"per_second": 2.0, "requests": 60, "seed": 3}
QUESTION: dict[str, Any] = {
    "system": "inference", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "tensor": 4, "precision": "fp8", "kv_precision": "fp8", "batch": 32, "replicas": 2,
    "batching": "continuous", "input_tokens": 512, "output_tokens": 40, "arrivals": ARRIVALS,
}  # fmt: skip


def asked(catalogue: Catalogue, **changes: Any) -> dict[str, Any]:
    """The answer, with other arrivals."""
    table = {**QUESTION, "arrivals": {**ARRIVALS, **changes}}
    return answer(make_question(table, catalogue), catalogue)


def test_arrivals_are_what_the_event_core_plays(catalogue: Catalogue) -> None:
    """Goal: copies take requests in turn; percentiles are of all of them, and the rest of the
    answer is that without arrivals."""
    question = make_question(QUESTION, catalogue)
    assert isinstance(question, InferenceQuestion)
    found = asked(catalogue)
    requests = requests_at_random(60, 2.0, 3, 512, 40)
    played = [serve(question.job, requests[copy::2]) for copy in (0, 1)]
    firsts = sorted(each.first_token_s for copy in played for each in copy.answers)
    assert len(firsts) == 60
    assert found["arrivals"]["first_token_s"] == {
        name: percentile(firsts, share)
        for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    end_s = max(copy.end_s for copy in played)
    assert found["arrivals"]["tokens_per_s"] == pytest.approx(60 * 40 / end_s)
    assert found["arrivals"] == asked(catalogue)["arrivals"]
    assert found["arrivals"] != asked(catalogue, seed=4)["arrivals"]
    without = {key: value for key, value in QUESTION.items() if key != "arrivals"}
    assert answer(make_question(without, catalogue), catalogue) == {
        key: value for key, value in found.items() if key != "arrivals"
    }
    json.dumps(found)


def test_predict_laws_sequences_are_rate_times_time(catalogue: Catalogue) -> None:
    """Little's law. Goal: sequences in decode at once are those that come in a second, times the
    seconds that each is in decode."""
    found = asked(catalogue, requests=2000, per_second=4.0)
    rate = found["arrivals"]["tokens_per_s"] / 40 / 2
    decode_s = 39 * found["arrivals"]["token_s"]["median"]
    assert found["arrivals"]["sequences"] == pytest.approx(rate * decode_s, rel=0.1)


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
    one = answer(make_question({**QUESTION, "output_tokens": 1}, catalogue), catalogue)
    assert one["arrivals"]["token_s"] is None
    assert "between tokens" not in text(one).partition("2 requests per second")[2]
    rows = side_by_side({"a": one, "b": answer(
        make_question({k: v for k, v in QUESTION.items() if k != "arrivals"}, catalogue), catalogue
    )})  # fmt: skip
    (row,) = (line for line in rows.splitlines() if line.startswith("first token, p95"))
    assert row.split()[-1] == "-"


def test_arrivals_are_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a sweep asks how waits grow with what comes."""
    file = tmp_path / "question.toml"
    lines = [f"{key} = {json.dumps(v)}" for key, v in QUESTION.items() if key != "arrivals"]
    lines += ["[arrivals]", *(f"{key} = {value}" for key, value in ARRIVALS.items())]
    file.write_text("\n".join(lines))
    over = ["--over", "arrivals.per_second=1,30", "--of", "arrivals.first_token_s.p95"]
    assert main(["predict", "sweep", str(file), *over]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert float(rows[1].split()[-2]) < float(rows[2].split()[-2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrivals": 3}, r"^arrivals: 3 is not a section; write \[arrivals\]"),
        ({"arrivals": {}}, r"^arrivals.per_second is missing"),
        ({"arrivals": {"per_secnd": 1}}, r"^arrivals.per_secnd is unknown .*mean per_second"),
        ({"arrivals": {"per_second": 0}}, r"^arrivals.per_second: 0; a number above 0 fits"),
        ({"arrivals": {"per_second": True}}, r"^arrivals.per_second: True; a number"),
        ({"arrivals": {"per_second": 1, "seed": 0.5}}, r"^arrivals.seed: 0.5 is not a whole"),
        ({"arrivals": {"per_second": 1, "requests": 0}}, r"^arrivals.requests: 0 is not a whole"),
        ({"arrivals": {"per_second": 1, "requests": 1}}, r"^arrivals.requests: 1 for 2 copies; 2"),
        ({"batching": "static"}, r"^\[arrivals\] with batching 'static', .*continuous"),
        ({"batching": "sttic"}, r"^batching: 'sttic' .* mean static"),
    ],
)
def test_bad_prediction_arrivals(catalogue: Catalogue, change: dict[str, Any], said: str) -> None:
    """Goal: what is wrong is named by its key, with what would fit."""
    with pytest.raises(ConfigError, match=said):
        answer(make_question({**QUESTION, **change}, catalogue), catalogue)


def test_bad_prediction_training_has_no_arrivals(catalogue: Catalogue) -> None:
    """Goal: the section of another system is unknown."""
    with pytest.raises(ConfigError, match=r"^arrivals is unknown here"):
        make_question({"system": "ddp", "arrivals": ARRIVALS}, catalogue)

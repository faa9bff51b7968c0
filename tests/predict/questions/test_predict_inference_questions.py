"""Questions of inference as users write them, and what is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.question import InferenceQuestion, make_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import InferenceJob, predict_inference, with_largest_batch
from luwu.predict.inference.inference_sockets import SocketJob

DEVICES: dict[str, Any] = {
    "system": "inference", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "tensor": 4, "precision": "fp8", "kv_precision": "fp8", "batch": "largest",
    "batching": "continuous", "input_tokens": 1024, "output_tokens": 512,
}  # fmt: skip
SOCKETS: dict[str, Any] = {
    "system": "inference-sockets", "model": "Qwen-72B", "processor": "Xeon-8575C",
    "network": "roce-100g", "sockets": 4, "input_tokens": 128, "output_tokens": 64,
    "memory_bytes": "256 GiB", "batch": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{}, {"batching": "static", "batch": 8}, {"tensor": 2, "pipeline": 2}, {"tensor": 16},
     {"batch": 1, "output_tokens": 1}],
    ids=str,
)  # fmt: skip
def test_inference_is_answered(catalogue: Catalogue, change: dict[str, Any]) -> None:
    """Goal: the same form of answer as of training: parts that add up, memory that fits, what
    binds."""
    question = make_question({**DEVICES, **change}, catalogue)
    found = answer(question)
    assert found["token_s"] == pytest.approx(sum(found["parts_s"].values()))
    assert found["first_token_s"] == pytest.approx(sum(found["prefill_parts_s"].values()))
    assert found["binding"] in found["parts_s"]
    assert 0 < sum(found["memory_bytes"].values()) <= found["memory_bytes_max"]
    devices = found["asked"]["devices"]
    assert found["tokens_per_s"] == pytest.approx(devices * found["tokens_per_s_per_device"])
    json.dumps(found)
    assert f"answers on {devices} x H100-80" in text(found)


def test_predict_laws_questions_of_inference_are_their_jobs(catalogue: Catalogue) -> None:
    """Goal: a question says what its job says; the largest batch is what a server takes; copies
    multiply what comes out and nothing else."""
    question = make_question(DEVICES, catalogue)
    assert isinstance(question, InferenceQuestion)
    served = question.answer()
    assert isinstance(question.job, InferenceJob)
    assert served.tokens_per_s == predict_inference(question.job).tokens_per_s
    assert question.job == with_largest_batch(question.job)
    three = answer(make_question({**DEVICES, "replicas": 3}, catalogue))
    one = answer(question)
    assert three["tokens_per_s"] == pytest.approx(3 * one["tokens_per_s"])
    same = ("tokens_per_s_per_device", "token_s", "first_token_s", "memory_bytes")
    assert all(three[key] == pytest.approx(one[key]) for key in same)


def test_sockets_are_answered(catalogue: Catalogue) -> None:
    """Goal: of a processor of the catalogue all is answered; without its peak prefill is not known,
    and the answer says why and has no number."""
    peak = make_question(SOCKETS, catalogue)
    assert isinstance(peak.job, SocketJob)
    bare = replace(peak.job, processor=replace(peak.job.processor, bf16=None))
    found = answer(replace(peak, job=bare))
    assert found["first_token_s"] is found["tokens_per_s"] is None
    assert "processor.Xeon-8575C.bf16 is not known" in found["unknown"]["first_token_s"]
    assert "not known" in text(found)
    assert found["decode_tokens_per_s"] == pytest.approx(2 / found["token_s"])
    known = answer(peak)
    whole_s = known["first_token_s"] + 63 * known["token_s"]
    assert known["tokens_per_s"] == pytest.approx(2 * 64 / whole_s)
    assert known["unknown"] == {}
    largest = answer(make_question({**SOCKETS, "batch": "largest"}, catalogue))
    assert largest["batch"] > 100
    assert 0.9 < sum(largest["memory_bytes"].values()) / largest["memory_bytes_max"] <= 1


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        (DEVICES, {"system": "inferense"}, r"'inferense' is not one of .*did you mean inference"),
        (DEVICES, {"micro_batch": 1}, r"^micro_batch is unknown here; "),
        (DEVICES, {"output_token": 1}, r"^output_token is unknown .*mean output_tokens"),
        (DEVICES, {"input_tokens": None}, r"^input_tokens is missing"),
        (DEVICES, {"batch": "larges"}, r"batch: 'larges' is neither a whole number nor 'largest'"),
        (DEVICES, {"batch": 0}, r"batch: 0 is not a whole number above zero"),
        (DEVICES, {"precision": 8}, r"precision: 8 is not a name"),
        (DEVICES, {"replicas": 0}, r"replicas: 0 is not a whole number above zero"),
        (DEVICES, {"device": "H100"}, r"device: no device 'H100' is known"),
        (SOCKETS, {"device": "H100-80"}, r"^device is unknown here"),
        (SOCKETS, {"memory_bytes": "64 Gbit/s"}, r"memory_bytes: the unit 'Gbit/s' is one of"),
        (SOCKETS, {"batch": "largest", "memory_bytes": None}, r"memory_bytes is missing: the larg"),
        (SOCKETS, {"inside": "upj"}, r"inside: no network 'upj' is known; did you mean upi"),
    ],
)
def test_bad_prediction_questions_of_inference(
    catalogue: Catalogue, table: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    """Goal: what is wrong is named by its key, with what would fit."""
    changed = {key: value for key, value in {**table, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        make_question(changed, catalogue).answer()

"""Questions as users write them, and what is answered, in training and in inference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.question import InferenceQuestion, make_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import predict_inference
from luwu.predict.inference.inference_job import InferenceJob, with_largest_batch
from luwu.predict.inference.inference_sockets import SocketJob
from tests.predict import tables
from tests.predict.tables import LUWU, NODE, THREE_D, ZERO3

DEVICES: dict[str, Any] = {
    **tables.DEVICES, "tensor": 4, "pipeline": 1, "kv_precision": "fp8",
    "batch": "largest", "batching": "continuous",
}  # fmt: skip
SOCKETS: dict[str, Any] = {**tables.SOCKETS, "memory_bytes": "256 GiB", "batch": 2}
OFFLOAD = {**ZERO3, "system": "zero-infinity", "host": {**NODE, "devices": 1}}


@pytest.mark.parametrize(
    "table",
    [THREE_D, LUWU, ZERO3, OFFLOAD, {**OFFLOAD, "system": "zero-offload"}],
    ids=lambda table: table["system"],
)  # fmt: skip
def test_every_system_is_answered(catalogue: Catalogue, table: dict[str, Any]) -> None:
    """Goal: one form of answer for all: parts that add up, what binds, memory, and two counts of
    operations."""
    found = answer(make_question(table, catalogue))
    assert found["step_s"] == pytest.approx(sum(found["parts_s"].values()))
    assert found["binding"] in found["parts_s"] | found["resources_s"]
    assert 0 < found["mfu"] <= found["hfu"] < 1
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["step_s"])
    assert set(found["memory_bytes"]) == {"states", "activations"}
    assert found["asked"]["model"] == table["model"]
    json.dumps(found)


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
    """Goal: a question says what its job says; the largest batch is what a server takes."""
    question = make_question(DEVICES, catalogue)
    assert isinstance(question, InferenceQuestion)
    served = question.answer()
    assert isinstance(question.job, InferenceJob)
    assert served.tokens_per_s == predict_inference(question.job).tokens_per_s
    assert question.job == with_largest_batch(question.job)


def test_sockets_are_answered(catalogue: Catalogue) -> None:
    """Goal: a processor has its answer, but without its peak, which limits prefill, it is refused;
    the largest batch fills a socket's memory."""
    question = make_question(SOCKETS, catalogue)
    assert isinstance(question.job, SocketJob)
    bare = replace(question.job, processor=replace(question.job.processor, bf16=None))
    with pytest.raises(ConfigError, match=r"processor.Xeon-8575C.bf16 is missing"):
        answer(replace(question, job=bare))
    found = answer(question)
    assert found["decode_tokens_per_s"] == pytest.approx(2 / found["token_s"])
    whole_s = found["first_token_s"] + 63 * found["token_s"]
    assert found["tokens_per_s"] == pytest.approx(2 * 64 / whole_s)
    largest = answer(make_question({**SOCKETS, "batch": "largest"}, catalogue))
    assert largest["batch"] > 100
    assert 0.9 < sum(largest["memory_bytes"].values()) / largest["memory_bytes_max"] <= 1

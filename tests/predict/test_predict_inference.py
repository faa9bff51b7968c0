"""Inference: laws of prefill, decode and batches, on devices and on sockets."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.model import Transformer
from luwu.predict.inference.inference import (
    RUNTIME_BYTES,
    InferenceJob,
    cache_bytes,
    cache_memory_bytes,
    layer_weight_bytes,
    maximum_batch,
    predict_continuous,
    predict_decode,
    predict_inference,
    sequence_bytes,
    weight_bytes,
    with_largest_batch,
)
from luwu.predict.inference.inference_sockets import (
    SocketJob,
    predict_socket_token,
    socket_weight_bytes,
)

EXPERTS = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": True,
    "vocab": 32000, "experts": 8, "experts_used": 2,
}  # fmt: skip


@pytest.fixture
def job(catalogue: Catalogue) -> InferenceJob:
    return InferenceJob(
        model=catalogue.model("Llama3-70B"), device=catalogue.device("H100-80"),
        network=catalogue.network("ib-ndr"), tensor=8, precision="fp8", kv_precision="fp8",
        input_tokens=1024, output_tokens=256,
    )  # fmt: skip


@pytest.fixture
def sockets(catalogue: Catalogue) -> SocketJob:
    return SocketJob(
        model=catalogue.model("Qwen-72B"), processor=catalogue.find("processor", "Xeon-8575C"),
        network=catalogue.network("roce-100g"), inside=catalogue.network("upi"), sockets=4,
        input_tokens=128, output_tokens=128,
    )  # fmt: skip


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("tensor", "precision", "expected"),
    [
        (1, "bf16", 2 * 80 * 8 * 128 * 2),
        (4, "bf16", 2 * 80 * 2 * 128 * 2),
        (8, "fp8", 2 * 80 * 1 * 128),
        (64, "fp8", 2 * 80 * 1 * 128),  # fewer heads of keys than ranks: copies
        (8, "int8", 2 * 80 * (128 + 1)),  # a scale for each head
    ],
)
def test_predict_laws_cache_bytes_are_exact(
    job: InferenceJob, tensor: int, precision: str, expected: int
) -> None:
    """F1. Goal: 2 l max(1, g/t) d bytes of a token, whatever the number of ranks."""
    if tensor == 1:  # weights of 16 bits and less fit on one, if it is large enough
        job = replace(job, device=replace(job.device, memory_bytes=1e12))
    one = replace(job, tensor=tensor, kv_precision=precision)
    assert cache_bytes(one, 1) == expected
    assert cache_bytes(one, 1000) == 1000 * expected


def test_predict_laws_weights_are_those_of_the_model(job: InferenceJob) -> None:
    """F2. Goal: ranks and stages share the model's matrices; norms are the only difference."""
    whole = job.model.layers * job.model.layer_parameters
    assert 8 * 80 * layer_weight_bytes(job) == pytest.approx(whole, rel=1e-4)
    assert 8 * weight_bytes(job) == pytest.approx(
        whole + 2 * 2 * job.model.embedding_parameters, rel=1e-4
    )


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_predict_laws_the_largest_batch_fits_and_one_more_does_not(
    job: InferenceJob, batching: str
) -> None:
    """F3. Goal: weights, work space and so many sequences fill memory to less than one of them."""
    largest = with_largest_batch(replace(job, batching=batching))
    left, each = cache_memory_bytes(largest), sequence_bytes(largest)
    kept = 0.0 if batching == "static" else left - 0.9 * (left - RUNTIME_BYTES)
    assert 0 <= left - kept - largest.batch * each < each
    most = int(left / each)
    with pytest.raises(ConfigError, match=rf"batch: .* a batch of {most} fits"):
        replace(largest, batch=most + 1)
    assert maximum_batch(replace(job, pipeline=2)) > maximum_batch(job)


# ---------------------------------------------------------------------- one request


def test_predict_laws_full_stages_are_as_fast_as_the_slowest(job: InferenceJob) -> None:
    """IN4. Goal: m batches in p stages take the sum of the stages, or m times the slowest."""
    one = replace(job, pipeline=4)
    alone = predict_decode(one)
    assert alone.parts["waiting for stages"] == 0
    full = predict_decode(replace(one, batch=4))
    layers = sum(full.parts[name] for name in ("products", "attention", "memory", "sequences",
                                               "tensor exchange"))  # fmt: skip
    send = full.parts["stage exchange"] / 3
    assert full.seconds == pytest.approx(4 * (layers / 4 + full.parts["output layer"] + send))
    assert alone.seconds <= full.seconds < 1.2 * alone.seconds


# ---------------------------------------------------------------------- batches


def test_predict_laws_a_static_batch_is_prefill_and_decodes(job: InferenceJob) -> None:
    """IN5. Goal: the mean length stands for all: decodes at each length add up to the same."""
    some = replace(job, batch=16)
    found = predict_inference(some)
    each = [predict_decode(some, 1024 + 0.5 + i).seconds for i in range(256)]
    assert found.decode.seconds == pytest.approx(mean(each))
    whole = found.first_token.seconds + 255 * found.decode.seconds
    assert found.tokens_per_s == pytest.approx(16 * 256 / whole)


def test_predict_laws_continuous_rounds_keep_their_budget(job: InferenceJob) -> None:
    """IN6. Goal: decodes and the prefill of those that follow fill a round to its budget, no more;
    with memory and budget to spare the batch is the job's."""
    some = replace(job, batching="continuous", batch=64)
    assert predict_continuous(some)[0] == 64
    tight = replace(some, budget_tokens=100)
    assert predict_continuous(tight)[0] * (1 + 1024 / 256) == pytest.approx(100)
    assert predict_inference(tight).tokens_per_s < predict_inference(some).tokens_per_s
    larger = predict_inference(replace(some, batch=128))
    assert larger.tokens_per_s > predict_inference(some).tokens_per_s
    assert larger.decode.seconds > predict_inference(some).decode.seconds


def test_predict_laws_experts_are_read_as_far_as_tokens_use_them(job: InferenceJob) -> None:
    """Goal: one token reads 2 of 8 experts, many tokens read all; never more."""
    model = Transformer.parse("model.x", "x", EXPERTS)
    some = replace(job, model=model, tensor=1)
    one = predict_decode(some).parts["products"]
    many = predict_decode(replace(some, batch=64)).parts["products"]
    rate = some.device.memory_rate * some.device.memory_efficiency
    used = model.layers * (model.attention_parameters + 2 * model.mlp_parameters) / rate
    every = model.layers * (model.attention_parameters + 8 * model.mlp_parameters) / rate
    assert one == pytest.approx(used, rel=0.01)
    assert many == pytest.approx(every, rel=0.05)


# ---------------------------------------------------------------------- sockets


def test_predict_laws_sockets_share_weights(sockets: SocketJob) -> None:
    """K1, K2. Goal: sockets divide the time of weights; one socket exchanges nothing; side by side
    attention and MLP need half of the exchanges; a token takes at least its weights."""
    token = predict_socket_token(sockets)
    one = predict_socket_token(replace(sockets, sockets=1))
    assert one.parts["weights"] == pytest.approx(4 * token.parts["weights"])
    assert one.parts["exchange"] == 0
    beside = predict_socket_token(replace(sockets, parallel_blocks=True))
    assert beside.parts["exchange"] == pytest.approx(token.parts["exchange"] / 2)
    read = socket_weight_bytes(sockets) / sockets.processor.memory_rate
    assert token.seconds > 0.9 * read  # less the embedding, where it is not the output layer
    faster = replace(sockets.processor, memory_rate=2 * sockets.processor.memory_rate)
    assert predict_socket_token(replace(sockets, processor=faster)).seconds < token.seconds
    in_a_host = predict_socket_token(replace(sockets, sockets=2))
    assert in_a_host.parts["exchange"] < token.parts["exchange"]


# ---------------------------------------------------------------------- bad input


def test_bad_prediction_curves(job: InferenceJob) -> None:
    """Goal: a device that nobody measured says what it needs."""
    bare = replace(job, device=replace(job.device, matmul_fp8=None, matmul_bf16=None))
    with pytest.raises(ConfigError, match=r"device.H100-80 has no measured curve of matrix prod"):
        predict_decode(bare)

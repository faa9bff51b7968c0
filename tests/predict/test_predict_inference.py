"""Inference: laws of prefill, decode and batches, on devices and on sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import (
    RUNTIME_BYTES,
    InferenceJob,
    cache_bytes,
    cache_memory_bytes,
    maximum_batch,
    predict_decode,
    sequence_bytes,
    with_largest_batch,
)
from luwu.predict.inference.inference_sockets import (
    SocketJob,
    predict_socket_token,
    socket_weight_bytes,
)


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

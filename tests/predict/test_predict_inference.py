"""Inference on devices: laws of its memory and batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import predict_decode
from luwu.predict.inference.inference_job import (
    RUNTIME_BYTES,
    InferenceJob,
    cache_bytes,
    cache_memory_bytes,
    maximum_batch,
    sequence_bytes,
    with_largest_batch,
)


@pytest.fixture
def job(catalogue: Catalogue) -> InferenceJob:
    return InferenceJob(
        model=catalogue.model("Llama3-70B"), device=catalogue.device("H100-80"),
        network=catalogue.network("ib-ndr"), tensor=8, precision="fp8", kv_precision="fp8",
        input_tokens=1024, output_tokens=256,
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


# ---------------------------------------------------------------------- bad input


def test_bad_prediction_curves(job: InferenceJob) -> None:
    """Goal: a device that nobody measured says what it needs."""
    bare = replace(job, device=replace(job.device, matmul_fp8=None, matmul_bf16=None))
    with pytest.raises(ConfigError, match=r"device.H100-80 has no measured curve of matrix prod"):
        predict_decode(bare)

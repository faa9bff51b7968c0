"""Published results of inference beside predictions of the same: how far off the model is.

A row's error has a sign, as in `calibration.py`: above zero the model is too slow, whatever the
unit. Of a series of pipelines the ratios to its first row are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luwu.predict.check.calibration import Compared, read
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import predict_inference, predict_prefill, with_largest_batch
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.inference.inference_sockets import SocketJob, predict_socket_token

_JOB_KEYS = ("tensor", "precision", "kv_precision")
_NETWORK = "ib-ndr"
"""No series of devices leaves its host."""
_SOCKET_TOKENS = 128
"""Tokens of a prompt and of an answer on sockets, if the source does not give them."""


def compare_inference(catalogue: Catalogue) -> list[Compared]:
    """All calibration rows of inference. Raises ConfigError for a name that is unknown."""
    found = read("inference.toml")["series"]
    return [row for series in found for row in _KINDS[series["kind"]](catalogue, series)]


def _job(catalogue: Catalogue, series: dict[str, Any], **more: Any) -> InferenceJob:
    return InferenceJob(
        model=catalogue.model(series["model"]),
        device=catalogue.device(series["device"]),
        network=catalogue.network(_NETWORK),
        **{key: series[key] for key in _JOB_KEYS if key in series},
        **more,
    )


def _row(
    series: dict[str, Any], what: str, unit: str, published: float, predicted: float
) -> Compared:  # fmt: skip
    on = series.get("device", series.get("processor"))
    precision = series.get("precision", "bf16")
    return Compared(
        group=series["group"], kind=series["kind"], source=series["source"], unit=unit,
        name=f"{series['model']} {precision}, {on}, {what}", published=published,
        predicted=predicted, is_rate=unit != "ms",
    )  # fmt: skip


def _first_tokens(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    for prompt, published in series["rows"]:
        job = _job(catalogue, series, input_tokens=prompt, output_tokens=1)
        what = f"{job.tensor} ranks, prompt of {prompt}"
        yield _row(series, what, "ms", published, 1e3 * predict_prefill(job).seconds)


def _batches(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    for batch, prompt, answer, published in series["rows"]:
        job = _job(catalogue, series, batch=batch, input_tokens=prompt, output_tokens=answer)
        what = f"{batch} of {prompt}/{answer}"
        yield _row(series, what, "tokens/s", published, predict_inference(job).tokens_per_device_s)


def _pipelines(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    jobs = [
        _job(
            catalogue, series, pipeline=stages, batching="continuous",
            input_tokens=series["input_tokens"], output_tokens=series["output_tokens"],
        )
        for stages, _ in series["rows"]
    ]  # fmt: skip
    first = series["rows"][0][1]
    for job, (stages, published) in list(zip(jobs, series["rows"], strict=True))[1:]:
        what = f"{stages} stages over {jobs[0].pipeline}"
        yield _row(series, what, "ratio", published / first, _ratio(job, jobs[0]))


def _ratio(job: InferenceJob, first: InferenceJob) -> float:
    return (
        predict_inference(with_largest_batch(job)).tokens_per_s
        / predict_inference(with_largest_batch(first)).tokens_per_s
    )


def _sockets(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    for sockets, published in series["rows"]:
        job = SocketJob(
            model=catalogue.model(series["model"]),
            processor=catalogue.processor(series["processor"]),
            network=catalogue.network(series["network"]),
            inside=catalogue.network("upi"),
            sockets=sockets, input_tokens=_SOCKET_TOKENS, output_tokens=_SOCKET_TOKENS,
        )  # fmt: skip
        token_ms = 1e3 * predict_socket_token(job).seconds
        yield _row(series, f"{sockets} sockets", "ms", published, token_ms)


_KINDS = {
    "first token": _first_tokens,
    "static": _batches,
    "pipeline": _pipelines,
    "sockets": _sockets,
}

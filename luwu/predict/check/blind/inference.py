"""Answers of 405B on eight devices of a host, and of 70B on sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.inference.inference import Inference, predict_inference, with_largest_batch
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.inference.inference_sockets import SocketJob, predict_socket_token

_GROUP: Final = "Inference"
_MODEL: Final = "Llama3-405B"
_LENGTHS: Final = (
    (128, 128), (128, 2048), (1000, 1000), (2048, 128), (2048, 2048), (20000, 2000),
)  # fmt: skip
_ASSUMED: Final = (
    "cache in fp8", "as many sequences as memory holds", "rounds of 8,192 tokens at most",
)  # fmt: skip
_ALONE_ASSUMED: Final = ("one sequence, its prompt included", "cache in fp8")


def rows(catalogue: Catalogue) -> Iterator[BlindRow]:
    """All of them."""
    yield from _tensor_or_pipeline(catalogue)
    for device in ("H200-141", "H100-80"):
        for lengths in _LENGTHS:
            found = _most(catalogue, device, 8, 1, lengths)
            yield _row(
                f"{_MODEL} fp8 on 8 x {device}, TP8, {lengths[0]}/{lengths[1]}, output tokens",
                found.tokens_per_s, "token/s", _ASSUMED, device, (8, 1), lengths, found,
            )  # fmt: skip
    for sockets in (2, 8):
        yield _sockets(catalogue, sockets)


def _tensor_or_pipeline(catalogue: Catalogue) -> Iterator[BlindRow]:
    lengths, device = (2048, 128), "H200-141"
    most, single = {}, {}
    for name, degrees in (("TP8", (8, 1)), ("PP8", (1, 8))):
        found = _most(catalogue, device, *degrees, lengths)
        most[name] = found.tokens_per_s
        what = f"{_MODEL} fp8 on 8 x {device}, {name}, 2048/128"
        yield _row(f"{what}, most output tokens", found.tokens_per_s, "token/s", _ASSUMED, device,
                   degrees, lengths, found)  # fmt: skip
        alone = predict_inference(_job(catalogue, device, *degrees, lengths))
        single[name] = alone.tokens_per_s
        yield _row(f"{what}, output tokens of one request", alone.tokens_per_s, "token/s",
                   _ALONE_ASSUMED, device, degrees, lengths, alone)  # fmt: skip
    ratios = {
        "PP8 over TP8, most output tokens": most["PP8"] / most["TP8"],
        "TP8 over PP8, output tokens of one request": single["TP8"] / single["PP8"],
    }
    for what, ratio in ratios.items():
        yield BlindRow(
            group=_GROUP, name=f"{_MODEL} fp8 on 8 x {device}, 2048/128, {what}", value=ratio,
            unit="ratio", configuration={"model": _MODEL, "device": device, "lengths": lengths},
            assumptions=_ASSUMED,
        )  # fmt: skip


def _job(
    catalogue: Catalogue, device: str, tensor: int, pipeline: int, lengths: tuple[int, int],
    batching: str = "static",
) -> InferenceJob:  # fmt: skip
    return InferenceJob(
        model=catalogue.model(_MODEL), device=catalogue.device(device),
        network=catalogue.network("ib-ndr"), tensor=tensor, pipeline=pipeline, precision="fp8",
        kv_precision="fp8", batching=batching, input_tokens=lengths[0], output_tokens=lengths[1],
    )  # fmt: skip


def _most(
    catalogue: Catalogue, device: str, tensor: int, pipeline: int, lengths: tuple[int, int]
) -> Inference:
    job = _job(catalogue, device, tensor, pipeline, lengths, "continuous")
    return predict_inference(with_largest_batch(job))


def _row(
    name: str, value: float, unit: str, assumptions: tuple[str, ...], device: str,
    degrees: tuple[int, int], lengths: tuple[int, int], found: Inference,
) -> BlindRow:  # fmt: skip
    return BlindRow(
        group=_GROUP, name=name, value=value, unit=unit, assumptions=assumptions,
        configuration={
            "model": _MODEL, "device": device, "devices": 8, "precision": "fp8",
            "tensor": degrees[0], "pipeline": degrees[1], "input_tokens": lengths[0],
            "output_tokens": lengths[1], "batch": found.batch,
        },
        extrapolated={**found.prefill.notes.extrapolated, **found.decode.notes.extrapolated},
    )  # fmt: skip


def _sockets(catalogue: Catalogue, sockets: int) -> BlindRow:
    job = SocketJob(
        model=catalogue.model("Llama2-70B"), processor=catalogue.processor("Xeon-8563C"),
        network=catalogue.network("roce-100g"), inside=catalogue.network("upi"), sockets=sockets,
        input_tokens=1024, output_tokens=1024,
    )  # fmt: skip
    return BlindRow(
        group=_GROUP, name=f"Llama2-70B bf16 on {sockets} x Xeon-8563C, next token",
        value=1e3 * predict_socket_token(job).seconds, unit="ms",
        configuration={"model": "Llama2-70B", "processor": "Xeon-8563C", "sockets": sockets},
        assumptions=(
            "weights and cache in 16 bits", "one sequence, 1,024 tokens of prompt and of answer",
            "two sockets a host, hosts on 100 Gbit/s", "DDR5-5600",
        ),
    )  # fmt: skip

"""Published results beside predictions of the same: how far off the model is.

A series of `data/calibration/*.toml` is one job at several sizes. A row's error has a sign: that of
predicted over published time, less one; so above zero the model is too slow, in every unit. Of
offloading, rows are seconds of Adam on processors, and ratios to LuWu; of a series of pipelines of
inference, ratios to its first row.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final

from luwu.predict.ask.question import ALONE, Question, make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Host
from luwu.predict.hardware.software import software
from luwu.predict.hardware.units import Dimension, parse
from luwu.predict.inference.inference import predict_inference, predict_prefill, with_largest_batch
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.inference.inference_sockets import SocketJob, predict_socket_token
from luwu.predict.model.job import TrainingJob, utilisation
from luwu.predict.model.memory import activation_bytes, state_bytes

_JOB_KEYS = (
    "sequence", "micro_batch", "tensor", "pipeline", "virtual", "context", "sequence_parallel",
    "recompute", "precision",
)  # fmt: skip
_INFERENCE_KEYS = ("tensor", "precision", "kv_precision")
_NETWORK = "ib-ndr"
"""No series of devices leaves its host."""
_SOCKET_TOKENS = 128
"""Tokens of a prompt and of an answer on sockets, if the source does not give them."""
MICRO_BATCH: Final = 4
DEVICES: Final = 8
_TESTBED: Final[dict[str, Any]] = {
    "device": "A100-40", "network": "roce-100g", "software": "deepspeed-2023",
    "devices": DEVICES, "sequence": 2048, "batch": DEVICES * MICRO_BATCH,
    "micro_batch": MICRO_BATCH, "recompute": "full",
}  # fmt: skip
_NODE: Final = {
    "processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 12,
    "pulls_ahead": True,
}  # fmt: skip
_WORKER: Final = {
    "processor": "Xeon-4214", "memory_bytes": "256 GB", "disk": "P5510-3.84T", "disks": 1,
    "devices": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published result."""

    group: str
    source: str
    unit: str
    published: float
    job: TrainingJob
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A published number and the predicted one, in the same unit."""

    group: str
    name: str
    """Its name, as text."""
    unit: str
    """Rows of one group and unit can be put in order."""
    published: float
    predicted: float
    is_rate: bool = False
    """The longer something takes, the less it is."""
    source: str = ""
    kind: str = ""

    @property
    def error(self) -> float:
        """Signed; above zero: the model is too slow, or predicts too much."""
        ratio = self.predicted / self.published
        return (1 / ratio if self.is_rate else ratio) - 1


def read(name: str) -> dict[str, Any]:
    """A file of published results."""
    file = resources.files("luwu.predict") / "data" / "calibration" / name
    return tomllib.loads(file.read_text(encoding="utf-8"))


def training_rows(catalogue: Catalogue) -> list[Row]:
    """All calibration rows of training."""
    found = read("training.toml")["series"]
    return [row for series in found for row in _rows(catalogue, series)]


def _job(catalogue: Catalogue, table: dict[str, Any], devices: int) -> TrainingJob:
    return TrainingJob(
        model=catalogue.model(table["model"]),
        device=catalogue.device(table["device"]),
        network=catalogue.network(table["network"]),
        software=software(table["software"]),
        devices=devices,
        batch=table.get("batch") or table["batch_per_device"] * devices,
        **{key: table[key] for key in _JOB_KEYS if key in table},
    )


def _rows(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Row]:
    for devices, published in series["rows"]:
        job = _job(catalogue, series, devices)
        yield Row(
            group=series["group"], source=series["source"], unit=series["unit"],
            published=published, job=job, system=series.get("system", "3d"),
        )  # fmt: skip


def compare(row: Row) -> Compared:
    """A row with what the model predicts."""
    return Compared(
        group=row.group, name=row.job.model.name, unit=row.unit, published=row.published,
        predicted=_predicted(row), is_rate=row.unit != "s", source=row.source,
    )  # fmt: skip


def _predicted(row: Row) -> float:
    """In the row's unit."""
    seconds = ALONE[row.system](row.job).seconds
    if row.unit == "s":
        return seconds
    if row.unit == "token/s":
        return row.job.tokens / seconds / row.job.devices
    return published_operations(row.job) / seconds / 1e12


def published_operations(job: TrainingJob) -> float:
    """Operations of a step on each device as SC'21 counts them: with what is computed again."""
    forward = job.model.step_operations(job.tokens, job.sequence) / 3
    again = 1.0 if job.recompute == "full" else 0.0
    head = job.model.head_operations(job.tokens)
    return ((3 + again) * forward - again * head) / job.devices


def compare_memory(catalogue: Catalogue) -> list[Compared]:
    """All calibration rows of memory, in bytes of a device."""
    found = []
    for row in read("memory.toml")["row"]:
        job = _job(catalogue, row, row["devices"])
        selective = replace(job, recompute="selective", sequence_parallel=True)
        predicted = {
            "states": state_bytes(job), "activations_none": activation_bytes(job),
            "activations_selective": activation_bytes(selective),
        }  # fmt: skip
        found += [
            Compared(
                group=row["group"],
                name=f"{row['model']} {name}",
                unit="byte",
                published=row[name] * 2**30,
                predicted=nbytes,
            )
            for name, nbytes in predicted.items()
        ]
    return found


def _testbed_question(catalogue: Catalogue, system: str, model: str, **changes: Any) -> Question:
    """A job on the testbed of arXiv 2409.00918."""
    table = {**_TESTBED, "system": system, "model": model, **changes}
    if system == "luwu":
        table["node"] = _NODE
    elif system in ("zero-infinity", "zero-offload"):
        table["host"] = _WORKER
    return make_training_question(table, catalogue)


def compare_offload(catalogue: Catalogue) -> list[Compared]:
    """All calibration rows: seconds, and ratios."""
    found = read("offload.toml")
    rows = [row for series in found["adam"] for row in _adam(catalogue, series)]
    rows += [row for each in found["ratio"] for row in _ratios(catalogue, each)]
    return rows + [_utilisation(catalogue, each) for each in found["utilisation"]]


def _adam(catalogue: Catalogue, series: dict[str, Any]) -> Iterator[Compared]:
    host = Host(
        processor=catalogue.find("processor", series["processor"]),
        memory_bytes=parse("memory_bytes", series["memory_bytes"], Dimension.BYTES),
    )
    for parameters, published in series["rows"]:
        yield Compared(
            group=series["group"], name=f"Adam of {parameters / 1e9:.0f} B on processors",
            unit="s", published=published, predicted=host.adam(parameters),
        )  # fmt: skip


def _ratios(catalogue: Catalogue, row: dict[str, Any]) -> Iterator[Compared]:
    ours = _testbed_question(catalogue, "luwu", row["model"]).answer().seconds
    for system in ("zero-infinity", "zero3", "atp"):
        if system in row:
            theirs = _testbed_question(catalogue, system, row["model"]).answer().seconds
            yield Compared(
                group=row["group"], name=f"{row['model']} {system} over LuWu",
                unit="over LuWu", published=row[system],
                predicted=theirs / ours,
            )  # fmt: skip


def _utilisation(catalogue: Catalogue, row: dict[str, Any]) -> Compared:
    """The longer the step, the lower it is: the error's sign is that of a rate."""
    batch = {"micro_batch": row["micro_batch"], "batch": DEVICES * row["micro_batch"]}
    question = _testbed_question(catalogue, "luwu", row["model"], **batch)
    found = utilisation(question.job, question.answer().seconds)["hfu"]
    return Compared(
        group=row["group"], name=f"{row['model']} LuWu, of the peak",
        unit="of the peak", published=row["hfu"], predicted=found,
    )  # fmt: skip


def compare_inference(catalogue: Catalogue) -> list[Compared]:
    """All calibration rows of inference. Raises ConfigError for a name that is unknown."""
    found = read("inference.toml")["series"]
    return [row for series in found for row in _KINDS[series["kind"]](catalogue, series)]


def _serving_job(catalogue: Catalogue, series: dict[str, Any], **more: Any) -> InferenceJob:
    return InferenceJob(
        model=catalogue.model(series["model"]),
        device=catalogue.device(series["device"]),
        network=catalogue.network(_NETWORK),
        **{key: series[key] for key in _INFERENCE_KEYS if key in series},
        **more,
    )


def _served(
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
        job = _serving_job(catalogue, series, input_tokens=prompt, output_tokens=1)
        what = f"{job.tensor} ranks, prompt of {prompt}"
        yield _served(series, what, "ms", published, 1e3 * predict_prefill(job).seconds)


def _batches(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    for batch, prompt, answer, published in series["rows"]:
        job = _serving_job(
            catalogue, series, batch=batch, input_tokens=prompt, output_tokens=answer
        )
        what, rate = f"{batch} of {prompt}/{answer}", predict_inference(job).tokens_per_s
        yield _served(series, what, "tokens/s", published, rate / job.devices)


def _pipelines(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    jobs = [
        _serving_job(
            catalogue, series, pipeline=stages, batching="continuous",
            input_tokens=series["input_tokens"], output_tokens=series["output_tokens"],
        )
        for stages, _ in series["rows"]
    ]  # fmt: skip
    rates = [predict_inference(with_largest_batch(job)).tokens_per_s for job in jobs]
    first = series["rows"][0][1]
    for rate, (stages, published) in list(zip(rates, series["rows"], strict=True))[1:]:
        what = f"{stages} stages over {jobs[0].pipeline}"
        yield _served(series, what, "ratio", published / first, rate / rates[0])


def _sockets(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Compared]:
    for sockets, published in series["rows"]:
        job = SocketJob(
            model=catalogue.model(series["model"]),
            processor=catalogue.find("processor", series["processor"]),
            network=catalogue.network(series["network"]),
            inside=catalogue.network("upi"),
            sockets=sockets, input_tokens=_SOCKET_TOKENS, output_tokens=_SOCKET_TOKENS,
        )  # fmt: skip
        token_ms = 1e3 * predict_socket_token(job).seconds
        yield _served(series, f"{sockets} sockets", "ms", published, token_ms)


_KINDS = {
    "first token": _first_tokens,
    "static": _batches,
    "pipeline": _pipelines,
    "sockets": _sockets,
}

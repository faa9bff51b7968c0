"""Steps of training, and the memory of a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.check.calibration import ALONE, published_operations, read
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import StepTime, TrainingJob, utilisation
from luwu.predict.model.memory import activation_bytes, state_bytes
from luwu.predict.systems.training import predict_step

_NOT_OF_A_JOB: Final = ("group", "system", "units", "rows", "assumptions")
_NAMES: Final = ("model", "device", "network", "software")
_GIB: Final = 2**30
_UNITS: Final = {
    "s": "s", "token/s": "token/s/device", "TFLOP/s": "TFLOP/s/device", "mfu": "share",
}  # fmt: skip


def rows(catalogue: Catalogue) -> Iterator[BlindRow]:
    """All of them."""
    for series in _data():
        for devices, batch in series["rows"]:
            job = _job(catalogue, series, devices, batch)
            step = ALONE[series.get("system", "3d")](job)
            for unit in series["units"]:
                yield _row(series, job, step, unit)
    yield from _memory(catalogue)
    yield _interleaving(catalogue)


def _data() -> list[dict[str, Any]]:
    series: list[dict[str, Any]] = read("blind_training.toml")["series"]
    return series


def _job(catalogue: Catalogue, series: dict[str, Any], devices: int, batch: int) -> TrainingJob:
    rest = {key: series[key] for key in series if key not in (*_NOT_OF_A_JOB, *_NAMES)}
    return TrainingJob(
        model=catalogue.model(series["model"]), device=catalogue.device(series["device"]),
        network=catalogue.network(series["network"]), software=software(series["software"]),
        devices=devices, batch=batch, **rest,
    )  # fmt: skip


def _row(series: dict[str, Any], job: TrainingJob, step: StepTime, unit: str) -> BlindRow:
    value = {
        "s": step.seconds,
        "token/s": job.tokens / step.seconds / job.devices,
        "TFLOP/s": published_operations(job) / step.seconds / 1e12,
        "mfu": utilisation(job, step.seconds)["mfu"],
    }[unit]
    return BlindRow(
        group=series["group"], name=f"{_name(series, job)}, {_SAID[unit]}",
        value=value, unit=_UNITS[unit], configuration=_configuration(series, job),
        assumptions=tuple(series["assumptions"]), extrapolated=step.notes.extrapolated,
    )  # fmt: skip


_SAID: Final = {
    "s": "step time", "token/s": "throughput", "TFLOP/s": "throughput", "mfu": "MFU",
}  # fmt: skip


def _name(series: dict[str, Any], job: TrainingJob) -> str:
    system = series.get("system", f"TP{job.tensor} PP{job.pipeline}")
    how = "" if job.recompute == "none" else f" {job.recompute} recomputation"
    return f"{job.model.name} {job.precision} on {job.devices} x {job.device.name}, {system}{how}"


def _configuration(series: dict[str, Any], job: TrainingJob) -> dict[str, Any]:
    left_out = ("group", "units", "rows", "assumptions")
    given = {key: value for key, value in series.items() if key not in left_out}
    return {**given, "devices": job.devices, "batch": job.batch}


def _memory(catalogue: Catalogue) -> Iterator[BlindRow]:
    """States, and activations where nothing and where attention is computed again."""
    wanted = (("GPT-175B", "full"), ("GPT-1T", "full"))
    for series in _data():
        if (series["model"], series.get("recompute", "")) not in wanted:
            continue
        if series["software"] != "megatron-2022":
            continue
        job = _job(catalogue, series, *series["rows"][0])
        plain = replace(job, recompute="none")
        selective = replace(job, recompute="selective", sequence_parallel=True)
        found = {
            "parameters and optimizer": state_bytes(job),
            "activations, nothing computed again": activation_bytes(plain),
            "activations, selective and sequence parallel": activation_bytes(selective),
        }
        for what, nbytes in found.items():
            yield BlindRow(
                group=series["group"], name=f"{job.model.name}, {what}", value=nbytes / _GIB,
                unit="GiB", configuration=_configuration(series, job),
                assumptions=("18 bytes a parameter, embeddings left out", "the first stage"),
            )  # fmt: skip


def _interleaving(catalogue: Catalogue) -> BlindRow:
    """405B on 512 H100: states sharded over 8, TP8 PP8; tokens a second, interleaved over 1F1B."""
    plain = TrainingJob(
        model=catalogue.model("Llama3-405B"), device=catalogue.device("H100-96-500W"),
        network=catalogue.network("roce-400g"), software=software("torchtitan-2024"),
        devices=512, batch=256, micro_batch=4, sequence=8192, tensor=8, pipeline=8,
        ends_as_layers=True, sequence_parallel=True, recompute="full",
    )  # fmt: skip
    many = replace(plain, virtual=2)
    ratio = predict_step(plain).seconds / predict_step(many).seconds
    return BlindRow(
        group="FSDP", name="Llama3-405B on 512 x H100, FSDP8 TP8 PP8: interleaved over 1F1B",
        value=ratio, unit="ratio",
        configuration={
            "model": "Llama3-405B", "devices": 512, "tensor": 8, "pipeline": 8, "data": 8,
            "sequence": 8192, "batch": 256, "virtual": [1, 2],
        },
        assumptions=(
            "32 sequences a data parallel rank in micro-batches of 4, as many as stages",
            "two parts a stage",
            "full recomputation", "embedding and output layer take the places of two layers",
        ),
    )  # fmt: skip

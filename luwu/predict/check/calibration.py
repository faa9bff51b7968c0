"""Published results beside predictions of the same: how far off the model is.

A series of `data/calibration/*.toml` is one job at several sizes. A row's error has a sign: that of
predicted over published time, less one; so above zero the model is too slow, in every unit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from luwu.predict.ask.question import ALONE
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.memory import activation_bytes, state_bytes

_JOB_KEYS = (
    "sequence", "micro_batch", "tensor", "pipeline", "virtual", "context", "sequence_parallel",
    "recompute", "precision",
)  # fmt: skip


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

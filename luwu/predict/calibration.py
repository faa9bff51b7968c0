"""Published results beside predictions of the same: how far off the model is.

A series of `data/calibration/*.toml` is one job at several sizes. A row's error has a sign: that of
predicted over published time, less one; so above zero the model is too slow, in every unit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from luwu.predict.catalogue import Catalogue
from luwu.predict.software import software
from luwu.predict.training import TrainingJob, predict_step

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row with what the model says."""

    row: Row
    predicted: float
    """In the row's unit."""

    @property
    def error(self) -> float:
        """Signed; above zero: the model is too slow."""
        ratio = self.predicted / self.row.published
        return (ratio if self.row.unit == "s" else 1 / ratio) - 1


def training_rows(catalogue: Catalogue) -> list[Row]:
    """All calibration rows of training."""
    file = resources.files("luwu.predict") / "data" / "calibration" / "training.toml"
    found = tomllib.loads(file.read_text(encoding="utf-8"))["series"]
    return [row for series in found for row in _rows(catalogue, series)]


def _rows(catalogue: Catalogue, series: dict[str, Any]) -> Iterable[Row]:
    for devices, published in series["rows"]:
        batch = series.get("batch") or series["batch_per_device"] * devices
        job = TrainingJob(
            model=catalogue.model(series["model"]),
            device=catalogue.device(series["device"]),
            network=catalogue.network(series["network"]),
            software=software(series["software"]),
            devices=devices,
            batch=batch,
            **{key: series[key] for key in _JOB_KEYS if key in series},
        )
        yield Row(
            group=series["group"], source=series["source"], unit=series["unit"],
            published=published, job=job,
        )  # fmt: skip


def compare(row: Row) -> Compared:
    """What the model says of a row."""
    seconds = predict_step(row.job).seconds
    if row.unit == "s":
        return Compared(row=row, predicted=seconds)
    return Compared(row=row, predicted=published_operations(row.job) / seconds / 1e12)


def published_operations(job: TrainingJob) -> float:
    """Operations of a step on each device as SC'21 counts them: with what is computed again."""
    forward = job.model.step_operations(job.tokens, job.sequence) / 3
    again = 1.0 if job.recompute == "full" else 0.0
    head = job.model.head_operations(job.tokens)
    return ((3 + again) * forward - again * head) / job.devices

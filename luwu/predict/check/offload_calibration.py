"""Published results of offloading beside predictions: Adam on processors, and ratios to LuWu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from luwu.predict.ask.question import Question, make_training_question
from luwu.predict.check.calibration import Compared, read
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hosts import Host
from luwu.predict.hardware.units import Dimension, parse
from luwu.predict.model.job import utilisation

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


def testbed_question(catalogue: Catalogue, system: str, model: str, **changes: Any) -> Question:
    """A job on the testbed of arXiv 2409.00918."""
    table = {**_TESTBED, "system": system, "model": model, **changes}
    if system == "luwu":
        table["node"] = _NODE
    elif system in ("zero-infinity", "zero-offload"):
        table["host"] = _WORKER
    return make_training_question(table, catalogue)


def testbed(catalogue: Catalogue, system: str, model: str, **changes: Any) -> float:
    """Seconds of a step on it."""
    return testbed_question(catalogue, system, model, **changes).answer().seconds


def compare_offload(catalogue: Catalogue) -> list[Compared]:
    """All calibration rows: seconds, and ratios."""
    found = read("offload.toml")
    rows = [row for series in found["adam"] for row in _adam(catalogue, series)]
    rows += [row for each in found["ratio"] for row in _ratios(catalogue, each)]
    return rows + [_utilisation(catalogue, each) for each in found["utilisation"]]


def _adam(catalogue: Catalogue, series: dict[str, Any]) -> Iterator[Compared]:
    host = Host(
        processor=catalogue.processor(series["processor"]),
        memory_bytes=parse("memory_bytes", series["memory_bytes"], Dimension.BYTES),
    )
    for parameters, published in series["rows"]:
        yield Compared(
            group=series["group"], name=f"Adam of {parameters / 1e9:.0f} B on processors",
            unit="s", published=published, predicted=host.adam(parameters),
        )  # fmt: skip


def _ratios(catalogue: Catalogue, row: dict[str, Any]) -> Iterator[Compared]:
    ours = testbed(catalogue, "luwu", row["model"])
    for system in ("zero-infinity", "zero3", "atp"):
        if system in row:
            yield Compared(
                group=row["group"], name=f"{row['model']} {system} over LuWu",
                unit="over LuWu", published=row[system],
                predicted=testbed(catalogue, system, row["model"]) / ours,
            )  # fmt: skip


def _utilisation(catalogue: Catalogue, row: dict[str, Any]) -> Compared:
    """The longer the step, the lower it is: the error's sign is that of a rate."""
    batch = {"micro_batch": row["micro_batch"], "batch": DEVICES * row["micro_batch"]}
    question = testbed_question(catalogue, "luwu", row["model"], **batch)
    found = utilisation(question.job, question.answer().seconds)["hfu"]
    return Compared(
        group=row["group"], name=f"{row['model']} LuWu, of the peak",
        unit="of the peak", published=row["hfu"], predicted=found,
    )  # fmt: skip

"""The nearest to a question whose job fits the memory of its devices.

Nearest are questions with the fewest keys changed: recomputation, a smaller micro-batch, more
tensor or pipeline ranks, more devices; of those that fit, the one with most tokens per second on
each device. Where it has more devices, the batch grows with them if it must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.predict.ask.question import Question, on_nics
from luwu.predict.model.job import RECOMPUTE, TrainingJob

CHANGED_MAX: Final = 3
DEVICES_FACTOR_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Fit:
    """A question that fits, and how it differs from what was asked."""

    changes: dict[str, Any]
    question: Question
    step_s: float

    @property
    def text(self) -> str:
        """As the lines of a question."""
        lines = [
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
            for key, value in self.changes.items()
        ]
        return f"{', '.join(lines)} ({format_bytes(self.question.needed_bytes)})"


def nearest_fit(question: Question) -> Fit | None:
    """The fastest of those that fit with the fewest changes; None if none does."""
    options = _options(question)
    for count in range(1, CHANGED_MAX + 1):
        found = list(_fitting(question, options, count))
        if found:
            return min(found, key=lambda each: each.step_s / each.question.job.tokens
                       * each.question.job.devices)  # fmt: skip
    return None


def _options(question: Question) -> dict[str, list[Any]]:
    """Values of each key that save memory."""
    job = question.job
    found: dict[str, list[Any]] = {
        "recompute": list(RECOMPUTE[RECOMPUTE.index(job.recompute) + 1 :]),
        "micro_batch": [m for m in range(1, job.micro_batch) if job.micro_batch % m == 0],
        "devices": _doubled(job.devices, DEVICES_FACTOR_MAX),
    }
    if question.system == "3d":
        most = max(1, int(job.device.domain_count) // job.tensor)
        found["tensor"] = _doubled(job.tensor, most)
        found["pipeline"] = [p for p in _doubled(job.pipeline, 64) if job.shared_layers % p == 0]
    return found


def _doubled(value: int, factor_max: int) -> list[int]:
    return [value << k for k in range(1, factor_max.bit_length()) if 1 << k <= factor_max]


def _fitting(question: Question, options: dict[str, list[Any]], count: int) -> Iterator[Fit]:
    for keys in combinations(options, count):
        for values in product(*(options[key] for key in keys)):
            changes = dict(zip(keys, values, strict=True))
            try:
                job = on_nics(_changed(question.job, changes), question.nics_per_host)
                changed = replace(question, job=job)
                if changed.fits:
                    yield Fit(changes, changed, changed.answer().seconds)
            except ConfigError:  # degrees that do not divide, a host that is too small
                continue


def _changed(job: TrainingJob, changes: dict[str, Any]) -> TrainingJob:
    """With its batch times more devices, if it cannot be shared by them; `changes` says so."""
    try:
        return replace(job, **changes)
    except ConfigError:
        if "devices" not in changes:
            raise
        changes["batch"] = job.batch * changes["devices"] // job.devices
        return replace(job, **changes)

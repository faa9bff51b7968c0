"""Blind predictions that are a question each, as users write it.

`data/calibration/blind_1.toml` and `blind_2.toml` have them. A row's `configuration` has the
quantity, the question with all its keys and, of a ratio, the question that it is `over`; so a
number of a document can be computed again from the document alone (`predicted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from luwu.predict.ask.answer_inference import first_token_parts
from luwu.predict.ask.answer_training import memory_bytes
from luwu.predict.ask.question import AnyQuestion, Question, SocketQuestion, make_question
from luwu.predict.ask.question_inference import Served
from luwu.predict.ask.sweep import replaced
from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.check.calibration import published_operations, read
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import StepTime, TrainingJob, utilisation
from luwu.predict.model.memory import activation_bytes, state_bytes

SETS: Final = ("blind_1.toml", "blind_2.toml")
_UNITS: Final = ("s", "ms", "GiB", "share")
"""Units of quantities that are no rates."""


def _model_operations(job: TrainingJob, seen: float) -> float:
    """Of a step, on each device, with so much of the scores; nothing that is recomputed."""
    model = job.model
    forward = model.layers * model.layer_operations(job.tokens, job.sequence, seen)
    return 3 * (forward + model.head_operations(job.tokens)) / job.devices


_TRAINING: Final[dict[str, Callable[[TrainingJob, StepTime], float]]] = {
    "step s": lambda job, step: step.seconds,
    "mfu share": lambda job, step: utilisation(job, step.seconds)["mfu"],
    "states GiB": lambda job, step: state_bytes(job) / 2**30,
    "activations GiB": lambda job, step: activation_bytes(job) / 2**30,
    "token/s": lambda job, step: job.tokens / step.seconds,
    "token/s/device": lambda job, step: job.tokens / step.seconds / job.devices,
    "TFLOP/s/device with recomputation":
        lambda job, step: published_operations(job) / step.seconds / 1e12,
    "TFLOP/s/device, scores in full":
        lambda job, step: _model_operations(job, 1.0) / step.seconds / 1e12,
    "TFLOP/s/device, half of the scores":
        lambda job, step: _model_operations(job, 0.5) / step.seconds / 1e12,
}  # fmt: skip
_INFERENCE: Final[dict[str, Callable[[Served], float]]] = {
    "output token/s": lambda served: served.tokens_per_s,
    "token/s of prompts and answers": lambda served: (
        served.tokens_per_s * served.job.tokens / served.job.output_tokens
    ),
    "first token ms": lambda served: 1e3 * sum(first_token_parts(served).values()),
    "between tokens ms": lambda served: 1e3 * served.inference.token_s,
}
_SOCKETS_MS: Final = "between tokens ms"


def rows(catalogue: Catalogue, file: str) -> Iterator[BlindRow]:
    """All of a set, each alternative after the row that counts."""
    for series in read(file)["series"]:
        for index in range(_count(series)):
            counted = _row(catalogue, series, index, {})
            yield counted
            for other in series.get("alternative", ()):
                if index < _count(other, series):
                    yield _row(catalogue, series, index, other, counted.name)


def not_predicted() -> list[dict[str, str]]:
    """What cannot be asked, and why."""
    found: list[dict[str, str]] = read(SETS[1])["not_predicted"]
    return found


def predicted(configuration: dict[str, Any], catalogue: Catalogue) -> float:
    """The number that a row's `configuration` asks for. Raises ConfigError."""
    value, _ = _value(configuration["quantity"], configuration["question"], catalogue)
    if "over" not in configuration:
        return value
    other, _ = _value(configuration["quantity"], configuration["over"], catalogue)
    return value / other


def _count(*tables: dict[str, Any]) -> int:
    """Rows of the first of these that has several."""
    each = next((table["each"] for table in tables if "each" in table), {"": [None]})
    return len(next(iter(each.values())))


def _row(
    catalogue: Catalogue, series: dict[str, Any], index: int, other: dict[str, Any], of: str = ""
) -> BlindRow:
    each = {**series.get("each", {}), **other.get("each", {})}
    change = dict(other.get("change", {}))
    quantity = change.pop("quantity", series["quantity"])
    question = {**series["question"], **{key: each[key][index] for key in each}, **change}
    name = series["name"].format(**{"context": 1, **question})
    value, extrapolated = _value(quantity, question, catalogue)
    configuration = {"quantity": quantity, "question": question}
    if "over" in series:
        configuration["over"] = {**question, **series["over"], **other.get("over", {})}
        value = predicted(configuration, catalogue)
    assumed = [*series["assumptions"], *([f"but {other['name']}"] if other else [])]
    missing = _missing_bytes(question, catalogue)
    if missing:
        assumed.append(
            f"by the model a device lacks {missing / 1e9:.3g} GB of memory: as if it had them"
        )
    return BlindRow(
        group=series["group"], name=f"{name}; {other['name']}" if other else name, value=value,
        unit="ratio" if "over" in series else _unit(quantity), configuration=configuration,
        assumptions=tuple(assumed),
        extrapolated=extrapolated, alternative_to=of,
    )  # fmt: skip


def _unit(quantity: str) -> str:
    """Of the units that a quantity has in its name."""
    words = quantity.replace(",", "").split()
    return next(word for word in words if "/" in word or word in _UNITS)


def _question(table: dict[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """With the section of its system alone, and other numbers of what it names."""
    changes = {key: value for key, value in table.items() if key == "system" or "." in key}
    rest = {key: value for key, value in table.items() if key not in changes}
    return make_question(*replaced(rest, changes, catalogue))


def _value(
    quantity: str, table: dict[str, Any], catalogue: Catalogue
) -> tuple[float, dict[str, str]]:
    question = _question(table, catalogue)
    if isinstance(question, Question):
        step = question.answer()
        return _TRAINING[quantity](question.job, step), step.notes.extrapolated
    if isinstance(question, SocketQuestion):
        assert quantity == _SOCKETS_MS
        return 1e3 * question.answer().token.seconds, {}
    served = question.answer()
    notes = (served.inference.prefill.notes, served.inference.decode.notes)
    found = {key: text for each in notes for key, text in each.extrapolated.items()}
    return _INFERENCE[quantity](served), found


def _missing_bytes(table: dict[str, Any], catalogue: Catalogue) -> float:
    """Memory that a device lacks in training; questions of inference that lack any are rejected."""
    question = _question(table, catalogue)
    if not isinstance(question, Question):
        return 0.0
    needed = sum(memory_bytes(question).values())
    return max(0.0, needed - question.job.device.memory_bytes)

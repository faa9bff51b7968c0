"""The number that a question of a blind row asks for, by the model of today.

A row's configuration holds the quantity and the question with all its keys; for a ratio, `over` is
the question of the denominator. So the document alone is enough to recompute a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from luwu.predict.ask.question import (
    AnyQuestion,
    Question,
    Served,
    make_question,
)
from luwu.predict.ask.sweep import replaced
from luwu.predict.check.calibration import published_operations
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import StepTime, TrainingJob, utilisation
from luwu.predict.model.memory import activation_bytes, state_bytes
from luwu.predict.networks.choice import Built
from luwu.predict.networks.cost import network_bill


def _model_operations(job: TrainingJob, seen: float) -> float:
    """Operations per step and device with a share `seen` of the scores; none is recomputed."""
    model = job.model
    forward = model.layers * model.layer_operations(job.tokens, job.sequence, seen)
    return 3 * (forward + model.head_operations(job.tokens)) / job.devices


def _known(value: Any) -> Any:
    assert value is not None  # the rows name processors whose peak is known
    return value


def _built(question: Question) -> Built:
    built = question.build()
    assert built is not None
    return built


def _network_price(question: Question) -> float:
    built, costs = _built(question), question.costs
    assert costs is not None
    assert costs.link is not None
    return network_bill(built, switch=costs.switch, link=costs.link).capex / built.endpoints


def _forward_s(step: StepTime) -> float:
    """Seconds of forward, where every layer is recomputed, as only the output layer is not."""
    return step.parts["recomputation"] + step.parts["output layer"] / 3


_TRAINING: Final[dict[str, Callable[[TrainingJob, StepTime], float]]] = {
    "step s": lambda job, step: step.seconds,
    "mfu share": lambda job, step: utilisation(job, step.seconds)["mfu"],
    "states GiB": lambda job, step: state_bytes(job) / 2**30,
    "activations GiB": lambda job, step: activation_bytes(job) / 2**30,
    "forward s": lambda job, step: _forward_s(step),
    "backward s":
        lambda job, step: step.seconds - step.parts["optimizer stage"] - _forward_s(step),
    "optimizer s": lambda job, step: step.parts["optimizer stage"],
    "sequence/s": lambda job, step: job.batch / step.seconds,
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
    "output token/s": lambda served: _known(served.tokens_per_s),
    "token/s of prompts and answers": lambda served: (
        _known(served.tokens_per_s)
        * (served.job.input_tokens + served.job.output_tokens)
        / served.job.output_tokens
    ),
    "first token ms": lambda served: 1e3 * sum(_known(served.first_token_parts).values()),
    "first token s": lambda served: sum(_known(served.first_token_parts).values()),
    "between tokens ms": lambda served: 1e3 * served.token_s,
    "generated token/s": lambda served: served.batch / served.token_s,
    "whole answer ms": lambda served: 1e3 * served.job.output_tokens / _known(served.tokens_per_s),
}
NETWORK: Final[dict[str, Callable[[Question], float]]] = {
    "switches": lambda question: _built(question).inventory.switches,
    "links between switches":
        lambda question: _built(question).inventory.links - _built(question).endpoints,
    "USD/endpoint of the network": _network_price,
}  # fmt: skip


def predicted(configuration: dict[str, Any], catalogue: Catalogue) -> float:
    """The number that a row's configuration asks for. Raises ConfigError."""
    quantity = configuration["quantity"]
    value = _value(quantity, configuration["question"], catalogue)
    if "over" in configuration:
        value /= _value(quantity, configuration["over"], catalogue)
    return value


def _question(table: dict[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """With the section of its system alone, and other numbers of what it names."""
    changes = {key: value for key, value in table.items() if key == "system" or "." in key}
    rest = {key: value for key, value in table.items() if key not in changes}
    return make_question(*replaced(rest, changes, catalogue))


def _value(quantity: str, table: dict[str, Any], catalogue: Catalogue) -> float:
    question = _question(table, catalogue)
    if isinstance(question, Question):
        if quantity in NETWORK:
            return NETWORK[quantity](question)
        return _TRAINING[quantity](question.job, question.answer())
    return _INFERENCE[quantity](question.answer())

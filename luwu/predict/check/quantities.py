"""The number that a published result, or a row that was predicted blind, asks of a question.

A configuration holds the quantity and the question with all its keys; for a ratio, `over` is the
question of the denominator. So it is enough to recompute a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from luwu.predict.ask.cost import network_bill
from luwu.predict.ask.question import (
    AnyQuestion,
    InferenceQuestion,
    Question,
    Served,
    make_question,
)
from luwu.predict.ask.sweep import replaced
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Host
from luwu.predict.inference.arrivals import arrivals_document
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.model.job import StepTime, TrainingJob, utilisation
from luwu.predict.model.memory import stage_memory


def published_operations(job: TrainingJob) -> float:
    """Operations of a step on each device, as SC'21 counts them, which includes recomputation."""
    forward = job.model.step_operations(job.tokens, job.sequence) / 3
    again = 1.0 if job.recompute == "full" else 0.0
    head = job.model.head_operations(job.tokens)
    return ((3 + again) * forward - again * head) / job.devices


def _teraflops(job: TrainingJob, step: StepTime, seen: float) -> float:
    """The rate of a device with a share `seen` of the scores; none is recomputed."""
    operations = job.model.step_operations(job.tokens, job.sequence, seen)
    return operations / job.devices / step.seconds / 1e12


def _known(value: Any) -> Any:
    assert value is not None  # the rows name processors whose peak is known
    return value


def _forward_s(step: StepTime) -> float:
    """Seconds of forward, where every layer is recomputed, as only the output layer is not."""
    return step.parts["recomputation"] + step.parts["output layer"] / 3


_TRAINING: Final[dict[str, Callable[[TrainingJob, StepTime], float]]] = {
    "step s": lambda job, step: step.seconds,
    "mfu share": lambda job, step: utilisation(job, step.seconds)["mfu"],
    "hfu share": lambda job, step: utilisation(job, step.seconds)["hfu"],
    "states GiB": lambda job, step: stage_memory(job)[0] / 2**30,
    "activations GiB": lambda job, step: stage_memory(job)[1] / 2**30,
    "forward s": lambda job, step: _forward_s(step),
    "backward s":
        lambda job, step: step.seconds - step.parts["optimizer stage"] - _forward_s(step),
    "optimizer s": lambda job, step: step.parts["optimizer stage"],
    "sequence/s": lambda job, step: job.batch / step.seconds,
    "token/s": lambda job, step: job.tokens / step.seconds,
    "token/s/device": lambda job, step: job.tokens / step.seconds / job.devices,
    "TFLOP/s/device with recomputation":
        lambda job, step: published_operations(job) / step.seconds / 1e12,
    "TFLOP/s/device, scores in full": lambda job, step: _teraflops(job, step, 1.0),
    "TFLOP/s/device, half of the scores": lambda job, step: _teraflops(job, step, 0.5),
}  # fmt: skip
FIRST_UNDER_LOAD: Final = "first token under load ms"
BETWEEN_UNDER_LOAD: Final = "between tokens under load ms"
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
NETWORK: Final[dict[str, Callable[[Any, Any], float]]] = {
    "switches": lambda built, costs: built.inventory.switches,
    "links between switches": lambda built, costs: built.inventory.links - built.endpoints,
    "USD/endpoint of the network": lambda built, costs: (
        network_bill(built, switch=costs.switch, link=costs.link).capex / built.endpoints
    ),
}
"""Quantities that follow from the built network and its costs alone."""


def _under_load_ms(quantity: str, question: InferenceQuestion) -> float:
    """The mean of first tokens, or between tokens, of requests that are played."""
    assert question.arrivals is not None
    assert isinstance(question.job, InferenceJob)
    played = question.arrivals.play(question.job, 1)
    said = arrivals_document(question.arrivals, question.job, played, math.inf)
    key = "token_s" if quantity == BETWEEN_UNDER_LOAD else "first_token_s"
    return 1e3 * float(said[key]["mean"])


def is_rate(quantity: str) -> bool:
    """True of what is less the longer something takes."""
    return "/s" in quantity or quantity.endswith("share")


def signed_error(published: float, value: float, *, rate: bool) -> float:
    """Of predicted over published time, less one: above zero, the model is too slow."""
    return (published / value if rate else value / published) - 1


def predicted(configuration: dict[str, Any], catalogue: Catalogue) -> float:
    """The number that a row's configuration asks for. Raises ConfigError."""
    quantity = configuration["quantity"]
    value = _value(quantity, configuration["question"], catalogue)
    over = configuration.get("over")
    return value if over is None else value / _value(quantity, over, catalogue)


def question_of(table: dict[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """With the section of its system alone, and other numbers of what it names."""
    changes = {key: value for key, value in table.items() if key == "system" or "." in key}
    rest = {key: value for key, value in table.items() if key not in changes}
    return make_question(*replaced(rest, changes, catalogue))


def _value(quantity: str, table: dict[str, Any], catalogue: Catalogue) -> float:
    if quantity == "Adam s":  # of a host's processors, whatever its memory
        host = Host(processor=catalogue.find("processor", table["processor"]), memory_bytes=0.0)
        return host.adam(table["parameters"])
    question = question_of(table, catalogue)
    if isinstance(question, Question):
        if quantity in NETWORK:
            return NETWORK[quantity](question.build(), question.costs)
        return _TRAINING[quantity](question.job, question.answer())
    if quantity in (FIRST_UNDER_LOAD, BETWEEN_UNDER_LOAD):
        return _under_load_ms(quantity, question)
    return _INFERENCE[quantity](question.answer())

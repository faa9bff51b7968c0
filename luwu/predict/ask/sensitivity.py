"""The numbers that an answer depends on: each changed by a tenth, one at a time.

An elasticity of -0.8 says that with one percent more of an input a step takes 0.8 % less. It is the
mean of both directions. An input of elasticity zero had no effect, and is named.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import AnyQuestion
from luwu.predict.ask.question_cost import Costs
from luwu.predict.hardware.curves import Curve
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import Software
from luwu.predict.inference.arrivals import Arrivals

STEP: Final = 0.1
_NO_INPUT: Final = (Transformer, Software, Costs, Arrivals)
"""Classes without elasticities: model, software, arrivals; prices change no time."""
_NO_TENTH: Final = (
    "part.cached", "topology.global_taper", "job.device.domain_count", "job.slowdown",
    "tokens", "job.network.devices_count", "job.inside.devices_count", "part.network.devices_count",
)  # fmt: skip
"""Shares and slowdowns have an end, and no tenth beyond it; links and devices are whole."""


def inputs(thing: Any, place: str = "") -> list[str]:
    """Places of all numbers and curves of hardware in a question: `job.device.bf16`."""
    found = []
    for each in dataclasses.fields(thing):
        value, name = getattr(thing, each.name), f"{place}{each.name}"
        if isinstance(value, Curve) or (isinstance(value, float) and 0 < value < math.inf):
            found.append(name)
        elif dataclasses.is_dataclass(value) and not isinstance(value, _NO_INPUT):
            found += inputs(value, f"{name}.")
    return found


def scaled(thing: Any, place: str, factor: float) -> Any:
    """The same with one number, or one curve's rates, times a factor."""
    name, _, rest = place.partition(".")
    value = getattr(thing, name)
    if rest:
        return dataclasses.replace(thing, **{name: scaled(value, rest, factor)})
    if isinstance(value, Curve):
        rates = tuple(factor * rate for rate in value.rates)
        return dataclasses.replace(thing, **{name: dataclasses.replace(value, rates=rates)})
    return dataclasses.replace(thing, **{name: factor * value})


def elasticities(question: AnyQuestion) -> dict[str, float]:
    """Elasticities of the step time, or of the seconds of a token, by input, the largest first. If
    a tenth less of an input is impossible (`limits`), by a tenth more alone.
    """
    found = {}
    for place in _places(question):
        less, more = (_seconds(question, place, factor) for factor in (1 - STEP, 1 + STEP))
        if more is None:
            continue
        if less is None:
            found[place] = math.log(more / question.answer().seconds) / math.log(1 + STEP)
        else:
            found[place] = math.log(more / less) / math.log((1 + STEP) / (1 - STEP))
    return dict(sorted(found.items(), key=lambda item: (-abs(item[1]), item[0])))


def limits(question: AnyQuestion) -> list[str]:
    """Inputs of which a tenth less or more cannot be: a memory that is as good as full."""
    factors = (1 - STEP, 1 + STEP)
    return [
        place for place in _places(question)
        if any(_seconds(question, place, factor) is None for factor in factors)
    ]  # fmt: skip


def _places(question: AnyQuestion) -> list[str]:
    return [place for place in inputs(question) if place not in _NO_TENTH]


def _seconds(question: AnyQuestion, place: str, factor: float) -> float | None:
    """With one input changed; None where that cannot be."""
    try:
        seconds: float = scaled(question, place, factor).answer().seconds
    except ConfigError:
        return None
    return seconds

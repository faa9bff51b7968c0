"""An average of the weights that is kept beside them: its field, and how fast it follows.

    average = weights                          in the first update of a parameter
    average = average + rate (weights - average)    in each later one, as torch's `lerp`

    {"average_decay": d}                       exponential: rate is 1 - d
    {"average_start": s, "average_every": k}   equal: the mean of the weights after updates s + 1,
                                               s + 1 + k, s + 1 + 2 k ...; until then the weights

Like the moments it counts the updates of each parameter alone: a step that is skipped, or has
no gradient for it, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from luwu.base.errors import ConfigError
from luwu.wire.description import Description
from luwu.wire.hyper import Number

AVERAGE: Final = "average"
"""The last of the state fields, where an average is kept."""


def without_average(state_fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of the optimizer itself."""
    return state_fields[:-1] if keeps_average(state_fields) else state_fields


def keeps_average(state_fields: tuple[str, ...]) -> bool:
    """True if an average is kept beside the optimizer's own state."""
    return state_fields[-1:] == (AVERAGE,)


def average_rate(hyper: Mapping[str, Number], updates_count: int) -> float:
    """The rate of one update, in [0, 1]; `updates_count`: updates of the parameter before it."""
    if "average_decay" in hyper:
        return 1 - float(hyper["average_decay"]) if updates_count else 1.0
    start, every = int(hyper["average_start"]), int(hyper["average_every"])
    if updates_count <= start:
        return 1.0
    samples_count, rest = divmod(updates_count - start, every)
    return 0.0 if rest else 1 / (1 + samples_count)


def stored_field(description: Description, field: str, *, trainable: bool) -> str:
    """The field of a page that has what is asked for: the average of frozen weights are these.

    Raises ConfigError for an average that the job does not keep.
    """
    if field != AVERAGE:
        return field
    if not keeps_average(description.state_fields):
        raise ConfigError(
            "average: this job keeps no average of its weights; create its optimizer with "
            "average=luwu.ema(...) or luwu.swa(...)"
        )
    return AVERAGE if trainable else "weight"

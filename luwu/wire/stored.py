"""The fields of the page of a chunk: their dtypes and sizes, the average among them, torch's names.

    float32 moments    weight | m | v | updates                        12 bytes an element
    int8 moments       weight | m | m.scale | v | v.scale | updates    6.125

Weights and moments are in the dtypes of the chunk's form. In 8 bits a moment is kept
by blocks of 64 elements, each with a float32 scale in the field after it: int8 where it may be
negative, uint8 where it may not. A block lies in one parameter, and no chunk cuts it, for
parameters and chunks begin with multiples of 64 elements.

An average of the weights, in float32, is kept beside them where the optimizer has one:

    average = weights                          in the first update of a parameter
    average = average + rate (weights - average)    in each later one, as torch's `lerp`

    {"average_decay": d}                       exponential: rate is 1 - d
    {"average_start": s, "average_every": k}   equal: the mean of the weights after updates s + 1,
                                               s + 1 + k, s + 1 + 2 k ...; until then the weights

Like the moments it counts the updates of each parameter alone: a step that is skipped, or has
no gradient for it, changes nothing.

For torch, keys are those of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`,
flattened: `state.NAME.exp_avg` and so on, NAME the parameter's. A parameter that was never updated
has no `momentum_buffer` yet, as in torch. Lion, which torch has not, is called as its authors do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import ALIGN_ELEMS
from luwu.layout import COUNT_BYTES
from luwu.wire.description import Description
from luwu.wire.hyper import Number

WEIGHT: Final = "weight"
UPDATES: Final = "updates"
"""Counts of updates, one for each segment of a page: Adam's step count."""

BLOCK_ELEMS: Final = ALIGN_ELEMS
"""Elements that share a scale."""
NEVER_NEGATIVE: Final = ("v",)
"""Moments of squares."""
_OF_WHOLE: Final[Mapping[str, Mapping[str, str]]] = {"muon": {"m": "momentum_buffer"}}
"""Fields of parameters that an optimizer updates as a whole, if not all, with torch's names of
them; by optimizer."""


class StoredField(NamedTuple):
    """One array of a page."""

    name: str
    dtype: str
    elems: int

    @property
    def nbytes(self) -> int:
        """Bytes without a gap."""
        return self.elems * DTYPES[self.dtype].nbytes


def scale_name(field: str) -> str:
    """The field that has the scales of one in 8 bits."""
    return f"{field}.scale"


def field_dtype(field: str, state_dtype: str) -> str:
    """The dtype of a field of state, where moments are kept in this one."""
    if field == AVERAGE:
        return "float32"
    return "uint8" if state_dtype == "int8" and field in NEVER_NEGATIVE else state_dtype


def kept_fields(optimizer: str, state_fields: tuple[str, ...], *, whole: bool) -> tuple[str, ...]:
    """The fields of state of a parameter; those that are updated as a whole may keep fewer."""
    own = _OF_WHOLE.get(optimizer) if whole else None
    if own is None:
        return state_fields
    return tuple(name for name in state_fields if name in own or name == AVERAGE)


def stored_fields(job: Description, chunk: int) -> tuple[StoredField, ...]:
    """The fields of a chunk's page, in their order; frozen chunks have weights alone."""
    place = job.layout.chunks[chunk]
    if not place.trainable:
        return (StoredField(WEIGHT, "float32", place.elems),)
    found = [StoredField(WEIGHT, place.form.master, place.elems)]
    for name in _fields_of(job, whole=place.form.whole):
        dtype = field_dtype(name, place.form.state)
        found.append(StoredField(name, dtype, place.elems))
        if dtype in ("int8", "uint8"):
            found.append(StoredField(scale_name(name), "float32", place.elems // BLOCK_ELEMS))
    found.append(StoredField(UPDATES, "int64", job.layout.segments_count(chunk)))
    return tuple(found)


def stored_bytes(job: Description, chunk: int) -> int:
    """Bytes of all that is stored of a chunk, as it travels from node to node."""
    return sum(field.nbytes for field in stored_fields(job, chunk))


def loaded_bytes(job: Description, chunk: int) -> int:
    """Bytes of the same where a script brings it: all values in float32."""
    place = job.layout.chunks[chunk]
    if not place.trainable:
        return place.sum_bytes
    fields_count = 1 + len(_fields_of(job, whole=place.form.whole))
    return fields_count * place.sum_bytes + COUNT_BYTES * job.layout.segments_count(chunk)


def _fields_of(job: Description, *, whole: bool) -> tuple[str, ...]:
    return kept_fields(job.optimizer, job.state_fields, whole=whole)


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


FIELD_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
    "lion": {"m": "exp_avg"},
    "muon": {"m": "exp_avg", "v": "exp_avg_sq"},
    "sgd": {"momentum": "momentum_buffer"},
}
"""torch's names of our fields by optimizer; those of another optimizer keep their names."""

STEP: Final = "step"
_COUNTING: Final = ("adam", "adamw", "muon")
"""Optimizers whose state has the number of updates of each parameter."""
_LATE: Final = ("sgd",)
"""Optimizers that make their state in the first update."""


def state_keys(
    optimizer: str, state_fields: tuple[str, ...], *, whole: bool
) -> list[tuple[str, str]]:
    """(torch's key, our field) of what a parameter has, in torch's order; `whole`: it is updated
    as a whole."""
    is_other = whole and optimizer in _OF_WHOLE
    names = _OF_WHOLE[optimizer] if is_other else FIELD_NAMES.get(optimizer, {})
    found = [(STEP, STEP)] if optimizer in _COUNTING and not is_other else []
    fields = kept_fields(optimizer, state_fields, whole=whole)
    return found + [(names.get(each, each), each) for each in fields]


def state_tensors(
    description: Description, index: int, updates: int | None
) -> list[tuple[str, str]]:
    """(name of the tensor, our field) of a parameter that was updated so often, in torch's order.

    None: it is frozen, and has no state.
    """
    optimizer = description.optimizer
    if updates is None or (optimizer in _LATE and not updates):
        return []
    parameter = description.layout.parameters[index]
    keys = state_keys(optimizer, description.state_fields, whole=parameter.form.whole)
    return [(f"state.{parameter.name}.{key}", field) for key, field in keys]


def torch_hyper(group: Mapping[str, Number]) -> dict[str, Any]:
    """A group's hyper-parameters as torch's groups have them: `betas` is a pair there."""
    named: dict[str, Any] = {k: v for k, v in group.items() if k not in ("beta1", "beta2")}
    if "beta1" in group:
        named["betas"] = [group["beta1"], group["beta2"]]
    return named

"""Parameters and units as a script registered them, and what is rejected of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from luwu.base.dtypes import MASTER_DTYPES, STATE_DTYPES, WIRE_DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import ALIGN_ELEMS, CHUNK_BYTES_STEP, CHUNK_COUNT_MAX, PAYLOAD_BYTES_MAX

COUNT_BYTES = 8
"""One count of updates: an int64 for each segment of a page."""

SUM_BYTES = 4
"""One element of a gradient sum: float32, whatever travelled."""

NARROW_ELEMS_MIN = 4096
"""Smaller parameters are stored in float32 whatever is asked: they are few bytes."""


class StoredForm(NamedTuple):
    """How pages keep the parameters of a group."""

    state: str = "float32"
    """Dtype of moments."""
    master: str = "float32"
    """Dtype of master weights."""
    whole: bool = False
    """Their update sees each as a whole."""

    def of(self, elems: int, *, is_embedding: bool) -> StoredForm:
        """How one parameter is kept, where this is asked for its group.

        Embeddings stay in float32: most of their rows have no gradient in a step, and few in a row.
        """
        if is_embedding or elems < NARROW_ELEMS_MIN:
            return StoredForm(whole=self.whole)
        return self


ALL_FLOAT32: Final = StoredForm()


def padded(elems: int) -> int:
    """`elems` rounded up to the alignment of 64 elements."""
    return -(-elems // ALIGN_ELEMS) * ALIGN_ELEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter as the script registered it."""

    name: str
    """Fully qualified, unique; the first of its names if it is tied."""

    shape: tuple[int, ...]

    dtype: str = "float32"
    """Dtype the script registered it with."""

    wire_dtype: str = "float32"
    """Dtype in compute, and so of its weights and gradients on the wire."""

    trainable: bool = True

    group: int = 0
    """Index of its parameter group: whose hyper-parameters it takes."""

    form: StoredForm = ALL_FLOAT32
    """How it is kept (`luwu.wire.stored`); one that its update sees as a whole shares no chunk."""

    @property
    def elems(self) -> int:
        """Elements without padding."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The parameters of one `fully_shard` call: pulled and freed together."""

    name: str
    parameters: tuple[int, ...]
    """Indices into `Layout.parameters`, in order of registration."""


def check_chunk_bytes(chunk_bytes: int, stored_bytes: int) -> None:
    """Check that chunks of this size can cut a model of this size. Raises ConfigError."""
    if chunk_bytes < CHUNK_BYTES_STEP or chunk_bytes % CHUNK_BYTES_STEP:
        nearest = (chunk_bytes + CHUNK_BYTES_STEP // 2) // CHUNK_BYTES_STEP
        raise ConfigError(
            f"chunk: {chunk_bytes} bytes is not a multiple of 16KiB; "
            f"the nearest is {max(1, nearest) * 16}KiB"
        )
    if chunk_bytes > PAYLOAD_BYTES_MAX:
        raise ConfigError(
            f"chunk: {chunk_bytes} bytes is more than the {PAYLOAD_BYTES_MAX} bytes "
            "a frame may have; choose a smaller chunk"
        )
    if stored_bytes // chunk_bytes > CHUNK_COUNT_MAX:
        raise ConfigError(
            f"chunk: {chunk_bytes} bytes cut this model into more than "
            f"{CHUNK_COUNT_MAX} chunks; choose a larger chunk"
        )


def check_model(
    parameters: Sequence[Parameter], units: Iterable[Unit], optimizer_nodes: int
) -> None:
    """Check that parameters and units make a model that can be laid out. Raises ConfigError."""
    if optimizer_nodes < 1:
        raise ConfigError(f"optimizer_nodes must be at least 1, got {optimizer_nodes}")
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConfigError(f"two parameters are named {twice!r}; names must be unique")
    for parameter in parameters:
        _check_parameter(parameter)
    owned = sorted(index for unit in units for index in unit.parameters)
    if owned != list(range(len(parameters))):
        raise ConfigError(
            "every parameter must belong to exactly one unit; "
            f"{len(parameters)} parameters, {len(owned)} places in units"
        )


def _check_parameter(parameter: Parameter) -> None:
    for dtype in (parameter.dtype, parameter.wire_dtype):
        if dtype not in WIRE_DTYPES:
            raise ConfigError(
                f"parameter {parameter.name}: dtype {dtype} cannot be trained here; "
                f"use one of {', '.join(WIRE_DTYPES)}"
                + ("" if parameter.trainable else ", or name it in ignored_params: it is frozen")
            )
    form = parameter.form
    if form.state not in STATE_DTYPES or form.master not in MASTER_DTYPES:
        raise ConfigError(
            f"parameter {parameter.name}: moments in {form.state} and master weights in "
            f"{form.master} cannot be kept; state_dtype is one of "
            f"{', '.join(STATE_DTYPES)}, master_dtype one of {', '.join(MASTER_DTYPES)}"
        )
    if parameter.elems < 1 or min(parameter.shape, default=1) < 0:
        raise ConfigError(
            f"parameter {parameter.name} has shape {parameter.shape} and so no elements; "
            "remove it or keep it outside of fully_shard"
        )

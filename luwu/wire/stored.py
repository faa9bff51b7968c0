"""The fields of the page of a chunk, with their dtypes and sizes.

    float32 moments    weight | m | v | updates                        12 bytes an element
    int8 moments       weight | m | m.scale | v | v.scale | updates    6.125

Weights are in the chunk's `master_dtype`, moments in its `state_dtype`. In 8 bits a moment is kept
by blocks of 64 elements, each with a float32 scale in the field after it: int8 where it may be
negative, uint8 where it may not. A block lies in one parameter, and no chunk cuts it, for
parameters and chunks begin with multiples of 64 elements. An average of the weights is float32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from luwu.base.dtypes import DTYPES
from luwu.base.limits import ALIGN_ELEMS
from luwu.layout import COUNT_BYTES
from luwu.wire.averages import AVERAGE
from luwu.wire.description import Description

WEIGHT: Final = "weight"
UPDATES: Final = "updates"
"""Counts of updates, one for each segment of a page: Adam's step count."""

BLOCK_ELEMS: Final = ALIGN_ELEMS
"""Elements that share a scale."""
NEVER_NEGATIVE: Final = ("v",)
"""Moments of squares."""
_OF_WHOLE: Final = {"muon": ("m",)}
"""Fields of parameters that an optimizer updates as a whole, if not all; by optimizer."""


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
    found = [StoredField(WEIGHT, place.master_dtype, place.elems)]
    for name in _fields_of(job, whole=place.whole):
        dtype = field_dtype(name, place.state_dtype)
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
    fields_count = 1 + len(_fields_of(job, whole=place.whole))
    return fields_count * place.sum_bytes + COUNT_BYTES * job.layout.segments_count(chunk)


def _fields_of(job: Description, *, whole: bool) -> tuple[str, ...]:
    return kept_fields(job.optimizer, job.state_fields, whole=whole)

"""The page update by `switch_emu/native/arithmetic.c`, without Python's lock.

Only addresses are made here; `updates.py` rounds the hyper-parameters of a run.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.address import address_of
from luwu.base.dtypes import DTYPES
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.wire.stored import NEVER_NEGATIVE, average_rate, keeps_average
from switch_emu.native.fold import Fold, Pointer, sources
from switch_emu.node.kernels.interface import (
    Contributions,
    UpdateCall,
    UpdateKernel,
    check_cast,
    check_fold,
    check_update,
)
from switch_emu.node.kernels.narrow import STORED_CODES
from switch_emu.node.kernels.updates import UNCHANGED, Compiled, lerp_weight

_NO_OPTIMIZER = 0
_NO_WIRE = -1


def _members(*rows: tuple[Any, str]) -> list[tuple[str, Any]]:
    """The members of a structure, in the order of the source: their type, and their names."""
    return [(name, kind) for kind, names in rows for name in names.split()]


class _Run(ctypes.Structure):
    """`run_t` of the source."""

    _fields_ = _members(
        (ctypes.c_int64, "start stop"),
        (ctypes.c_int32, "flags average_from_weights"),
        (ctypes.c_float, "weight_decay momentum dampening beta2 correction eps step_size average"),
        (ctypes.c_uint64, "key"),
        (ctypes.c_int64, "block"),
    )


class _Field(ctypes.Structure):
    """`field_t` of the source."""

    _fields_ = _members(
        (Pointer, "read written scales scales_out"),
        (ctypes.c_int32, "form tensor is_unsigned"),
        (ctypes.c_int64, "stride stride_out"),
    )


class _Update(ctypes.Structure):
    """`update_t` of the source."""

    _fields_ = _members(
        (ctypes.c_int64, "elems page_elems"),
        (ctypes.c_int32, "optimizer contributions_count"),
        (Pointer, "contributions dtypes"),
        (_Field, "weights state0 state1 average"),
        (Pointer, "runs squares wire"),
        (ctypes.c_int32, "wire_dtype"),
        (ctypes.c_float, "divisor scale"),
        (ctypes.c_int32, "in_place"),
    )


class CompiledKernel(UpdateKernel):
    """One optimizer of a loaded library; see the module."""

    version = "compiled"

    def __init__(
        self, library: ctypes.CDLL, name: str, compiled: Compiled, state_fields: tuple[str, ...]
    ) -> None:
        self.name, self.state_fields = name, state_fields
        self._compiled = compiled
        self._averages = keeps_average(state_fields)
        self._is_unsigned = [name in NEVER_NEGATIVE for name in ("", *state_fields)]
        self._fold = Fold(library)
        self._update = library.luwu_update
        self._update.argtypes, self._update.restype = (Pointer,), None

    def fold(
        self, contributions: Contributions, before: F32Array | None, out: F32Array
    ) -> tuple[float, ...]:
        check_fold(contributions, before, out)
        squares = np.empty(-(-out.size // NORM_BLOCK_ELEMS), np.float64)
        self._fold(contributions, before, out, squares)
        return tuple(squares.tolist())

    def update(self, call: UpdateCall) -> tuple[float, ...]:
        in_place = check_update(self, call)
        runs, wire, measure = call.runs, call.wire, call.measure
        weights = call.old.weights
        pointers, dtypes = sources(call.contributions)
        said = (_Run * len(runs))()
        if self._compiled.number != _NO_OPTIMIZER:
            for place, run in zip(said, runs, strict=True):
                place.start, place.stop = run.start, run.stop
                if run.hyper is None:
                    place.flags = UNCHANGED
                else:
                    self._compiled.prepare(place, run.hyper, run.updates_count)
                    if run.draw is not None:
                        place.key, place.block = run.draw
                    if self._averages:
                        rate = average_rate(run.hyper, run.updates_count)
                        place.average, place.average_from_weights = lerp_weight(rate)
        count = -(-weights.size // NORM_BLOCK_ELEMS) if measure else 0
        squares = np.empty(count, np.float64)
        native = _Update(
            weights.size, weights.shape[-1], self._compiled.number, len(call.contributions),
            ctypes.addressof(pointers), ctypes.addressof(dtypes), *self._fields(call),
            ctypes.addressof(said),
            squares.ctypes.data if measure else None,
            None if wire is None else address_of(wire[0]),
            _NO_WIRE if wire is None else DTYPES[wire[1]].number, call.divisor, call.scale,
            in_place,
        )  # fmt: skip
        self._update(ctypes.addressof(native))
        return tuple(squares.tolist())

    def _fields(self, call: UpdateCall) -> list[_Field]:
        """Weights, two arrays of state, and the average, which may be missing."""
        rows = zip(call.old.pairs, call.new.pairs, strict=True)
        fields = [
            _Field(
                read.ctypes.data, written.ctypes.data,
                None if scale is None else scale.ctypes.data,
                None if scale_out is None else scale_out.ctypes.data,
                STORED_CODES[read.dtype], tensor, self._is_unsigned[tensor],
                read.strides[0], written.strides[0],
            )
            for tensor, ((read, scale), (written, scale_out)) in enumerate(rows)
        ]  # fmt: skip
        average = [fields.pop()] if self._averages else [_Field()]
        return fields + [_Field()] * (3 - len(fields)) + average

    def cast(self, weights: F32Array, dtype: str, into: memoryview) -> None:
        """See UpdateKernel. An update in place by no optimizer, with nothing measured."""
        check_cast(weights, dtype, into)
        at = weights.ctypes.data
        native = _Update(
            elems=weights.size, page_elems=weights.size, optimizer=_NO_OPTIMIZER,
            weights=_Field(at, at), wire=address_of(into), wire_dtype=DTYPES[dtype].number,
            divisor=1.0, scale=1.0, in_place=True,
        )  # fmt: skip
        self._update(ctypes.addressof(native))

    def enter_thread(self) -> None:
        """See UpdateKernel: the library keeps nothing for a thread."""

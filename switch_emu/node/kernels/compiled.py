"""The page update by `switch_emu/native/arithmetic.c`, without Python's lock.

Only addresses are made here; `updates.py` rounds the hyper-parameters of a run.
"""

from __future__ import annotations

import ctypes

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


class _Run(ctypes.Structure):
    """`run_t` of the source."""

    _fields_ = (
        ("start", ctypes.c_int64),
        ("stop", ctypes.c_int64),
        ("flags", ctypes.c_int32),
        ("average_from_weights", ctypes.c_int32),
        ("weight_decay", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("dampening", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("correction", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("step_size", ctypes.c_float),
        ("average", ctypes.c_float),
        ("key", ctypes.c_uint64),
        ("block", ctypes.c_int64),
    )


class _Field(ctypes.Structure):
    """`field_t` of the source."""

    _fields_ = (
        ("read", Pointer),
        ("written", Pointer),
        ("scales", Pointer),
        ("scales_out", Pointer),
        ("form", ctypes.c_int32),
        ("tensor", ctypes.c_int32),
        ("is_unsigned", ctypes.c_int32),
    )


class _Update(ctypes.Structure):
    """`update_t` of the source."""

    _fields_ = (
        ("elems", ctypes.c_int64),
        ("page_elems", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("stride_out", ctypes.c_int64),
        ("optimizer", ctypes.c_int32),
        ("contributions_count", ctypes.c_int32),
        ("contributions", Pointer),
        ("dtypes", Pointer),
        ("weights", _Field),
        ("state0", _Field),
        ("state1", _Field),
        ("average", Pointer),
        ("average_out", Pointer),
        ("runs", Pointer),
        ("squares", Pointer),
        ("wire", Pointer),
        ("wire_dtype", ctypes.c_int32),
        ("divisor", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("in_place", ctypes.c_int32),
        ("pieces_count", ctypes.c_int64),
        ("pieces", Pointer),
        ("piece_squares", Pointer),
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
        runs, pieces, wire, measure = call.runs, call.pieces, call.wire, call.measure
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
        count = -(-call.weights.size // NORM_BLOCK_ELEMS) if measure else 0
        squares = np.empty(count, np.float64)
        fields = self._fields(call)
        average = call.state[-1] if self._averages else None
        native = _Update(
            call.weights.size, call.weights.shape[-1], call.weights.strides[0],
            call.weights_out.strides[0], self._compiled.number, len(call.contributions),
            ctypes.addressof(pointers), ctypes.addressof(dtypes), *fields,
            None if average is None else average.ctypes.data,
            None if average is None else call.state_out[-1].ctypes.data,
            ctypes.addressof(said),
            squares.ctypes.data if measure else None,
            None if wire is None else address_of(wire[0]),
            _NO_WIRE if wire is None else DTYPES[wire[1]].number, call.divisor, call.scale,
            in_place,
            0 if pieces is None else len(pieces.borders),
            None if pieces is None else pieces.borders.ctypes.data,
            None if pieces is None else pieces.squares.ctypes.data,
        )  # fmt: skip
        self._update(ctypes.addressof(native))
        return tuple(squares.tolist())

    def _fields(self, call: UpdateCall) -> list[_Field]:
        """Weights and two arrays of state, which may be missing."""
        read = call.read
        count = len(read) - self._averages
        none = (None,) * len(read)
        scales, scales_out = (None, *call.scales), (None, *call.scales_out)
        rows = zip(
            read[:count], call.written[:count],
            scales if call.scales else none, scales_out if call.scales_out else none, strict=False,
        )  # fmt: skip
        fields = [
            _Field(
                old.ctypes.data, new.ctypes.data,
                None if scale is None else scale.ctypes.data,
                None if scale_out is None else scale_out.ctypes.data,
                STORED_CODES[old.dtype], tensor, self._is_unsigned[tensor],
            )
            for tensor, (old, new, scale, scale_out) in enumerate(rows)
        ]  # fmt: skip
        return fields + [_Field()] * (3 - count)

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

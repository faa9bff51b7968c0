"""The page update by `switch_emu/native/arithmetic.c`, without Python's lock.

Only addresses and rounded hyper-parameters are made here. They are rounded as torch rounds them:
computed in float64 with the C library's `pow`, then cast.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from luwu.aggregate.sum_in_order import F32Array
from luwu.base.address import address_of, address_of_array
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.wire.averages import average_rate, keeps_average, without_average
from luwu.wire.hyper import Number
from luwu.wire.stored import NEVER_NEGATIVE
from switch_emu.native.fold import DTYPES, Fold, Pointer, sources
from switch_emu.node.kernels.interface import (
    NO_OPTIMIZER,
    Contributions,
    UpdateCall,
    UpdateKernel,
    check_cast,
    check_fold,
    check_update,
)

_NO_WIRE = -1
_FORMS: Final = {"f": 0, "H": 1, "b": 3, "B": 4}
"""How the library calls the types of `narrow.Stored`, by their character in numpy."""
_OPTIMIZERS = {
    ("none", ()): 0,
    ("adam", ("m", "v")): 1,
    ("adamw", ("m", "v")): 1,
    ("sgd", ()): 2,
    ("sgd", ("momentum",)): 3,
    ("lion", ("m",)): 4,
}
COMPILED: Final = _OPTIMIZERS.keys()
"""(optimizer, its own state fields) that the library knows."""

_MAXIMIZE, _DECAY, _NESTEROV, _FIRST, _LERP_FROM_GRAD, _NO_MOMENTUM = 1, 2, 4, 8, 16, 32
_COUPLED, _MOMENTUM_FROM_GRAD, _UNCHANGED = 64, 128, 256


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
        self, library: ctypes.CDLL, name: str, optimizer: str, state_fields: tuple[str, ...]
    ) -> None:
        self.name, self.state_fields = name, state_fields
        self._optimizer = _OPTIMIZERS[(optimizer, without_average(state_fields))]
        self._averages = keeps_average(state_fields)
        self._is_unsigned = [name in NEVER_NEGATIVE for name in ("", *state_fields)]
        self._make_run = _MAKE_RUN.get(optimizer, _sgd_run)
        self._fold = Fold(library)
        self._update = library.luwu_update
        self._update.argtypes, self._update.restype = (Pointer,), None

    def fold(
        self, contributions: Contributions, before: F32Array | None, out: F32Array
    ) -> tuple[float, ...]:
        """See UpdateKernel."""
        check_fold(contributions, before, out)
        squares = np.empty(-(-out.size // NORM_BLOCK_ELEMS), np.float64)
        self._fold(contributions, before, out, squares)
        return tuple(squares.tolist())

    def update(self, call: UpdateCall) -> tuple[float, ...]:
        """See UpdateKernel."""
        in_place = check_update(self, call)
        runs, pieces, wire, measure = call.runs, call.pieces, call.wire, call.measure
        pointers, dtypes = sources(call.contributions)
        said = (_Run * len(runs))()
        if self._optimizer:
            for place, run in zip(said, runs, strict=True):
                place.start, place.stop = run.start, run.stop
                if run.hyper is None:
                    place.flags = _UNCHANGED
                else:
                    self._make_run(place, run.hyper, run.updates_count)
                    if run.draw is not None:
                        place.key, place.block = run.draw
                    if self._averages:
                        rate = average_rate(run.hyper, run.updates_count)
                        place.average, place.average_from_weights = _lerp(rate)
        count = -(-call.weights.size // NORM_BLOCK_ELEMS) if measure else 0
        squares = np.empty(count, np.float64)
        fields = self._fields(call)
        average = call.state[-1] if self._averages else None
        native = _Update(
            call.weights.size, call.weights.shape[-1], call.weights.strides[0],
            call.weights_out.strides[0], self._optimizer, len(call.contributions),
            ctypes.addressof(pointers), ctypes.addressof(dtypes), *fields,
            None if average is None else address_of_array(average),
            None if average is None else address_of_array(call.state_out[-1]),
            ctypes.addressof(said),
            address_of_array(squares) if measure else None,
            None if wire is None else address_of(wire[0]),
            _NO_WIRE if wire is None else DTYPES[wire[1]], call.divisor, call.scale, in_place,
            0 if pieces is None else len(pieces.borders),
            None if pieces is None else address_of_array(pieces.borders),
            None if pieces is None else address_of_array(pieces.squares),
        )  # fmt: skip
        self._update(ctypes.addressof(native))
        return tuple(squares.tolist())

    def _fields(self, call: UpdateCall) -> list[_Field]:
        """Weights and two arrays of state, which may be missing."""
        count = len(call.read) - self._averages
        none = (None,) * len(call.read)
        scales, scales_out = (None, *call.scales), (None, *call.scales_out)
        rows = zip(
            call.read[:count], call.written[:count],
            scales if call.scales else none, scales_out if call.scales_out else none, strict=False,
        )  # fmt: skip
        fields = [
            _Field(
                address_of_array(old), address_of_array(new),
                None if scale is None else address_of_array(scale),
                None if scale_out is None else address_of_array(scale_out),
                _FORMS[old.dtype.char], tensor, self._is_unsigned[tensor],
            )
            for tensor, (old, new, scale, scale_out) in enumerate(rows)
        ]  # fmt: skip
        return fields + [_Field()] * (3 - count)

    def cast(self, weights: F32Array, dtype: str, into: memoryview) -> None:
        """See UpdateKernel. An update in place by no optimizer, with nothing measured."""
        check_cast(weights, dtype, into)
        at = address_of_array(weights)
        native = _Update(
            elems=weights.size, page_elems=weights.size, optimizer=_OPTIMIZERS[NO_OPTIMIZER, ()],
            weights=_Field(at, at), wire=address_of(into), wire_dtype=DTYPES[dtype],
            divisor=1.0, scale=1.0, in_place=True,
        )  # fmt: skip
        self._update(ctypes.addressof(native))

    def enter_thread(self) -> None:
        """See UpdateKernel: the library keeps nothing for a thread."""


def _adam_run(place: _Run, hyper: Mapping[str, Number], updates_count: int) -> None:
    lr, decay = float(hyper["lr"]), float(hyper["weight_decay"])
    beta1, beta2 = float(hyper["beta1"]), float(hyper["beta2"])
    step = float(np.float32(updates_count + 1))  # torch counts steps in float32
    lerp, is_from_grad = _lerp(1 - beta1)
    is_coupled = not hyper.get("decoupled_weight_decay", True)
    flags = _MAXIMIZE * bool(hyper["maximize"])
    flags |= (_COUPLED if is_coupled else _DECAY) * (decay != 0)
    flags |= _LERP_FROM_GRAD * is_from_grad
    with np.errstate(all="ignore"):  # a bad beta gives NaN weights, as in torch
        step_size = np.float64(lr) / (1 - _power(beta1, step))
        correction = np.sqrt(np.float64(1 - _power(beta2, step)))
    place.flags = flags
    place.weight_decay = decay if is_coupled else 1 - lr * decay
    place.momentum = lerp
    place.dampening, place.beta2, place.eps = 1 - beta2, beta2, float(hyper["eps"])
    place.correction, place.step_size = correction, -step_size


def _lion_run(place: _Run, hyper: Mapping[str, Number], updates_count: int) -> None:
    lr, decay = float(hyper["lr"]), float(hyper["weight_decay"])
    direction, is_direction_from_grad = _lerp(1 - float(hyper["beta1"]))
    momentum, is_momentum_from_grad = _lerp(1 - float(hyper["beta2"]))
    flags = _MAXIMIZE * bool(hyper["maximize"]) | _DECAY * (decay != 0)
    flags |= _LERP_FROM_GRAD * is_direction_from_grad | _MOMENTUM_FROM_GRAD * is_momentum_from_grad
    place.flags = flags
    place.weight_decay, place.step_size = 1 - lr * decay, -lr
    place.momentum, place.beta2 = direction, momentum


def _lerp(rate: float) -> tuple[np.float32, bool]:
    """(weight, whether it starts at the end) of torch's lerp from an average to what is new."""
    weight = np.float32(rate)
    is_from_end = bool(abs(weight) >= 0.5)
    return (weight - np.float32(1) if is_from_end else weight), is_from_end


def _sgd_run(place: _Run, hyper: Mapping[str, Number], updates_count: int) -> None:
    momentum, decay = float(hyper["momentum"]), float(hyper["weight_decay"])
    flags = _MAXIMIZE * bool(hyper["maximize"]) | _DECAY * (decay != 0)
    flags |= _NESTEROV * bool(hyper["nesterov"]) | _FIRST * (updates_count == 0)
    flags |= _NO_MOMENTUM * (momentum == 0)
    place.flags = flags
    place.weight_decay, place.momentum = decay, momentum
    place.dampening, place.step_size = 1 - float(hyper["dampening"]), -float(hyper["lr"])


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except (OverflowError, ValueError):  # where C gives infinity or NaN
        return math.inf if abs(base) > 1 else math.nan


_MAKE_RUN = {"adam": _adam_run, "adamw": _adam_run, "lion": _lion_run}

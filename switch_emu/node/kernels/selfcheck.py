"""Does a compiled kernel give the bits of the portable one, on this machine and this torch?

A few thousand elements in every dtype, from denormal to huge, in place and out of place. Done
once before a kernel touches a page: torch may change its arithmetic, and a compiler may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES
from luwu.wire.hyper import Number
from luwu.wire.stored import BLOCK_ELEMS, NEVER_NEGATIVE, field_dtype
from switch_emu.node.kernels.interface import Arrays, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.narrow import Draw, Stored, draw_key, narrow, widen
from switch_emu.node.kernels.updates import NO_OPTIMIZER, Hyper

ELEMS = 4096 + 192

_AVERAGES: tuple[dict[str, Number], ...] = (
    {"average_decay": 0.999}, {"average_start": 1, "average_every": 1},
)  # fmt: skip


_FORMS = (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "int8"))
"""(masters, moments) that are compared."""


def difference(
    found: UpdateKernel, expected: UpdateKernel, checks: Sequence[Hyper]
) -> str | None:  # fmt: skip
    """The first difference of the two kernels, with the hyper-parameters of one run and another;
    None if every bit is the same."""
    for master, state in _FORMS if expected.name != NO_OPTIMIZER else _FORMS[:1]:
        wrong = _difference(found, expected, checks, master, state)
        if wrong is not None:
            return wrong if (master, state) == _FORMS[0] else f"{wrong}, {master} and {state}"
    return None


def _difference(
    found: UpdateKernel, expected: UpdateKernel, checks: Sequence[Hyper], master: str, state: str
) -> str | None:
    fields = expected.state_fields
    values = _values(4 + len(fields))
    hypers = [{**of, **average} for of, average in zip(checks, _AVERAGES, strict=True)]
    for array in values[2 : 1 + len(fields)]:
        np.abs(array, out=array)  # v is never negative
    kept = [_stored(values[: 1 + len(fields)], fields, master, state) for _ in range(2)]
    for updates, (dtypes, wire, divisor, in_place) in enumerate(_CASES):
        contributions = [
            (_cast(expected, values[-1 - index % 3], dtype), dtype)
            for index, dtype in enumerate(dtypes)
        ]
        results = []
        for number, (kernel, old) in enumerate(zip((found, expected), kept, strict=True)):
            new = old if in_place else _empty(old)
            octets = np.zeros(ELEMS * DTYPES[wire].nbytes, np.uint8)
            squares = kernel.update(
                UpdateCall(
                    contributions=contributions,
                    old=old,
                    new=new,
                    runs=[
                        _run(0, 2048 + 64, hypers[0], updates),
                        Run(start=2048 + 64, stop=4096 - 128, hyper=None),
                        _run(4096 - 128, ELEMS, hypers[1], updates),
                    ],
                    divisor=divisor,
                    scale=1.0 if in_place else 0.7,
                    wire=(octets.data, wire),
                    measure=True,
                )
            )
            weights = np.empty(ELEMS, np.float32)
            widen(new.weights, None, weights)
            cast = np.frombuffer(_cast(kernel, weights, wire), np.uint8)
            total = np.empty(ELEMS, np.float32)
            folded = kernel.fold(contributions, weights, total)
            kept[number] = new
            scales = [scale for scale in new.scales if scale is not None]
            sums = (np.array(squares), total, np.array(folded))
            results.append((*new.all, octets, cast, *sums, *scales))
        names = (
            "weights", *fields, "wire", "cast", "squares", "fold", "folded squares",
            *(f"scales {index}" for index in range(len(results[0]))),
        )  # fmt: skip
        for name, left, right in zip(names, *results, strict=False):
            count = int((left.view(np.uint8) != right.view(np.uint8)).sum())
            if count:
                return f"{name} differ in {count} bytes ({'+'.join(dtypes)}, update {updates + 1})"
    return None


def _stored(values: Sequence[F32Array], fields: Sequence[str], master: str, state: str) -> Arrays:
    arrays: list[Stored] = []
    scales: list[F32Array | None] = []
    for name, each in zip(("", *fields), values, strict=True):
        dtype = field_dtype(name, state) if name else master
        array, scale = np.empty(each.size, DTYPES[dtype].numpy), None
        if array.itemsize == 1:
            scale = np.empty(each.size // BLOCK_ELEMS, np.float32)
        narrow(each, array, scale, None, is_unsigned=name in NEVER_NEGATIVE)
        arrays.append(array)
        scales.append(scale)
    return Arrays(arrays[0], tuple(arrays[1:]), tuple(scales[1:]))


def _empty(like: Arrays) -> Arrays:
    weights, *state = map(np.zeros_like, like.all)
    scales = (None if scale is None else np.zeros_like(scale) for scale in like.scales)
    return Arrays(weights, tuple(state), tuple(scales))


def _run(start: int, stop: int, hyper: Mapping[str, Number], updates: int) -> Run:
    draw = Draw(draw_key(updates, 3), start)
    return Run(start=start, stop=stop, hyper=hyper, updates_count=updates, draw=draw)


_CASES = (
    (("float32",), "bfloat16", 1.0, True),
    (("bfloat16", "bfloat16", "float16"), "float16", 3.0, False),
    (("float16", "float32", "float32", "float32", "float32"), "float32", 4.0, True),
    (("bfloat16",) * 4, "bfloat16", 7.3, False),
)


def _values(count: int) -> list[F32Array]:
    rng = np.random.default_rng(20240902)
    found = []
    for _ in range(count):
        size = np.exp2(rng.uniform(-30, 6, ELEMS))
        values = (rng.standard_normal(ELEMS) * size).astype(np.float32)
        values[::97] = 0
        values[1::101] = rng.standard_normal(values[1::101].size) * 1e-41
        found.append(values)
    return found


def _cast(kernel: UpdateKernel, values: F32Array, dtype: str) -> memoryview:
    octets = np.empty(ELEMS * DTYPES[dtype].nbytes, np.uint8)
    kernel.cast(values, dtype, octets.data)
    return octets.data

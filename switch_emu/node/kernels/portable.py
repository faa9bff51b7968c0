"""The page update with torch's fused CPU kernels, in blocks of one page.

The reference: `compiled.py` promises the bits of this module. It needs several passes over a block
and some twenty calls, each of which hands the interpreter's lock on, so blocks are large enough for
the calls not to count, though they leave the second-level cache (design note 0008).

torch divides no call among threads for blocks of this size unless its caller lets it: pages are the
unit of parallel work, so a caller sets one torch thread for each of its own.

Muon (Jordan et al. 2024) updates a matrix as a whole: a momentum whose singular values are all made
about 1.

    m = lerp(m, grad, 1 - momentum);  u = lerp(grad, m, momentum) if nesterov, else m
    weights = weights (1 - lr weight_decay) - lr adjusted orthogonal(u)

as `torch.optim.Muon`, whose Newton-Schulz iteration computes in bfloat16, in an order that depends
on machine and threads. Here it computes in float32, and each sum has one order
(`switch_emu.native.fold`), so that a matrix has the same bits on every node.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.wire.hyper import Number
from luwu.wire.stored import NEVER_NEGATIVE, average_rate, keeps_average
from switch_emu.native.fold import CELL_ELEMS
from switch_emu.node.kernels.interface import (
    Contributions,
    Run,
    Scaled,
    UpdateCall,
    UpdateKernel,
    check_cast,
    check_fold,
    check_update,
)
from switch_emu.node.kernels.narrow import draws, narrow, widen
from switch_emu.node.kernels.updates import Step

BLOCK_ELEMS = 256 * 1024
"""Elements worked on at a time; a multiple of NORM_BLOCK_ELEMS."""

BLOCK_COLUMNS = 256
"""Columns of a product that are made at a time, where it takes the place of a factor."""

LANES = 256
"""Partial sums of a block's squares."""


class PortableKernel(UpdateKernel):
    """Blocks of torch's fused kernels; see the module."""

    version = "portable"

    def __init__(
        self, name: str, state_fields: tuple[str, ...], step: Step | None, *, whole: bool = False
    ) -> None:
        """`whole`: a page is one parameter, which the step sees in its shape; then `update` is
        called by one thread at a time."""
        self.name, self.state_fields, self.step = name, state_fields, step
        self._is_whole = whole
        self._averages = keeps_average(state_fields)
        self._scratch: Any = SimpleNamespace() if whole else threading.local()

    def fold(
        self, contributions: Contributions, before: F32Array | None, out: F32Array
    ) -> tuple[float, ...]:
        check_fold(contributions, before, out)
        work = self._work(out.size)
        lanes = work.lanes(out.size)
        with torch.no_grad():
            sources = [_source(payload, dtype) for payload, dtype in contributions]
            earlier = None if before is None else _tensor(before)
            target = _tensor(out)
            for block in _blocks(0, out.size):
                part = target[block]
                work.sum_into(part if earlier is None else work.total(block), sources, block)
                if earlier is not None:
                    torch.add(earlier[block], work.total(block), out=part)
                work.square(part, lanes, block)
        return _tree(lanes)

    def update(self, call: UpdateCall) -> tuple[float, ...]:
        in_place = check_update(self, call)
        elems, wire, measure = call.old.weights.size, call.wire, call.measure
        work = self._work(elems)
        lanes = work.lanes(elems if measure else 0)
        with torch.no_grad():
            sources = [_source(payload, dtype) for payload, dtype in call.contributions]
            target = None if wire is None else _target(*wire)
            page_elems = call.old.weights.shape[-1]
            for index, start in enumerate(range(0, elems, page_elems)):
                page = _Page.of(call, index, start, in_place=in_place)
                size = page_elems if self._is_whole else BLOCK_ELEMS
                for block in _blocks(start, start + page_elems, size):
                    self._update_block(call, page, block, work, sources, lanes, target)
        if wire is not None and target is not None:
            _deliver(target, wire[0])
        return _tree(lanes) if measure else ()

    def _update_block(
        self, call: UpdateCall, page: _Page, block: slice, work: _Work, sources: Sequence[Any],
        lanes: np.ndarray, target: Any,
    ) -> None:  # fmt: skip
        here = slice(block.start - page.start, block.stop - page.start)
        tensors = tuple(
            _tensor(array[here] if array.dtype == np.float32 else page.widened(tensor, here))
            for tensor, (array, _) in enumerate(page.written)
        )
        total = work.sum_of(sources, block)
        if call.measure:
            work.square(total, lanes, block)
        if self.step is not None:
            total = work.mean(total, call.divisor, call.scale)
        if not page.in_place:
            page.copy(here)
        self._run(page, tensors, total, block, call)
        if target is not None:
            target[block].copy_(tensors[0])

    def _run(
        self, page: _Page, tensors: tuple[Any, ...], mean: Any, block: slice, call: UpdateCall
    ) -> None:
        """Update a block of a page: its tensors, and its mean gradient."""
        if self.step is None:
            return
        for run in call.runs:
            start, stop = max(run.start, block.start), min(run.stop, block.stop)
            if start >= stop or run.hyper is None:
                continue
            cut = slice(start - block.start, stop - block.start)
            weights, *state = (tensor[cut] for tensor in tensors)
            average = state.pop() if self._averages else None
            seen = (weights, mean[cut], *state)
            if self._is_whole:  # without the padding
                assert call.shape is not None
                seen = tuple(each[: math.prod(call.shape)].view(call.shape) for each in seen)
            self.step(seen[0], seen[1], seen[2:], run.updates_count, run.hyper)
            for tensor, name in enumerate(("", *self.state_fields)):
                if page.written[tensor][0].dtype != np.float32:
                    is_unsigned = name in NEVER_NEGATIVE
                    for part in _blocks(0, stop - start):
                        values = tensors[tensor][cut][part].numpy()
                        page.store(tensor, values, run, start + part.start, is_unsigned=is_unsigned)
            if average is not None:
                average.lerp_(weights, average_rate(run.hyper, run.updates_count))

    def cast(self, weights: F32Array, dtype: str, into: memoryview) -> None:
        check_cast(weights, dtype, into)
        target = _target(into, dtype)
        target.copy_(_tensor(weights))
        _deliver(target, into)

    def enter_thread(self) -> None:
        """See UpdateKernel: pages are the unit of parallel work."""
        torch.set_num_threads(1)

    def _work(self, elems: int) -> _Work:
        found: _Work | None = getattr(self._scratch, "work", None)
        needed = elems if self._is_whole else min(elems, BLOCK_ELEMS)
        if found is None or found.elems < needed:
            found = self._scratch.work = _Work(needed)
        return found


class _Page(NamedTuple):
    """Arrays of one page, each [C]; scales [C / 64]."""

    start: int
    """Its first element, counted from the first page."""
    read: Sequence[Scaled]
    written: Sequence[Scaled]
    in_place: bool

    @classmethod
    def of(cls, call: UpdateCall, index: int, start: int, *, in_place: bool) -> _Page:
        """That page of a call."""

        def row(array: Any) -> Any:
            return None if array is None else np.atleast_2d(array)[index]

        read, written = (
            [(row(array), row(scale)) for array, scale in arrays.pairs]
            for arrays in (call.old, call.new)
        )
        return cls(start, read, written, in_place)

    def copy(self, here: slice) -> None:
        """Some elements, as they are stored."""
        cells = _cells(here)
        for (old, scale), (new, scale_out) in zip(self.read, self.written, strict=True):
            np.copyto(new[here], old[here])
            if scale is not None and scale_out is not None:
                np.copyto(scale_out[cells], scale[cells])

    def widened(self, tensor: int, here: slice) -> F32Array:
        """The values of some elements of what is not stored in float32."""
        values = np.empty(here.stop - here.start, np.float32)
        stored, scale = self.read[tensor]
        widen(stored[here], None if scale is None else scale[_cells(here)], values)
        return values

    def store(
        self, tensor: int, values: F32Array, run: Run, start: int, *, is_unsigned: bool
    ) -> None:
        """Store new values of elements of a run, from `start` on. Weights become what is stored."""
        assert run.draw is not None
        here = slice(start - self.start, start - self.start + len(values))
        blocks = _cells(slice(start - run.start, start - run.start + len(values)))
        drawn = draws(run.draw, tensor, range(blocks.start, blocks.stop))
        into, scale = self.written[tensor]
        scales = None if scale is None else scale[_cells(here)]
        narrow(values, into[here], scales, drawn, is_unsigned=is_unsigned)
        if tensor == 0:
            widen(into[here], None, values)


def _cells(elems: slice) -> slice:
    return slice(elems.start // CELL_ELEMS, elems.stop // CELL_ELEMS)


class _Work:
    """Working memory of one thread: a block of sums, of widened elements and of squares."""

    def __init__(self, elems: int) -> None:
        """For blocks of up to so many elements."""
        self.elems = elems
        whole = -(-min(elems, BLOCK_ELEMS) // NORM_BLOCK_ELEMS) * NORM_BLOCK_ELEMS
        self._total = torch.empty(elems)
        self._wide = torch.empty(elems)
        self._doubles = torch.empty(whole, dtype=torch.float64)
        self._lanes = np.empty((0, LANES))

    def lanes(self, elems: int) -> np.ndarray:
        """Room for the lanes of a page's blocks; kept, for fresh memory costs page faults."""
        count = -(-elems // NORM_BLOCK_ELEMS)
        if len(self._lanes) < count:
            self._lanes = np.empty((count, LANES))
        return self._lanes[:count]

    def total(self, block: slice) -> Any:
        """Room for the sum of a block."""
        return self._total[: block.stop - block.start]

    def sum_of(self, sources: Sequence[Any], block: slice) -> Any:
        """The sum of a block; a single float32 contribution is not copied."""
        if len(sources) == 1 and sources[0].dtype == torch.float32:
            return sources[0][block]
        total = self.total(block)
        self.sum_into(total, sources, block)
        return total

    def sum_into(self, total: Any, sources: Sequence[Any], block: slice) -> None:
        """Write source 0 + source 1 + ... of a block, from left to right."""
        first, *others = (source[block] for source in sources)
        if others and first.dtype == others[0].dtype == torch.float32:
            torch.add(first, others.pop(0), out=total)
        else:
            total.copy_(first)
        for values in others:
            if values.dtype != torch.float32:
                wide = self._wide[: len(total)]
                wide.copy_(values)
                total.add_(wide)
            else:
                total.add_(values)

    def mean(self, total: Any, divisor: float, scale: float) -> Any:
        """Divided and clipped, in room of its own."""
        room = self._total[: len(total)]
        if np.float32(divisor) != 1:
            mantissa, exponent = math.frexp(float(np.float32(divisor)))
            if mantissa == 0.5 and abs(exponent) < 100:  # the same bits as a division
                total = torch.mul(total, 1 / divisor, out=room)
            else:
                total = torch.div(total, float(np.float32(divisor)), out=room)
        if scale < 1.0:
            total = torch.mul(total, float(np.float32(scale)), out=room)
        return total

    def square(self, total: Any, lanes: np.ndarray, block: slice) -> None:
        """Add the squares of a block into its rows of `lanes`."""
        for part in _blocks(block.start, block.stop):
            values = total[part.start - block.start : part.stop - block.start]
            rows = slice(part.start // NORM_BLOCK_ELEMS, -(-part.stop // NORM_BLOCK_ELEMS))
            count = rows.stop - rows.start
            doubles = self._doubles[: count * NORM_BLOCK_ELEMS]
            doubles[: len(values)].copy_(values)
            doubles[len(values) :].zero_()
            parts = doubles.numpy().reshape(count, -1, LANES)
            np.einsum("brl,brl->bl", parts, parts, out=lanes[rows])


def _tree(lanes: np.ndarray) -> tuple[float, ...]:
    """Add the lanes of each block: the upper half to the lower half, until one is left."""
    half = LANES // 2
    while half:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    return tuple(lanes[:, 0].tolist())


def _blocks(first: int, end: int, size: int = BLOCK_ELEMS) -> Iterator[slice]:
    for start in range(first, end, size):
        yield slice(start, min(start + size, end))


class _Memory:
    """Memory of another object for numpy: torch warns of arrays that must not be written."""

    def __init__(self, octets: np.ndarray) -> None:
        self.octets = octets
        self.__array_interface__ = {
            "data": (octets.ctypes.data, False), "shape": octets.shape,
            "typestr": octets.dtype.str, "version": 3,
        }  # fmt: skip


def _tensor(array: np.ndarray) -> Any:
    """A tensor that shares an array's memory."""
    if not array.flags.writeable:
        array = np.asarray(_Memory(array))
    return torch.from_numpy(array)


def _source(payload: memoryview, dtype: str) -> Any:
    """A payload as a tensor; copied only if its elements are not aligned."""
    octets = np.frombuffer(payload, np.uint8)
    if octets.ctypes.data % DTYPES[dtype].nbytes:
        octets = octets.copy()
    return _tensor(octets).view(getattr(torch, dtype))


def _target(payload: memoryview, dtype: str) -> Any:
    """A tensor for the new weights: in the payload itself if its elements are aligned."""
    octets = np.frombuffer(payload, np.uint8)
    if octets.ctypes.data % DTYPES[dtype].nbytes:
        octets = np.empty_like(octets)
    return torch.from_numpy(octets).view(getattr(torch, dtype))


def _deliver(target: Any, payload: memoryview) -> None:
    octets = np.frombuffer(payload, np.uint8)
    if target.data_ptr() != octets.ctypes.data:
        np.copyto(octets, target.view(torch.uint8).numpy())


Product = Callable[..., F32Array]
"""(a, b, transposed=) -> their product; see `switch_emu.native.fold`."""


class Muon:
    """The update of one matrix; a `Step` of the portable kernel."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def __call__(
        self, weights: Any, grad: Any, state: tuple[Any, ...], updates: int,
        hyper: Mapping[str, Number],
    ) -> None:  # fmt: skip
        (m,) = state
        lr, momentum = float(hyper["lr"]), float(hyper["momentum"])
        m.lerp_(grad, 1 - momentum)
        direction = grad.lerp(m, momentum) if hyper["nesterov"] else m.clone()
        rows, columns = weights.shape
        if rows > columns:
            direction = direction.T.contiguous()
        self.orthogonalise(direction.numpy(), hyper)
        if rows > columns:
            direction = direction.T.contiguous()
        if hyper["match_rms_adamw"]:
            ratio = 0.2 * math.sqrt(max(rows, columns))
        else:
            ratio = math.sqrt(max(1, rows / columns))
        weights.mul_(1 - lr * float(hyper["weight_decay"]))
        weights.add_(direction, alpha=-lr * ratio)

    def orthogonalise(self, x: F32Array, hyper: Mapping[str, Number]) -> None:
        """Some steps of Newton-Schulz on a wide matrix over its norm, in its place."""
        a, b, c = (np.float32(hyper[f"ns_{name}"]) for name in "abc")
        x /= np.float32(max(_norm(x), float(hyper["eps"])))
        for _ in range(int(hyper["ns_steps"])):
            gram = self._product(x, x, transposed=True)
            # `gram` is symmetric, to the bit: both of its halves are summed in one order.
            update = self._product(gram, gram, transposed=False)
            update *= c
            gram *= b
            update += gram
            for columns in _blocks(0, x.shape[1], BLOCK_COLUMNS):  # each of `x` makes its own
                part = x[:, columns]
                made = self._product(update, np.ascontiguousarray(part), transposed=False)
                part *= a
                part += made


def _norm(values: F32Array) -> float:
    """Of all elements, summed in float64, in one order: lane j of 256 adds j, j + 256, ..."""
    flat = values.ravel()
    whole, lanes = flat.size // LANES * LANES, np.zeros(LANES)
    for block in _blocks(0, whole):
        rows = flat[:whole][block].reshape(-1, LANES)
        squares = np.empty((1 + len(rows), LANES))
        squares[0] = lanes
        np.square(rows, out=squares[1:], dtype=np.float64)
        lanes = np.add.reduce(squares, axis=0)
    rest = np.square(flat[whole:], dtype=np.float64)
    return math.sqrt(math.fsum(lanes) + math.fsum(rest))

"""What a simulated cluster trains, and the same training in one loop.

A worker's gradient depends on the weights it pulled, its rank, the step and the chunk, so any wrong
byte changes every later one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luwu.aggregate import Aggregator, make_aggregator
from luwu.base.retry import RetryPolicy
from luwu.base.tree import Place, Tree, one_switch, ranks_of
from luwu.layout import Layout, Parameter, StoredForm, Unit
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.norms import Clip, clip_factor, norms_of
from switch_emu.node.core.actions import NodeLimits
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolSize

JOB = 77
POISONER = 0
RETRY = RetryPolicy(first_ns=40_000_000, most_ns=320_000_000)
SMALL_SWITCH = SwitchLimits(push_window_bytes=100_000)
SMALL_NODE = NodeLimits(updates_max=2, reads_max=2, push_window_bytes=100_000)


def make_layout(
    *, units: int = 3, chunk_bytes: int = 16384, frozen: bool = True, optimizer_nodes: int = 1,
    rows: int = 70, extent_chunks: int = 1, sheets: bool = False,
) -> Layout:  # fmt: skip
    """A small model whose units have several chunks, ragged ends and a frozen parameter.

    `sheets`: each parameter is updated as a whole; those of more than 40 rows have two chunks.

    `rows` of 100 elements: 70 are one parameter, and two chunks of 16 KiB with the one behind it;
    more are cut into parameters of 70 rows: 260 are four, and seven chunks.
    """
    parameters: list[Parameter] = []
    members: list[Unit] = []
    for unit in range(units):
        first = len(parameters)
        cuts = [min(70, rows - start) for start in range(0, rows, 70)]
        shapes: list[tuple[tuple[int, ...], bool]] = [((cut, 100), True) for cut in cuts]
        shapes.append(((33,), True))
        if frozen and unit == 1:
            shapes.append(((50,), False))
        for index, (shape, trainable) in enumerate(shapes):
            name = f"unit{unit}.p{index}"
            form = StoredForm(whole=sheets)
            parameters.append(Parameter(name=name, shape=shape, trainable=trainable, form=form))
        members.append(Unit(name=f"unit{unit}", parameters=tuple(range(first, len(parameters)))))
    return Layout(
        parameters=tuple(parameters), units=tuple(members), chunk_bytes=chunk_bytes,
        optimizer_nodes=optimizer_nodes, extent_chunks=extent_chunks,
    )  # fmt: skip


def chunks_of(layout: Layout, extent: int, values: Any) -> dict[int, Any]:
    """What travelled as one extent, by chunk."""
    found, start = {}, 0
    for chunk in layout.extents[extent].chunks:
        stop = start + layout.chunks[chunk].elems
        found[chunk] = values[start:stop]
        start = stop
    assert start == values.size, f"extent {extent} has {start} elements, {values.size} came"
    return found


def gradient(weights: Any, rank: int, step: int, chunk: int, part: int, start: int = 0) -> Any:
    """What a rank computes: float32, and rounding differs with every order of addition.

    A process that was started again computes something else (`start`): else nothing would tell a
    step that holds what two starts of a rank pushed from one that holds each rank once.
    """
    phase = step * 7 + chunk + part + 31 * start
    wave = _wave(weights.size, rank, phase)
    result: Any = weights * np.float32(0.37) + wave * np.float32(1e-3 + rank)
    return result.astype(np.float32)


@functools.lru_cache(maxsize=4096)
def _wave(elems: int, rank: int, phase: int) -> Any:
    return np.sin(np.arange(elems, dtype=np.float32) * (1 + rank) + phase).astype(np.float32)


def initial(layout: Layout, chunk: int) -> Any:
    """Weights before step 0."""
    elems = layout.chunks[chunk].elems
    return np.cos(np.arange(elems, dtype=np.float32) + chunk).astype(np.float32)


def squares_of(total: Any) -> tuple[float, ...]:
    """Of the one block of a page."""
    doubles = total.astype(np.float64)
    return (float((doubles * doubles).sum()),)


def apply_update(
    weights: Any, momentum: Any, grad: Any, unchanged: Any, factor: float
) -> tuple[Any, Any]:
    """SGD with momentum, in numpy, with `grad` times `factor`; `unchanged` elements, a mask, keep
    their values."""
    made = (np.float32(0.9) * momentum + np.float32(factor) * grad).astype(np.float32)
    made = np.where(unchanged, momentum, made)
    moved = (weights - np.float32(0.1) * made).astype(np.float32)
    return np.where(unchanged, weights, moved), made


def mask_of(layout: Layout, chunk: int, segments: int) -> Any:
    """Which elements of a chunk belong to these segments, a bitmap; padding too, if all do."""
    found = tuple(layout.segments(chunk))
    if segments == (1 << len(found)) - 1:
        return np.ones(layout.chunks[chunk].elems, bool)
    mask = np.zeros(layout.chunks[chunk].elems, bool)
    for index, segment in enumerate(found):
        if segments >> index & 1:
            mask[segment.chunk_start : segment.chunk_start + segment.elems] = True
    return mask


def kept(rank: int, step: int) -> list[bytes]:
    """What a rank keeps beside the version that a step makes, in pieces."""
    return [f"{rank} {step} {piece}".encode() for piece in range(1 + rank % 2)]


@dataclass(frozen=True)
class Job:
    """What a simulated cluster does, and with what."""

    layout: Layout
    world_size: int = 3
    steps: int = 4
    update: str = "streaming"
    backwards: int = 1
    """Backward passes a step; more than one needs `at_step`."""
    poison_step: int | None = None
    """The step in which rank `POISONER` pushes a gradient that is not finite."""
    skip_step: int | None = None
    """The step that rank `POISONER` asks to leave out."""
    absent_unit: int | None = None
    """A unit for which rank 0 (odd steps: no rank) has a gradient."""
    absent_parameters: bool = False
    """For some parameters some ranks, or all, have no gradient in a backward."""
    idle: bool = False
    """The last of several ranks has samples in step 0 only: it asks for no weights after, and so
    may be ahead of the others."""
    evaluates: bool = False
    """The last rank computes with the weights of odd steps before its first backward."""
    switch_limits: SwitchLimits = SMALL_SWITCH
    node_limits: NodeLimits = SMALL_NODE
    retry: RetryPolicy = RETRY
    begins_early: bool = True
    """Begin is said before the first pull, when the initial weights may not be durable yet; a real
    worker says it as its backward begins."""
    pulls_ahead: bool = False
    """Ranks ask for weights of the next step before their gradient of this one is out, as a
    session does while a streaming backward ends (design note 0025)."""
    keeps: bool = False
    """Every rank keeps something beside each version."""
    max_grad_norm: float | None = None
    replicas: int = 1
    """Nodes that hold each page."""
    slot_count: int | None = None
    """Protocol fidelity with so many slots; None: functional."""
    any_order: bool = False
    """Ranks push their units in different orders."""
    aggregate: str = "float32"
    """Name of the aggregator."""
    prepare_ns: int = 0
    """How much longer than other work the flush of a step takes."""
    switches: Tree | None = None
    """None: one switch above all."""
    own_switch: bool = False
    """The node has a switch of its own, to which all workers are connected."""

    @property
    def tree(self) -> Tree:
        return self.switches or one_switch(self.world_size)

    @property
    def limits(self) -> SwitchLimits:
        """What the switch may hold, at the job's fidelity."""
        node = self.node_limits
        limits = replace(
            self.switch_limits, workers_min=node.workers_min, workers_max=node.workers_max
        )
        if self.slot_count is None:
            return replace(limits, extent_chunks=self.layout.extent_chunks)
        assert self.layout.extent_chunks == 1, "a fixed slot holds one chunk"
        slots = PoolSize(slot_count=self.slot_count, slot_bytes=self.layout.chunk_bytes)
        return replace(limits, slots=slots)

    @property
    def limits_of_node(self) -> NodeLimits:
        """What a node may hold."""
        assert self.aggregator.is_plain or self.layout.extent_chunks == 1
        return replace(self.node_limits, extent_chunks=self.layout.extent_chunks)

    @property
    def description(self) -> Description:
        described = Description(
            layout=self.layout, optimizer="test", state_fields=("momentum",), update=self.update
        )
        return described.aggregated_by(self.aggregate)

    @property
    def aggregator(self) -> Aggregator:
        return make_aggregator(self.aggregate, self.world_size)

    @property
    def hyper(self) -> bytes:
        measures = self.update == "at_step" and self.world_size % 2  # a norm of its own, at Commit
        clips = (Clip(math.inf, math.inf),) if measures else ()
        return encode_hyper(
            StepHyper(groups=(), keeps=self.keeps, clips=clips, max_grad_norm=self.max_grad_norm)
        )

    def is_left_out(self, step: int) -> bool:
        """Whether rank `POISONER`, if it is in a step, has it skipped."""
        return step in (self.poison_step, self.skip_step)

    def is_idle(self, rank: int, step: int) -> bool:
        """Whether a rank has no samples in a step."""
        is_last = rank == self.world_size - 1 and rank != POISONER
        return self.idle and is_last and step > 0

    def absent(self, rank: int, step: int, chunk: int, part: int) -> int:
        """Bitmap of the chunk's segments for which a rank has no gradient in a backward."""
        segments = tuple(self.layout.segments(chunk))
        is_unit = self.layout.chunks[chunk].unit == self.absent_unit
        if self.is_idle(rank, step) or (is_unit and (rank > 0 or step % 2 == 1)):
            return (1 << len(segments)) - 1
        if not self.absent_parameters:
            return 0
        found = 0
        for index, segment in enumerate(segments):
            at_nobody = (segment.parameter + step) % 3 == 0
            if at_nobody or (segment.parameter + step + rank + part) % 4 == 0:
                found |= 1 << index
        return found

    def is_untouched(self, ranks: Iterable[int], step: int, chunk: int) -> bool:
        """Whether none of these ranks has a gradient for any segment of a chunk in a step."""
        everything = (1 << self.layout.segments_count(chunk)) - 1
        common = everything
        for rank, part in itertools.product(ranks, range(self.backwards)):
            common &= self.absent(rank, step, chunk, part)
        return common == everything

    def gradient(
        self, weights: Any, rank: int, step: int, chunk: int, part: int, start: int = 0
    ) -> tuple[Any, int]:
        """What a rank pushes, and the segments it has no gradient for; (None, 0): for none."""
        absent = self.absent(rank, step, chunk, part)
        if absent == (1 << self.layout.segments_count(chunk)) - 1:
            return None, 0
        values = gradient(weights, rank, step, chunk, part, start)
        return np.where(mask_of(self.layout, chunk, absent), np.float32(0), values), absent

    def gradient_of_extent(
        self, weights: Mapping[int, Any], rank: int, step: int, extent: int, part: int, start: int
    ) -> tuple[Any, int]:
        """The same of an extent: the gradients of its chunks, one behind the other, each as if it
        travelled alone; zeros where a chunk has none."""
        found: list[Any] = []
        lacks = bit = 0
        is_there = False
        for chunk in self.layout.extents[extent].chunks:
            values, absent = self.gradient(weights[chunk], rank, step, chunk, part, start)
            count = self.layout.segments_count(chunk)
            if values is None:
                values, absent = np.zeros_like(weights[chunk]), (1 << count) - 1
            else:
                is_there = True
            found.append(values)
            lacks |= absent << bit
            bit += count
        return (np.concatenate(found), lacks) if is_there else (None, 0)

    def total_of(
        self, weights: Any, step: int, chunk: int, starts: Mapping[int, int]
    ) -> tuple[Any, int]:
        """The sum of a chunk's gradients in a step of these ranks, and the segments that have none;
        values: their starts."""
        total, common = None, -1
        for part in range(self.backwards):
            of_part: dict[int, Any] = {}
            for rank, start in starts.items():
                values, absent = self.gradient(weights, rank, step, chunk, part, start)
                if values is not None:
                    of_part[rank] = values
                    common &= absent
            summed = sum_of(self, of_part)
            if summed is not None:
                total = summed if total is None else total + summed
        return total, common

    def after_step(
        self, pages: Callable[[int], tuple[Any, Any]], step: int, starts: Mapping[int, int]
    ) -> dict[int, tuple[Any, Any]]:
        """(weights, momentum) of each trainable chunk after a step of these ranks; `pages`: what
        they were before."""
        chunks = [each.index for each in self.layout.chunks if each.trainable]
        totals = {chunk: self.total_of(pages(chunk)[0], step, chunk, starts) for chunk in chunks}
        there = [total for total, _ in totals.values() if total is not None]
        squares = {(2.0, float(len(starts))): [each for t in there for each in squares_of(t)]}
        clips = [] if self.max_grad_norm is None else [Clip(2.0, self.max_grad_norm)]
        factor = clip_factor(clips, norms_of([squares], 2.0, clips) if there else ())
        found = {}
        for chunk, (total, common) in totals.items():
            weights, momentum = pages(chunk)
            if total is not None:
                mean, unchanged = (
                    total / np.float32(len(starts)),
                    mask_of(self.layout, chunk, common),
                )
                weights, momentum = apply_update(weights, momentum, mean, unchanged, factor)
            found[chunk] = weights, momentum
        return found


def sum_of(job: Job, of_rank: dict[int, Any]) -> Any:
    """The sum of one chunk over the ranks that have a gradient, by the job's arithmetic."""
    aggregator = job.aggregator
    if aggregator.is_plain or not of_rank:
        return tree_sum(job.tree, job.tree.root, of_rank)
    grads = [of_rank[rank] for rank in sorted(of_rank)]
    agreed = (
        aggregator.fold([aggregator.measure(g) for g in grads]) if aggregator.asks_first else b""
    )
    parts = [encoded(aggregator, each, agreed) for each in grads]
    together = memoryview(bytearray(aggregator.combined_bytes(parts)))
    together = together[: aggregator.combine(parts, together)]
    total = np.empty_like(grads[0])
    aggregator.decode(together, total)
    return total


def encoded(aggregator: Aggregator, values: Any, agreed: bytes) -> memoryview:
    """A gradient as it travels."""
    out = memoryview(bytearray(aggregator.encoded_bytes(values.size)))
    return out[: aggregator.encode(values, agreed, out)]


def tree_sum(tree: Tree, place: Place, grads: dict[int, Any]) -> Any:
    """What a switch sends up: its children's sums, the one with the lowest rank first."""
    terms = {rank: grads[rank] for rank in place.workers if rank in grads}
    for child in tree.below(place):
        terms[min(ranks_of(tree.ranks(child)))] = tree_sum(tree, child, grads)
    found = [terms[rank] for rank in sorted(terms) if terms[rank] is not None]
    return functools.reduce(np.add, found) if found else None

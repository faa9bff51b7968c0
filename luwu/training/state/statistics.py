"""Norms of every parameter's gradient, weights and update: what a script took from `.grad` before.

    optimizer = luwu.optim.AdamW(model.parameters(), stats_every=100)    steps 0, 100, 200 ...
    ...
    optimizer.step()
    stats = luwu.stats()                                                 of the last such step

They are taken on the optimizer node, in its pass over the pages, where gradient, old and new
weights are anyway; steps that are not measured cost nothing. That a step is measured is stated
with its hyper-parameters, so all ranks must state the same. What comes out depends on the
gradients and weights alone: not on chunks, the version of the kernel, or where the state lies.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.base.errors import RemoteProtocolError
from luwu.nic.reader import FieldRead, StateReader
from luwu.wire.statistics import STATS, SegmentSquares, decode_stats, norm, stats_bytes


@dataclass(frozen=True, slots=True)
class ParameterStats:
    """2-norms of one parameter in a step, of float32 masters and gradients."""

    grad_norm: float
    """Norm of the mean gradient over all ranks, before clipping."""
    weight_norm: float
    """Norm of the weights after the step."""
    update_norm: float
    """Norm of the difference of weights after and before the step."""


class StepStats(dict[str, ParameterStats]):
    """By name, the trained parameters that any rank had a gradient for; a tied one has one name."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        """The step that was measured."""


def read_stats(reader: StateReader) -> StepStats | None:
    """Read the statistics of the last measured step, in any process; None if there was none."""
    if reader.facts.measured_step is None:
        return None
    layout = reader.description.layout
    segments = {c.index: list(layout.segments(c.index)) for c in layout.chunks if c.trainable}
    memory = {index: bytearray(stats_bytes(len(found))) for index, found in segments.items()}
    reader.read(FieldRead(index, STATS, memoryview(into)) for index, into in memory.items())
    parts: dict[int, list[SegmentSquares]] = {}
    divisors: dict[int, float] = {}
    for index, encoded in memory.items():
        divisor, squares = decode_stats(bytes(encoded), len(segments[index]))
        for segment, of_segment in zip(segments[index], squares, strict=True):
            if divisors.setdefault(segment.parameter, divisor) != divisor:
                name = layout.parameters[segment.parameter].name
                raise RemoteProtocolError(f"parts of {name} were divided by different weights")
            parts.setdefault(segment.parameter, []).append(of_segment)
    found = StepStats(reader.facts.measured_step)
    for parameter in sorted(parts):
        divisor, of_this = divisors[parameter], parts[parameter]
        if divisor:
            found[layout.parameters[parameter].name] = ParameterStats(
                grad_norm=norm(each.grad for each in of_this) / divisor,
                weight_norm=norm(each.weight for each in of_this),
                update_norm=norm(each.update for each in of_this),
            )
    return found

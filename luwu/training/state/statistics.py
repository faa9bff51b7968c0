"""Norms of every parameter's gradient, weights and update: what a script took from `.grad` before.

    optimizer = luwu.optim.AdamW(model.parameters(), stats_every=100)    steps 0, 100, 200 ...
    ...
    optimizer.step()
    stats = luwu.stats()                                                 of the last such step

They are taken on the optimizer node, in its pass over the pages, where gradient, old and new
weights are anyway; steps that are not measured cost nothing. That a step is measured is said with
its hyper-parameters, so all ranks must say the same. What comes out depends on the gradients and
weights alone: not on chunks, the version of the kernel, or where the state lies.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.base.errors import ConfigError, RemoteProtocolError
from luwu.nic.reader import FieldRead, StateReader
from luwu.training import run
from luwu.wire.statistics import STATS, SegmentSquares, decode_stats, norm, stats_bytes


@dataclass(frozen=True, slots=True)
class ParameterStats:
    """2-norms of one parameter in a step, of float32 masters and gradients."""

    grad_norm: float
    """Of the mean gradient over all ranks, before clipping."""
    weight_norm: float
    """Of the weights after the step."""
    update_norm: float
    """Of the weights after the step less those before."""


class StepStats(dict[str, ParameterStats]):
    """By name, the trained parameters that any rank had a gradient for; a tied one has one name."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        """The step that was measured."""


def stats() -> StepStats | None:
    """Statistics of the last measured step; any rank may ask, the others need not (16 at once).

    Waits until the last `step()` is decided. None: no measured step was decided since the node was
    started. A step that was skipped, or lost, has none: those of the measured step before it stay.
    Raises: ConfigError if there are none and the optimizer asks for none; StepAborted.
    """
    session = run.session()
    found = None
    if session.is_begun or session.is_resumed:  # else the first weights would be sent, for nothing
        with session.open_reader() as reader:
            found = read_stats(reader)
    if found is None and session.stats_every is None:
        raise ConfigError(
            "luwu.stats() of a run that measures no step; make the optimizer with stats_every=100, "
            "or set optimizer.stats_every, on every rank"
        )
    return found


def read_stats(reader: StateReader) -> StepStats | None:
    """What a reader of any process sees of the last measured step; None if there was none."""
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

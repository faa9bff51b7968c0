"""Units of work through the stages of the node's optimizer: read, update, write, send.

    P1  step-centric    equal chunks, whatever unit they are of: sum(tau) + (n - 1) max(tau)
    P2  layer-centric   a unit at a time goes through all stages, w units in flight: in the long run
                        a unit takes max(max(tau), sum(tau)/w), and the largest sets the pace

A stage does one unit at a time. Only `in_flight` units have buffers, from the beginning of their
first stage to the end of their last one. Source: derived (closed forms of queues in a line).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Engine, Process, Record


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage by its rate: bytes of state a second, and what each unit takes besides."""

    name: str
    rate: float
    each_s: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """Of a unit with so much state."""
        return self.each_s + nbytes / self.rate


def run_pipeline(units: Sequence[float], stages: Sequence[Stage], in_flight: int) -> Record:
    """Play units (bytes of each) through stages; what every stage did, when."""
    if in_flight < 1:
        raise ConfigError(f"in_flight: {in_flight}, but at least one unit must have its buffer")
    env, record = simpy.Environment(), Record()
    engines = [Engine(env, record, stage.name) for stage in stages]
    buffers = simpy.Resource(env, capacity=in_flight)

    def unit(index: int, nbytes: float) -> Process:
        with buffers.request() as buffer:
            yield buffer
            for stage, engine in zip(stages, engines, strict=True):
                yield from engine.work(f"unit {index}", stage.seconds(nbytes), nbytes)

    for index, nbytes in enumerate(units):
        env.process(unit(index, nbytes))
    env.run()
    return record


def step_centric_s(state_bytes: float, chunk_bytes: float, stages: Sequence[Stage]) -> float:
    """Of equal chunks with room for all (P1)."""
    times = [stage.seconds(chunk_bytes) for stage in stages]
    return sum(times) + (state_bytes / chunk_bytes - 1) * max(times)


def layer_centric_unit_s(unit_bytes: float, stages: Sequence[Stage], in_flight: int) -> float:
    """Of each of many equal units, in the long run (P2)."""
    times = [stage.seconds(unit_bytes) for stage in stages]
    return max(*times, sum(times) / in_flight)

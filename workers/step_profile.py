"""One step of FSDP2 as torch's profiler saw it, as lanes beside LuWu's (`luwu.report.lanes`).

    compute   forward and backward, without what FSDP2 does on the training thread inside of them
    wait      that: it waits for all-gathers and reduce-scatters, and copies
    pull      all-gathers under way
    push      reduce-scatters under way (gloo makes them of all-reduces)
    update    the optimizer's step

All ranks profile the last step, after which no memory is measured: the profiler takes 12 MiB, which
are none of the arm. On a GPU nothing is recorded: ranges
of the host say when work was handed out, not when the device did it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from torch.profiler import ProfilerActivity, profile, record_function

from luwu.report.lanes import COMPUTE, WAIT, Span, make_lanes
from workers.arms import Arm
from workers.options import Options

ARMS: Final = ("fsdp", "fsdp_offload")
STEPS_MIN: Final = 4
"""Steps of a run at least; the first ones of a shorter run are slow."""
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
_PREFIX: Final = "luwu."
_QUIET: Final = "6"
"""The profiler's library prints nothing from this level on."""
_ON_THE_TRAINING_THREAD: Final = "FSDP::"
_COLLECTIVES: Final = {
    "pull": ("gloo:all_gather",), "push": ("gloo:all_reduce", "gloo:reduce_scatter"),
}  # fmt: skip


class StepProfile:
    """Profiles one step; every other one costs nothing."""

    def __init__(self, arm: Arm, options: Options, *, is_wanted: bool = True) -> None:
        steps = options.steps - arm.first_step
        can_be = options.arm in ARMS and arm.device.type == "cpu" and steps >= STEPS_MIN
        self._step = options.steps - 1 if is_wanted and can_be else None
        self._arm = options.arm
        self.is_open = False
        """Whether this step is profiled."""
        self.document: dict[str, Any] | None = None
        """The step's lanes, once it was made."""

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Around a step of the loop."""
        if step != self._step:
            yield
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            self.is_open = True
            yield
            self.is_open = False
        self.document = _lanes(self._arm, step, found.events())

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Around the forward, the backward or the update of a step."""
        return record_function(_PREFIX + name) if self.is_open else nullcontext()


def _lanes(arm: str, step: int, events: Any) -> dict[str, Any] | None:
    parts: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        span = event.time_range.start / 1e6, event.time_range.end / 1e6
        name = event.name
        if name.startswith(_PREFIX):
            parts.setdefault(name.removeprefix(_PREFIX), []).append(span)
        elif name.startswith(_ON_THE_TRAINING_THREAD):
            parts.setdefault(WAIT, []).append(span)
        else:
            for engine, names in _COLLECTIVES.items():
                if name.startswith(names):
                    parts.setdefault(engine, []).append(span)
    own = [span for name in (FORWARD, BACKWARD, UPDATE) for span in parts.get(name, ())]
    if not own:
        return None
    start_s, end_s = min(start for start, _ in own), max(end for _, end in own)
    spans: dict[str, list[Span]] = {
        name: [(start - start_s, end - start_s) for start, end in found]
        for name, found in parts.items()
    }
    forward = spans.pop(FORWARD, [])
    spans[COMPUTE] = forward + spans.pop(BACKWARD, [])
    return make_lanes(step, end_s - start_s, spans, pale=forward, system=arm).document()

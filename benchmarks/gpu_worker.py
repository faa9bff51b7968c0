"""`workers/train.py` with a profile of its last steps, for `benchmarks/gpu_check.py`.

    python -m benchmarks.gpu_worker --arm fsdp --steps 18 --result FILE.json

Result:   what `workers/train.py` writes, and `copies`: those between host and device in the last
          `PROFILED_STEPS` steps, and the share of their time in which kernels of the compute stream
          ran. The compute stream is the one whose kernels take the most time. Without a GPU there
          are no such copies, and `copies` is null.
Source:   activities that torch's profiler records. It costs time: the last `steps_not_timed` are
          left out of all other numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from luwu.report.intervals import Intervals, union
from workers.arms import Arm
from workers.options import Options
from workers.train import main, make_arm

PROFILED_STEPS = 2
WARM_UP_STEPS = 1
"""The profiler's own, in which nothing is recorded."""
NOT_TIMED_STEPS = PROFILED_STEPS + WARM_UP_STEPS + 1
"""It starts at the end of the step before its warm-up."""
BETWEEN_HOST_AND_DEVICE = ("Memcpy HtoD", "Memcpy DtoH")


Trace = dict[str, Any]
"""A Chrome trace as torch writes it; its times are in microseconds."""


class LastSteps:
    """Watches an arm: counts its steps, and profiles the last of them."""

    def __init__(
        self, arm: Arm, steps: int, file: Path, read: Callable[[Trace], dict[str, Any]]
    ) -> None:
        """`file`: where the trace lies until `read` makes of it what the worker reports."""
        self._file, self._reader = file, read
        self.found: dict[str, Any] = {}
        self.missing: str | None = "the profiler recorded nothing"
        """Why there are no copies."""
        activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
        waited = max(0, steps - PROFILED_STEPS - WARM_UP_STEPS)
        self._profile = profile(
            activities=[activity],
            schedule=schedule(wait=waited, warmup=WARM_UP_STEPS, active=PROFILED_STEPS, repeat=1),
            on_trace_ready=self._read,
        )
        self._step, self._measurements = arm.step, arm.measurements
        arm.step, arm.measurements = self.step, self.measurements  # type: ignore[method-assign]
        self._profile.start()

    def step(self, *, want_norm: bool) -> Any:
        """The arm's step, after which the profiler goes on to the next."""
        norm = self._step(want_norm=want_norm)
        self._profile.step()
        return norm

    def measurements(self) -> dict[str, Any]:
        """Those of the arm, and what was read of its last steps."""
        return {
            **self._measurements(),
            "copies": None,
            **self.found,
            "copies_missing": self.missing,
            "steps_not_timed": NOT_TIMED_STEPS,
        }

    def _read(self, recorded: Any) -> None:
        recorded.export_chrome_trace(str(self._file))
        text = self._file.read_text(encoding="utf-8", errors="replace")
        self._file.unlink()
        try:
            self.found = self._reader(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            # Another form of trace: the times of the steps are worth having all the same.
            self.missing = f"the profiler's trace cannot be read ({type(error).__name__}: {error})"
            return
        self.missing = None if self.found["copies"] else "the profiler recorded no copies"


def read_copies(trace: Trace) -> dict[str, Any]:
    """The copies in a trace, as `gpu_check` reports them."""
    return {"copies": copies_behind_compute(trace["traceEvents"])}


def copies_behind_compute(events: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Copies between host and device, and how much of them kernels hide; None without copies.

    `events`: those of a `Trace`.
    """
    longest, copies = compute_and_copies(events)
    if not copies:
        return None
    compute, copied = _intervals(longest), _intervals(copies)
    return {
        "seconds_a_step": copied.total_ns / 1e9 / PROFILED_STEPS,
        "bytes_a_step": sum(int(each["args"]["bytes"]) for each in copies) // PROFILED_STEPS,
        "compute_seconds_a_step": compute.total_ns / 1e9 / PROFILED_STEPS,
        "behind_compute_ratio": compute.within(copied).total_ns / copied.total_ns,
    }


def compute_and_copies(events: Iterable[dict[str, Any]]) -> tuple[list[Trace], list[Trace]]:
    """Kernels of the compute stream, and copies between host and device."""
    kernels: dict[int, list[Trace]] = {}
    copies = []
    for event in events:
        category = event.get("cat")
        if category == "kernel":
            kernels.setdefault(event["args"]["stream"], []).append(event)
        elif category == "gpu_memcpy" and event["name"].startswith(BETWEEN_HOST_AND_DEVICE):
            copies.append(event)
    longest = max(kernels.values(), key=lambda each: sum(k["dur"] for k in each), default=[])
    return longest, copies


def _intervals(events: list[dict[str, Any]]) -> Intervals:
    starts_S = np.array([round(each["ts"] * 1000) for each in events], np.int64)
    lengths_S = np.array([round(each["dur"] * 1000) for each in events], np.int64)
    return union(starts_S, starts_S + lengths_S)


def _make(options: Options, *, data_digest: str) -> Arm:
    arm = make_arm(options, data_digest=data_digest)
    result = options.result_path(arm.rank)
    assert result is not None, "--result is given"
    LastSteps(arm, options.steps, result.with_suffix(".trace"), read_copies)
    return arm


if __name__ == "__main__":
    sys.exit(main(make=_make))

"""`workers/train.py` with what its device and its threads did, for `benchmarks/gpu_where.py`.

    python -m benchmarks.gpu_where_worker --arm luwu --steps 18 --result FILE.json

Result:   what `workers/train.py` writes; `activity`: kernels and copies of the last
          `PROFILED_STEPS` steps, in nanoseconds of the clock of this host's events; and
          `thread_seconds`: processor time by thread in the steps before those.
Without a GPU a worker of LuWu takes the way of a GPU all the same (`gpu_streams.py`).
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_streams import ThreadStreams
from benchmarks.gpu_worker import (
    NOT_TIMED_STEPS,
    LastSteps,
    Trace,
    compute_and_copies,
    copies_behind_compute,
)
from benchmarks.training import WARM_UPS
from luwu.base.clock import SYSTEM_CLOCK, unix_ns
from luwu.join.open import open_nic
from luwu.training.devices.device import CudaDevice
from luwu.training.script import run
from workers.arms import Arm
from workers.options import Options, env_int
from workers.train import main, make_arm

_LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of the calls that hand out kernels."""


def read_activity(trace: Trace) -> dict[str, Any]:
    """Kernels and copies of a trace, by the monotonic clock of this host."""
    since_ns = int(trace["baseTimeNanoseconds"]) - (unix_ns() - SYSTEM_CLOCK.now_ns())

    def ns(us: float) -> int:
        return since_ns + round(us * 1000)

    events = trace["traceEvents"]
    launched_ns = {
        each["args"]["correlation"]: ns(each["ts"])
        for each in events
        if each.get("cat") in _LAUNCHES and "correlation" in each.get("args", {})
    }
    kernels, copies = compute_and_copies(events)

    def span(each: dict[str, Any]) -> list[int]:
        return [ns(each["ts"]), ns(each["ts"] + each["dur"])]

    return {
        "copies": copies_behind_compute(events),
        "activity": {
            "compute": [
                [*span(each), launched_ns.get(each["args"].get("correlation"), ns(each["ts"]))]
                for each in kernels
            ],
            "copies_in": [span(each) for each in copies if "HtoD" in each["name"]],
            "copies_out": [span(each) for each in copies if "DtoH" in each["name"]],
        },
    }


class Threads:
    """Processor time of this process by thread, between two of its steps."""

    def __init__(self, arm: Arm, steps: int) -> None:
        self._first, self._end = WARM_UPS, max(WARM_UPS + 1, steps - NOT_TIMED_STEPS)
        self._count = 0
        self._before: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        """A step, by thread."""
        self._step, self._measurements = arm.step, arm.measurements
        arm.step, arm.measurements = self.step, self.measurements  # type: ignore[method-assign]

    def step(self, *, want_norm: bool) -> Any:
        """The arm's step, counted."""
        norm = self._step(want_norm=want_norm)
        self._count += 1
        if self._count == self._first:
            self._before = thread_seconds()
        elif self._count == self._end:
            count = self._end - self._first
            after = thread_seconds()
            self.seconds = {
                name: (after[name] - self._before.get(name, 0.0)) / count for name in after
            }
        return norm

    def measurements(self) -> dict[str, Any]:
        """Those of the arm, and processor time by thread."""
        return {**self._measurements(), "thread_seconds": self.seconds}


def thread_seconds() -> dict[str, float]:
    """Processor time so far of each thread of this process, by name; the same name is added up."""
    names = {each.native_id: each.name for each in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            busy_ns = int((task / "schedstat").read_text().split()[0])
            name = names.get(int(task.name)) or (task / "comm").read_text().strip()
        except OSError:
            continue  # it has ended
        name = "compute" if name.startswith(("python", "pt_main")) else name
        found[name] = found.get(name, 0.0) + busy_ns / 1e9
    return found


def _make(options: Options, *, data_digest: str) -> Arm:
    streams = None
    if options.arm == "luwu" and not torch.cuda.is_available():
        streams = ThreadStreams()
        # `init` joins by what is offered, and makes the device by this name.
        run.offer(open_nic(env_int("RANK", 0), env_int("WORLD_SIZE", 1), on_device=True))
        run.device_at = lambda where: CudaDevice(where, streams)  # type: ignore[attr-defined]
    arm = make_arm(options, data_digest=data_digest)
    result = options.result_path(arm.rank)
    assert result is not None, "--result is given"
    Threads(arm, options.steps)
    if torch.cuda.is_available():
        LastSteps(arm, options.steps, result.with_suffix(".trace"), read_activity)
    else:
        _report_streams(arm, streams)
    return arm


def _report_streams(arm: Arm, streams: ThreadStreams | None) -> None:
    measurements = arm.measurements

    def with_streams() -> dict[str, Any]:
        more: dict[str, Any] = {
            "copies": None, "copies_missing": "this machine has no GPU",
            "steps_not_timed": NOT_TIMED_STEPS, "activity": None,
        }  # fmt: skip
        if streams is not None:
            more["activity"] = {
                "compute": None,
                "copies_in": streams.pull.spans,
                "copies_out": streams.push.spans,
            }
        return {**measurements(), **more}

    arm.measurements = with_streams  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(make=_make))

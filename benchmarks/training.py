"""Whole training runs for benchmarks: `workers/train.py` by one arm, as `luwu compare` runs it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.crew import SOURCE
from luwu.base.config import RunConfig, resolve
from luwu.base.json_file import read_json
from luwu.compare.arm import SCRIPT, ArmRun, run_arm, script_arguments
from luwu.compare.comparison import arm_document
from luwu.launch.agent import Share
from luwu.launch.processes.children import DiskBytes
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.sizes import decide_sizes
from luwu.launch.supervisor import Supervisor, threads_per_worker

COMPUTE_ONLY = "compute-only"
WARM_UPS = 3
"""Steps of a run that are not counted."""
_TEXT_BYTES = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A job: the built-in GPT on random text, so many tokens a worker and step."""

    layers: int
    width: int
    context: int
    batch: int
    workers: int
    steps: int

    @property
    def flags(self) -> dict[str, str]:
        """As `luwu compare` takes them."""
        names = ("layers", "width", "context", "batch", "workers", "steps")
        return {name: str(getattr(self, name)) for name in names}


class TrainingRuns:
    """Runs below a temporary directory; the number of each is its directory's."""

    def __init__(
        self, directory: Path, *, script: Sequence[str] = SCRIPT,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`script`: see `run_arm`. `should_stop` ends the run under way."""
        self._directory, self._script, self._should_stop = directory, script, should_stop
        self._count = 0
        self._data = directory / "text"
        letters = np.random.default_rng(0).integers(97, 123, _TEXT_BYTES, dtype=np.uint8)
        self._data.write_bytes(letters.tobytes())
        # The launcher starts `benchmarks.compute_only` as a module, from wherever we were started.
        paths = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    @property
    def directory(self) -> Path:
        """Where the directories of all runs are."""
        return self._directory

    def run(
        self, arm: str, job: Training, flags: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Run:  # fmt: skip
        """Train by `luwu`, `fsdp`, `ddp` or `compute-only`; what was measured. `options`: of the
        script, beside those that follow from `flags`."""
        if arm == COMPUTE_ONLY:
            return self.run_module("benchmarks.compute_only", job, flags)
        run, config = self._next(), self.config(job, flags or {})
        with (run.path / "console.log").open("a") as log:
            sizes = decide_sizes(config, None)
            done = run_arm(
                arm, config, sizes, run, Console(log), self._should_stop, [*self._script, *options]
            )  # fmt: skip
        document = arm_document(done, 1)
        return Run(
            job=job, document=document, directory=run.path, node=done.node, workers=done.workers
        )

    def run_module(
        self, module: str, job: Training, flags: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Run:  # fmt: skip
        """The same by a program of our own, which takes the options of `workers.train`.

        Its arm has the program's name; `environ` is added to its environment.
        """
        run, config, name = self._next(), self.config(job, flags or {}), module.rpartition(".")[2]
        result, threads = run.result(f"{name}.json"), threads_per_worker(config.workers)
        with (
            (run.path / "console.log").open("a") as log,
            Supervisor(
                run, Console(log), should_stop=self._should_stop, prefix=f"{name}-"
            ) as supervisor,
        ):
            supervisor.worker_environ = dict(environ)
            supervisor.train(
                ["-m", module, *script_arguments("ddp", config, result)],
                share=Share.of_all(config.workers),
                connect=None,
                sink=lambda data, is_error: None,
                threads=threads,
            )
            supervisor.wait()
        paths = [result.with_suffix(f".rank{rank}.json") for rank in range(config.workers)]
        workers = [read_json(path) or {} for path in paths]
        done = ArmRun(
            name=name, workers=workers, memory_peaks=supervisor.sampler.peaks,
            memory_peak_of_all=supervisor.sampler.peak_of_all, kernel_disk=_disk_bytes(workers),
            threads=threads,
        )  # fmt: skip
        return Run(job=job, document=arm_document(done, 1), directory=run.path)

    def _next(self) -> RunDirectory:
        self._count += 1
        return RunDirectory.create(self._directory / f"{self._directory.name}-{self._count}")

    def config(self, job: Training, flags: Mapping[str, str]) -> RunConfig:
        """The configuration of `luwu compare` with such flags."""
        return resolve(flags={"data": str(self._data), **job.flags, **flags}, environ={}).config


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, in the fields of an arm of `luwu compare`."""

    job: Training
    document: dict[str, Any]
    directory: Path
    """Of the run, with its events."""
    node: dict[str, Any] | None = None
    """What the node said of itself at its end."""
    workers: list[dict[str, Any]] = field(default_factory=list)
    """What each worker wrote at its end."""

    @property
    def step_seconds(self) -> list[float]:
        """Of each counted step of the job."""
        found: list[float] = self.document["step_seconds"]
        return found[min(WARM_UPS, len(found) - 1) :]


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Where runs and their states are kept until the end of the benchmark."""
    return tempfile.TemporaryDirectory(prefix="luwu-training-")


def _disk_bytes(workers: Sequence[dict[str, Any]]) -> DiskBytes | None:
    """The kernel's count for workers that keep their state on a disk, without the first writing."""
    found = [each["disk_bytes_kernel"] for each in workers if "disk_bytes_kernel" in each]
    if not found:
        return None
    return DiskBytes(*(sum(each[way] for each in found) for way in ("read", "written")))

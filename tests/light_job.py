"""A job without torch: what it trains, and a worker that runs it on a NIC.

A worker follows a script. Its gradient depends on the weights it pulled, its rank, the step and the
parameter, and the weights of every step depend on those before; so one wrong byte anywhere changes
the digest. `tests/helpers/local_job.py` compares it with a plain loop over `torch.optim`.

    python -m tests.light_job --steps N [--compute-ms MS] [--gate FILE] [--gate-step N]
                              [--again FILE]

is a worker of `luwu run` that takes MS for a step, and waits before its last, or before the step
that is given, until the gate's file is there; if that names a step, it waits before that one until
the file names a later one, or none. If it is started again, it waits for the other file first. It
starts in a fifth of the time of one with torch, for tests of what happens to its processes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flat_push import push_flat
from luwu.base.clock import sleep
from luwu.base.errors import StepAborted
from luwu.base.tree import Tree
from luwu.join.open import find_connection, open_nic
from luwu.layout import Layout, Parameter, Unit
from luwu.nic.shell import Nic
from luwu.nic.threads import StepHandle
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper

KIB, MIB = 1024, 1024**2
STEPS = 4
POLL_S = 0.01
LARGE = 64 * MIB

SHAPES: list[tuple[tuple[int, ...], bool, int]] = [
    ((96, 64), True, 0),
    ((33,), True, 1),
    ((50,), False, 0),
    ((70, 130), True, 0),
    ((64,), True, 1),
    ((130, 64), True, 0),
    ((), True, 1),
]
"""(shape, trainable, group): ragged ends, a frozen parameter, a scalar, two groups."""


def make_layout(chunk_kib: int = 16, wire_dtype: str = "float32", extent_chunks: int = 1) -> Layout:
    """Three units, nine chunks of 16 KiB."""
    return Layout(
        parameters=tuple(
            Parameter(
                name=f"p{i}", shape=shape, trainable=trainable, group=group, wire_dtype=wire_dtype
            )
            for i, (shape, trainable, group) in enumerate(SHAPES)
        ),
        units=(
            Unit(name="first", parameters=(0, 1)),
            Unit(name="second", parameters=(2, 3, 4)),
            Unit(name="third", parameters=(5, 6)),
        ),
        chunk_bytes=chunk_kib * KIB,
        extent_chunks=extent_chunks,
    )


GROUPS = (
    {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False},
    {"lr": 3e-2, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.0, "eps": 1e-8, "maximize": False},
)


@dataclass(frozen=True)
class Job:
    """What a cluster trains."""

    layout: Layout = field(default_factory=make_layout)
    world_size: int = 2
    steps: int = STEPS
    update: str = "streaming"
    max_grad_norm: float | None = None
    poison_step: int | None = None
    """The step in which the last rank pushes one element that is not finite."""
    tree: Tree | None = None
    """The switches, where there are several."""

    @property
    def description(self) -> Description:
        return Description(
            layout=self.layout, optimizer="adamw", update=self.update, state_fields=("m", "v")
        )

    def hyper(self, step: int) -> StepHyper:
        """A schedule: the learning rate falls from step to step."""
        groups = tuple(group | {"lr": group["lr"] / (1 + step)} for group in GROUPS)
        return StepHyper(groups=groups, max_grad_norm=self.max_grad_norm)

    @property
    def least_bytes(self) -> int:
        """A budget for a handful of chunks."""
        return 24 * self.layout.chunk_bytes


def initial(parameter: int, elems: int) -> Any:
    """Weights before step 0, float32."""
    return np.random.default_rng(parameter).standard_normal(elems, dtype=np.float32)


def gradient(weights: Any, rank: int, step: int, parameter: int) -> Any:
    """What a rank computes of the weights it sees: one product and one sum, rounded exactly, of
    sizes that make every order of addition round differently."""
    pattern = (np.arange(weights.size) * (2 * rank + 3) + step * 7 + parameter * 13) % 101 - 50
    own = np.float32(0.37 + 0.11 * rank)
    return weights * own + pattern.astype(np.float32) * np.float32(0.013)


def from_wire(memory: memoryview, dtype: str) -> Any:
    """What travelled, as float32."""
    if dtype == "float32":
        return np.frombuffer(memory, np.float32)
    import torch

    return torch.frombuffer(memory, dtype=getattr(torch, dtype)).to(torch.float32).numpy()


def to_wire(values: Any, dtype: str) -> memoryview:
    """float32 values, as they travel."""
    if dtype == "float32":
        return memoryview(values.view(np.uint8))
    import torch

    return memoryview(torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy())


# ---------------------------------------------------------------------------- a worker


@dataclass
class Seen:
    """What one worker was told."""

    outcomes: dict[int, tuple[bool, float]] = field(default_factory=dict)
    aborted_steps: list[int] = field(default_factory=list)
    first_step: int = -1


class Worker:
    """Runs a job on a NIC as a training script would; one for all ranks of a cluster."""

    def __init__(self, job: Job, *, cancel_step: int | None = None, stop_at: int | None = None):
        self.job, self._layout = job, job.layout
        self._stop = job.steps if stop_at is None else stop_at
        self._cancel_step = cancel_step

    def __call__(self, nic: Nic) -> Seen:
        seen = Seen()
        nic.connect()  # else Hello may be said before and after, and all of an attempt with it
        joined = nic.join(self.job.description)
        seen.first_step = joined.step
        if not joined.loaded and nic.rank == 0:
            nic.load(self._initial_chunks())
        handles: dict[int, StepHandle] = {}
        step = joined.step
        while True:
            try:
                while step < self._stop:
                    handles[step] = self._step(nic, step, not seen.aborted_steps)
                    step += 1
                for number, handle in handles.items():
                    applied, (norm, *_) = handle.decision()
                    seen.outcomes[number] = (applied, norm)
                return seen
            except StepAborted as exc:
                seen.aborted_steps.append(exc.step)
                step = exc.step

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        hyper = encode_hyper(self.job.hyper(step))
        units = range(len(self._layout.units))
        streaming = self.job.update == "streaming"
        kept = {}
        for unit in units:  # forward
            kept[unit] = self._pull(nic, step, 0, unit)
        if streaming:
            nic.begin(step, hyper)
        pushes = []
        for unit in reversed(units):
            again = self._pull(nic, step, 1, unit)
            assert bytes(again) == bytes(kept[unit]), "forward and backward saw other weights"
            grads = self._gradients(again, nic.rank, step, unit)
            dtype = self._layout.chunks[0].wire_dtype
            pushes.extend(
                push_flat(nic, self._layout, grads, dtype, step=step, unit=unit, last=streaming)
            )
        for push in pushes:
            nic.wait(push)
        if step == self._cancel_step and may_cancel and nic.rank == 0:
            nic.cancel("the loss looks wrong")
        return nic.commit(step, 1, hyper)

    def _pull(self, nic: Nic, step: int, use: int, unit: int) -> memoryview:
        into = memoryview(bytearray(self._layout.unit_wire_bytes(unit)))
        handle = nic.pull(step, use, unit, lambda: into, in_place=True)
        nic.wait(handle)
        if handle.shared is not None:  # they were found in shared memory, or came there
            into = memoryview(ctypes.string_at(handle.shared.address, handle.shared.nbytes))
            handle.shared.release()
        return into

    def _gradients(self, weights: memoryview, rank: int, step: int, unit: int) -> memoryview:
        """The flat vector of the unit's trainable parameters, zero where there is padding."""
        dtype = self._layout.chunks[0].wire_dtype
        flat = from_wire(weights, dtype)
        grads = np.zeros_like(flat)
        for index in self._layout.units[unit].parameters:
            place = self._layout.placements[index]
            part = slice(place.start, place.start + place.elems)
            if self._layout.parameters[index].trainable:
                grads[part] = gradient(flat[part], rank, step, index)
        if step == self.job.poison_step and rank == self.job.world_size - 1 and unit == 1:
            grads[17] = np.nan
        return to_wire(grads, dtype)

    def _initial_chunks(self) -> Any:
        for chunk in self._layout.chunks:
            values = np.zeros(chunk.elems, np.float32)
            for segment in self._layout.segments(chunk.index):
                whole = initial(segment.parameter, self._layout.parameters[segment.parameter].elems)
                values[segment.chunk_start : segment.chunk_start + segment.elems] = whole[
                    segment.parameter_start : segment.parameter_start + segment.elems
                ]
            yield chunk.index, memoryview(values.view(np.uint8))


# ---------------------------------------------------------------------------- a process


class StepWorker(Worker):
    """Takes its time, and says each step that it has pushed."""

    def __init__(
        self, job: Job, *, compute_ms: float, gate: Path | None, gate_step: int | None = None
    ) -> None:
        super().__init__(job)
        self._compute_s, self._gate = compute_ms / 1e3, gate
        self._gate_step = job.steps - 1 if gate_step is None else gate_step

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        sleep(self._compute_s)
        if self._gate is not None and not is_open(self._gate, self._gate_step, step):
            print(f"light waits step={step} ", file=sys.stderr, flush=True)
            while not is_open(self._gate, self._gate_step, step):
                sleep(POLL_S)
        handle = super()._step(nic, step, may_cancel)
        print(f"light step={step} ", file=sys.stderr, flush=True)
        return handle


def is_open(gate: Path, gate_step: int, step: int) -> bool:
    """True if a step may be made."""
    if step < gate_step:
        return True
    text = gate.read_text() if gate.exists() else str(gate_step)
    return not text or step < int(text)


def wait_for(file: Path) -> None:
    """Wait until somebody has made it."""
    while not file.exists():
        sleep(POLL_S)


def train(
    steps: int, *, shape: tuple[int, ...] = (), compute_ms: float = 0.0, gate: Path | None = None,
    gate_step: int | None = None,
) -> None:  # fmt: skip
    """Join the job that our environment names, and train; `shape`: of the only parameter."""
    connection = find_connection()
    layout = replace(
        make_layout(connection.chunk_bytes // KIB, extent_chunks=connection.extent_chunks),
        optimizer_nodes=connection.optimizer_nodes,
    )
    if shape:
        layout = replace(
            layout,
            parameters=(Parameter(name="weight", shape=shape),),
            units=(Unit(name="unit", parameters=(0,)),),
        )
    job = Job(layout=layout, world_size=connection.world_size, steps=steps)
    with closing(open_nic(int(os.environ["RANK"]), connection.world_size)) as nic:
        StepWorker(job, compute_ms=compute_ms, gate=gate, gate_step=gate_step)(nic)
        nic.leave()


def main(arguments: Sequence[str]) -> int:
    """Train; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.light_job", allow_abbrev=False)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--gate-step", type=int)
    parser.add_argument("--again", type=Path)
    asked = parser.parse_args(arguments)
    if asked.again is not None:
        started = asked.again.with_name(f"started-{os.environ['RANK']}")
        if started.exists():
            wait_for(asked.again)
        started.touch()
    train(asked.steps, compute_ms=asked.compute_ms, gate=asked.gate, gate_step=asked.gate_step)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

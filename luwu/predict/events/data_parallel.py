"""A step of data parallel training, played unit by unit: ZeRO-3, what offloads, DDP and ATP.

    E10  exchanges    seconds of the closed form (Z1, R1, R2), shared by parameters among units
    E11  sharded      a unit is gathered before it is computed, forward and backward, while at most
                      AHEAD units before it are not computed yet; its gradients are reduced after
                      its backward. Of each exchange, compute waits for the share that the
                      framework does not hide
    E12  replicated   gradients of the last micro-batch are summed, unit by unit
    E13  offload      gradients go down PCIe once they are reduced, and weights that lie on drives
                      are read before they are gathered; after the last backward the optimizer
                      stage (U5), unit by unit, or all units in a pipeline

Compute and exchanges slow each other down while both run (V1). All devices do the same, so one is
played; each byte that leaves its port enters another. The closed forms do not have: gathers that
the next unit waits for, forward and backward whose exchanges are hidden unequally, drives and ports
that work at once.
Sources: `zero.py`, `offload.py`, `replicated.py`; derived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import simpy

from luwu.base.errors import ConfigError
from luwu.predict.events.engines import Engine, Fields, Process, Record
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.overlap import KAPPA
from luwu.predict.model.traffic import GATHERS
from luwu.predict.model.units import Unit, units_of
from luwu.predict.systems.offload import Offload, moved_in_backward, optimizer_stage
from luwu.predict.systems.replicated import ring_reduction, switch_reduction
from luwu.predict.systems.zero import exchange_time, kept_rate

AHEAD: Final = 2
"""Units that are gathered, or about to be, before the one that is computed."""
SHARDED: Final = ("zero3", "zero-offload", "zero-infinity")
REPLICATED: Final = ("ddp", "atp")
COMPUTE, PORT_IN, PORT_OUT = "compute", "port in", "port out"
PCIE, READ, HOST, WRITE = "PCIe", "disk read", "host", "disk write"
ENGINES: Final = (COMPUTE, PORT_IN, PORT_OUT, PCIE, READ, HOST, WRITE)
"""Engines of a device and of its host, from the device to the drives."""
_STAGE: Final = (
    ("disk read", READ, "read"), ("processor", HOST, "update"), ("disk write", WRITE, "write"),
    ("PCIe", PCIE, "upload"),
)  # fmt: skip
"""Resources of the optimizer stage (U5) in their order, their engines, and names of their jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelStep:
    """A step to be played: seconds of all units together, without anything beside."""

    units: Sequence[Unit]
    micro_batches: int
    gather_s: float = 0.0
    """Of all weights, once."""
    reduce_s: float = 0.0
    """Of all gradients, once."""
    reduces_last: bool = False
    """Gradients of the last micro-batch alone are reduced: the sums of all."""
    open_ratio: float = 0.0
    """Share of each exchange that compute waits for."""
    kappa: float = 0.0
    eta: float = 1.0
    """What exchanges take of compute, and what compute leaves of them (V1)."""
    optimizer_s: float = 0.0
    """On the device."""
    read_s: float = 0.0
    """Of all weights from drives, before a gather."""
    offload_s: float = 0.0
    """Of all gradients down PCIe, once per micro-batch."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """The optimizer stage of the host, by resource."""
    pipelined: bool = False
    """Its resources work at once."""


def data_parallel_step(
    system: str, job: TrainingJob, offload: Offload | None, closed: StepTime
) -> DataParallelStep:
    """What is played of a job; `closed`: its closed form. Raises ConfigError for a system of which
    nothing is played."""
    units, micro_batches = units_of(job), job.micro_batches
    if system in REPLICATED:
        reduction = ring_reduction(job) if system == "ddp" else switch_reduction(job)
        return DataParallelStep(
            units=units, micro_batches=micro_batches, reduce_s=reduction.seconds,
            reduces_last=True, kappa=reduction.kappa, eta=reduction.eta,
            optimizer_s=closed.parts["optimizer"],
        )  # fmt: skip
    if system not in SHARDED:
        raise ConfigError(f"no steps of that system are played: {system}")
    gathered = GATHERS * WIRE_BYTES
    exchange_s, gradient = exchange_time(job), job.software.gradient_bytes
    step = DataParallelStep(
        units=units, micro_batches=micro_batches,
        gather_s=exchange_s * WIRE_BYTES / (gathered + gradient),
        reduce_s=exchange_s * gradient / (gathered + gradient),
        open_ratio=job.software.exposed_gathers, kappa=KAPPA, eta=kept_rate(job),
        optimizer_s=0.0 if offload else closed.parts["optimizer"],
    )  # fmt: skip
    if offload is None:
        return step
    gradients_s, read_s = moved_in_backward(job, offload)
    return replace(
        step, offload_s=gradients_s, read_s=read_s / GATHERS,
        stage_s=optimizer_stage(job, offload), pipelined=offload.pipelined,
    )  # fmt: skip


def play_data_parallel(step: DataParallelStep) -> Record:
    """Play a step; it ends with the last span of the record."""
    return _World(step).play()


class _World:
    """The engines of a device and its host, and what each unit waits for."""

    def __init__(self, step: DataParallelStep) -> None:
        self._step = step
        self._env, self._record = simpy.Environment(), Record()
        self._compute, self._port = self._engine(COMPUTE), self._engine(PORT_OUT)
        self._compute.slow_beside(self._port, 1 - step.kappa)
        self._port.slow_beside(self._compute, step.eta)
        self._pcie, self._read = self._engine(PCIE), self._engine(READ)
        self._engines = {PCIE: self._pcie, READ: self._read, HOST: self._engine(HOST),
                         WRITE: self._engine(WRITE)}  # fmt: skip
        whole = sum(unit.parameters for unit in step.units)
        self._is_sharded = bool(step.gather_s or step.read_s)
        self._shares = [unit.parameters / whole for unit in step.units]
        self._read_room = self._room(2 * AHEAD)
        self._gather_room = self._room(AHEAD)
        self._uses = self._uses_of_step()
        self._is_read = [self._env.event() for _ in self._uses]
        self._is_gathered = [self._env.event() for _ in self._uses]

    def _engine(self, name: str) -> Engine:
        return Engine(self._env, self._record, name)

    def _room(self, units: int) -> simpy.Container:
        return simpy.Container(self._env, capacity=units + 1, init=units + 1)

    def _uses_of_step(self) -> list[tuple[str, int, Fields]]:
        """(forward or backward, unit, its names) in the order of compute."""
        forward = list(enumerate(self._step.units))
        return [
            (kind, index, (("micro_batch", micro_batch), ("unit", unit.name)))
            for micro_batch in range(self._step.micro_batches)
            for kind, order in (("forward", forward), ("backward", forward[::-1]))
            for index, unit in order
        ]

    def play(self) -> Record:
        if self._is_sharded:
            self._env.process(self._read_all())
            self._env.process(self._gather_all())
        self._env.process(self._run())
        self._env.run()
        received = [replace(span, engine=PORT_IN) for span in self._record.of(PORT_OUT)]
        self._record.spans += received
        return self._record

    def _read_all(self) -> Process:
        for use, (_, unit, fields) in enumerate(self._uses):
            yield self._read_room.get(1)
            seconds = self._step.read_s * self._shares[unit]
            if seconds:
                yield from self._read.work("read_weights", seconds, 0.0, fields)
            self._is_read[use].succeed()

    def _gather_all(self) -> Process:
        """All but what compute waits for of each gather."""
        hidden = (1 - self._step.open_ratio) * self._step.gather_s
        for use, (_, unit, fields) in enumerate(self._uses):
            yield self._is_read[use]
            yield self._gather_room.get(1)
            yield from self._exchange("gather", hidden * self._shares[unit], fields)
            self._is_gathered[use].succeed()
            yield self._read_room.put(1)

    def _run(self) -> Process:
        step = self._step
        hidden: list[simpy.Process] = []
        for use, (kind, unit, fields) in enumerate(self._uses):
            yield from self._wait_for_weights(use)
            if use:  # what compute does not wait for begins with the next unit's
                hidden += self._go_on(use - 1)
            one = step.units[unit]
            seconds = one.forward_s if kind == "forward" else one.backward_s
            yield from self._compute.work(kind, seconds, 1.0, fields)
            if self._reduces(use):
                open_s = step.open_ratio * step.reduce_s * self._shares[unit]
                yield from self._exchange("reduce", open_s, fields)
        yield self._env.all_of([*hidden, *self._go_on(len(self._uses) - 1)])
        yield from self._optimize()

    def _wait_for_weights(self, use: int) -> Process:
        if self._is_sharded:
            _, unit, fields = self._uses[use]
            yield self._is_gathered[use]
            open_s = self._step.open_ratio * self._step.gather_s * self._shares[unit]
            yield from self._exchange("gather", open_s, fields)

    def _reduces(self, use: int) -> bool:
        """True if a use ends with gradients that are reduced."""
        micro_batch = use // (2 * len(self._step.units))
        is_last = micro_batch == self._step.micro_batches - 1
        return self._uses[use][0] == "backward" and (is_last or not self._step.reduces_last)

    def _go_on(self, use: int) -> list[simpy.Process]:
        """A unit was computed: its weights make room, and the rest of its reduction begins."""
        if self._is_sharded:
            self._gather_room.put(1)
        return [self._env.process(self._reduce(use))] if self._reduces(use) else []

    def _reduce(self, use: int) -> Process:
        """The rest of the reduction of a unit's gradients, and their way to the host."""
        _, unit, fields = self._uses[use]
        step, share = self._step, self._shares[unit]
        hidden = 1 - step.open_ratio
        yield from self._exchange("reduce", hidden * step.reduce_s * share, fields)
        if step.offload_s:
            yield from self._pcie.work("offload", step.offload_s * share, 0.0, fields)

    def _exchange(self, job: str, seconds: float, fields: Fields) -> Process:
        if seconds:
            yield from self._port.work(job, seconds, seconds, fields)

    def _optimize(self) -> Process:
        """On the device; or the host's stage, unit by unit."""
        if self._step.optimizer_s:
            yield from self._compute.work("optimizer", self._step.optimizer_s)
        stages = [self._stage(unit) for unit in range(len(self._step.units))]
        if self._step.pipelined:
            yield self._env.all_of([self._env.process(stage) for stage in stages])
        else:
            for stage in stages:
                yield from stage

    def _stage(self, unit: int) -> Process:
        fields = (("unit", self._step.units[unit].name),)
        for resource, engine, job in _STAGE:
            seconds = self._step.stage_s.get(resource, 0.0) * self._shares[unit]
            if seconds:
                yield from self._engines[engine].work(job, seconds, 0.0, fields)

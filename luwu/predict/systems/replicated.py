"""A step of data parallel training with a whole model on each device: DDP, and sums in the network.

    R1  DDP      compute and an all-reduce of the gradients at once (V1), then Adam
    R2  ATP      the same, by a switch that sums: each byte goes up and comes down once

The share of the link that a host's software reaches with in-network sums is fitted: switches of
this kind sum integers that hosts convert from floats. Sources: DisDP's comparison with ATP (C9).
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.predict.hardware.curves import Notes
from luwu.predict.hardware.software import fitted
from luwu.predict.model.collectives import ring_all_reduce, switch_all_reduce
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.predict.model.operators import Operators
from luwu.predict.model.overlap import KAPPA, overlapped
from luwu.predict.model.placement import network_path
from luwu.predict.systems.training import OPTIMIZER_BYTES
from luwu.predict.systems.zero import kept_rate, sharded_path


@dataclass(frozen=True, slots=True)
class Reduction:
    """The sum of all gradients, once per step."""

    seconds: float
    """Without compute beside it."""
    kappa: float
    eta: float
    """What it takes of compute, and what compute leaves of it, while both run (V1)."""


def ring_reduction(job: TrainingJob) -> Reduction:
    """By the devices themselves, in a ring (R1)."""
    gradients = job.software.gradient_bytes * job.model.parameters
    seconds = ring_all_reduce(job.devices, gradients, sharded_path(job))
    return Reduction(seconds, KAPPA if job.devices > 1 else 0.0, kept_rate(job))


def switch_reduction(job: TrainingJob) -> Reduction:
    """By a switch that hands the sum back (R2)."""
    if job.devices == 1:
        return Reduction(0.0, 0.0, 1.0)
    gradients = job.software.gradient_bytes * job.model.parameters
    path = network_path(job.network)
    seconds = switch_all_reduce(1, gradients, path, fitted("atp_share") * path.rate)
    return Reduction(seconds, 0.0, 1.0)


def predict_replicated_step(job: TrainingJob) -> StepTime:
    """The time of a step of DDP (R1)."""
    return _step(job, ring_reduction(job))


def predict_switch_summed_step(job: TrainingJob) -> StepTime:
    """The time of a step whose gradients a switch sums (R2)."""
    return _step(job, switch_reduction(job))


def _step(job: TrainingJob, reduction: Reduction) -> StepTime:
    """Gradients are reduced once per step, beside the backward of its last micro-batch."""
    notes = Notes()
    operators: Operators = operators_of(job, notes)
    compute = compute_time(job, operators)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    backward = sum(compute.values()) * 2 / 3
    hidden = overlapped(backward, reduction.seconds, kappa=reduction.kappa, eta=reduction.eta)
    parts["exchange"] = hidden.exposed
    parts["optimizer"] = operators.passes(job.model.parameters * OPTIMIZER_BYTES)
    return StepTime(parts=parts, micro_batches=m, notes=notes)

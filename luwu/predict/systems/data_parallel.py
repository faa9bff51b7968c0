"""A step of data parallel training: ZeRO-3 and FSDP, states in hosts, DDP, and sums in a switch.

    Z1  bytes on the wire     (gathers * 2 + gradient) Psi (N - 1)/N for each micro-batch and rank
    Z2  a micro-batch         compute and exchange at once (V1, V2), or what of the exchange the
                              framework leaves in the open, if that is more; and the first gather
                              and the last reduction, which nothing hides
    Z3  a step                micro-batches one after the other, then Adam on a share

Weights are gathered for forward and again for backward; where forward is recomputed, they are
there already. Their carrier depends on the ring: one that goes through all ports of a host in
parallel has their sum, a flat one has one of them. Source: Rajbhandari et al. arXiv 1910.02054;
rows of SC'21, table 2.

    U1  PCIe          gradients down, weights up, of a device's share, each direction at once
    U2  optimizer     Adam on the processors (H1), of the share of a host's devices
    U3  drives        12 bytes per parameter of that share read and written, and the 16-bit weights
                      read for each gather where they are on drives too
    U4  a step        micro-batches as ZeRO-3 (Z2), then the optimizer stage, which is not hidden
    U5  its stage     U1 (up), U2 and U3, one after the other, which is DeepSpeed's default; in a
                      pipeline, the longest of them

Sources: arXiv 2101.06840 and 2104.07857; that the optimizer stage is exposed by default, an
independent study of GPUs that idle 40 to 70 % of a step.

    R1  DDP      compute and an all-reduce of the gradients at once (V1), then Adam
    R2  ATP      the same, by a switch that sums: each byte goes up and comes down once

The share of the link that a host's software reaches with in-network sums is fitted: switches of
this kind sum integers that hosts convert from floats. Sources: DisDP's comparison with ATP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import STATE_BYTES, Host
from luwu.predict.hardware.software import fitted
from luwu.predict.model.collectives import (
    KAPPA,
    Path,
    eta,
    exposed_s,
    ring_all_gather,
    ring_all_reduce,
    switch_all_reduce,
)
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import WIRE_BYTES, compute_time, operators_of
from luwu.predict.model.placement import network_path, placed, ring_path
from luwu.predict.model.traffic import GATHERS
from luwu.predict.systems.training import OPTIMIZER_BYTES


def predict_sharded_step(job: TrainingJob) -> StepTime:
    """The time of a step of ZeRO-3 or FSDP (Z3)."""
    operators = operators_of(job)
    model, path = job.model, sharded_path(job)
    compute = compute_time(job, operators)
    gradient = job.software.gradient_bytes
    gathered = (GATHERS * WIRE_BYTES + gradient) * model.parameters
    exchange = ring_all_gather(job.devices, gathered, path)  # Z1
    shown = exposed_s(sum(compute.values()), exchange, kappa=KAPPA, eta=kept_rate(job))
    ends = ring_all_gather(job.devices, (WIRE_BYTES + gradient) * model.layer_parameters, path)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    exposed = max(shown, job.software.exposed_gathers * exchange)
    parts["exchange"] = m * (exposed + ends)
    parts["optimizer"] = operators.passes(model.parameters * OPTIMIZER_BYTES / job.devices)
    return StepTime(parts=parts, micro_batches=m, notes=operators.notes)


def kept_rate(job: TrainingJob) -> float:
    """Share of its rate that an exchange among all devices keeps beside compute (V2)."""
    return 1.0 if job.software.ring == "flat" else eta(job.devices)


def sharded_path(job: TrainingJob) -> Path:
    """A rank's path in the ring through all devices (G3)."""
    return ring_path(job, placed(job, job.devices, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where states go, on each host."""

    host: Host
    devices: int
    """Devices of a host."""
    to_disk: bool = False
    """ZeRO-Infinity: optimizer state on drives."""
    weights_to_disk: bool = False
    """And the 16-bit weights, which are read for every gather."""
    pipelined: bool = False
    """Reading, updating and writing overlap (`pipeline_read`, `pipeline_write`)."""

    def __post_init__(self) -> None:
        if self.weights_to_disk and not self.to_disk:
            raise ConfigError("weights_to_disk: only with to_disk, as their states are larger")


def predict_offload_step(job: TrainingJob, offload: Offload) -> StepTime:
    """The time of a step (U4). Raises ConfigError where states do not fit a host."""
    _check_memory(job, offload)
    sharded = predict_sharded_step(job)
    resources = optimizer_stage(job, offload)
    parts = {
        name: seconds for name, seconds in sharded.parts.items()
        if name != "optimizer"
    }  # fmt: skip
    moved = job.micro_batches * sum(moved_in_backward(job, offload))
    computing = sum(seconds for name, seconds in parts.items() if name != "exchange")
    parts["offload in backward"] = max(0.0, moved - computing)
    stage = max if offload.pipelined else sum
    parts["optimizer stage"] = stage(resources.values())
    busy = {"compute": computing, "exchange": parts["exchange"], **resources}
    return StepTime(
        parts=parts, micro_batches=job.micro_batches, notes=sharded.notes, resources=busy
    )


def moved_in_backward(job: TrainingJob, offload: Offload) -> tuple[float, float]:
    """Seconds of a micro-batch: gradients down PCIe (U1), weights from drives for gathers (U3)."""
    share = _share(job, offload)
    gradients = job.software.gradient_bytes * share / offload.devices / job.device.host_rate
    gathers = GATHERS * WIRE_BYTES * share if offload.weights_to_disk else 0.0
    return gradients, offload.host.read(gathers)


def optimizer_stage(job: TrainingJob, offload: Offload) -> dict[str, float]:
    """Seconds of each resource in the optimizer stage (U5), for a host's share of parameters."""
    host, share = offload.host, _share(job, offload)
    stage = {
        "PCIe": WIRE_BYTES * share / offload.devices / job.device.host_rate,
        "processor": host.adam(share),
    }
    if offload.to_disk:
        state = STATE_BYTES * share
        weights = WIRE_BYTES * share if offload.weights_to_disk else 0.0
        stage["disk read"] = host.read(state)
        stage["disk write"] = host.write(state + weights)
    return stage


def _share(job: TrainingJob, offload: Offload) -> float:
    """Parameters of a host."""
    return job.model.parameters * offload.devices / job.devices


def _check_memory(job: TrainingJob, offload: Offload) -> None:
    """Check that the resident data of a host fits in its memory."""
    share = _share(job, offload)
    kept = 0.0 if offload.to_disk else STATE_BYTES * share
    kept += 0.0 if offload.weights_to_disk else WIRE_BYTES * share
    if kept > offload.host.memory_bytes:
        has, needs = offload.host.memory_bytes / 1e9, kept / 1e9
        raise ConfigError(
            f"memory_bytes: a host has {has:.0f} GB, and {needs:.0f} GB of states stay in it; put "
            "more on drives (to_disk, weights_to_disk), or take "
            f"{math.ceil(job.devices * needs / has)} devices"
        )


def predict_replicated_step(job: TrainingJob) -> StepTime:
    """The time of a step of DDP: devices sum the gradients in a ring (R1)."""
    seconds = ring_all_reduce(job.devices, _gradient_bytes(job), sharded_path(job))
    return _step(job, seconds, kappa=KAPPA if job.devices > 1 else 0.0, eta=kept_rate(job))


def predict_switch_summed_step(job: TrainingJob) -> StepTime:
    """The time of a step whose gradients a switch sums, and hands back (R2)."""
    path, seconds = network_path(job.network), 0.0
    if job.devices > 1:
        rate = fitted("atp_share") * path.rate
        seconds = switch_all_reduce(1, _gradient_bytes(job), path, rate)
    return _step(job, seconds, kappa=0.0, eta=1.0)


def _gradient_bytes(job: TrainingJob) -> float:
    return job.software.gradient_bytes * job.model.parameters


def _step(job: TrainingJob, reduction_s: float, *, kappa: float, eta: float) -> StepTime:
    """Gradients are summed once per step, beside the backward of its last micro-batch (V1)."""
    operators = operators_of(job)
    compute = compute_time(job, operators)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    backward = sum(compute.values()) * 2 / 3
    parts["exchange"] = exposed_s(backward, reduction_s, kappa=kappa, eta=eta)
    parts["optimizer"] = operators.passes(job.model.parameters * OPTIMIZER_BYTES)
    return StepTime(parts=parts, micro_batches=m, notes=operators.notes)

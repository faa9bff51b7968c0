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
    U3  drives        12 bytes per parameter of that share read and written
    U4  a step        micro-batches as ZeRO-3 (Z2), no less than their gradients need (U1, down);
                      then the optimizer stage, which is not hidden
    U5  its stage     U1 (up), U2 and U3, one after the other, which is DeepSpeed's default

Sources: arXiv 2101.06840 and 2104.07857; that the optimizer stage is exposed by default, an
independent study of GPUs that idle 40 to 70 % of a step.

    R1  DDP      compute and an all-reduce of the gradients at once (V1), then Adam
    R2  ATP      the same, by a switch that sums: 2 a + S/B, as each byte goes up and down once

The share of the link that a host's software reaches with in-network sums is fitted: switches of
this kind sum integers that hosts convert from floats. Sources: DisDP's comparison with ATP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import STATE_BYTES, Host
from luwu.predict.hardware.software import fitted
from luwu.predict.model import collectives
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import WIRE_BYTES, compute_time, operators_of
from luwu.predict.model.placement import group_of, network_path, ring_path
from luwu.predict.model.traffic import GATHERS
from luwu.predict.systems.training import OPTIMIZER_BYTES


def predict_sharded_step(job: TrainingJob) -> StepTime:
    """The time of a step of ZeRO-3 or FSDP (Z3)."""
    model, path = job.model, ring_path(job, group_of(job, "all"))
    gradient, m = job.software.gradient_bytes, job.micro_batches
    gathered = (GATHERS * WIRE_BYTES + gradient) * model.parameters
    exchange = collectives.ring_all_gather(job.devices, gathered, path)  # Z1
    first_and_last = (WIRE_BYTES + gradient) * model.layer_parameters
    ends = collectives.ring_all_gather(job.devices, first_and_last, path)

    def exposed(compute_s: float) -> float:
        kappa, eta = collectives.KAPPA, kept_rate(job)
        shown = collectives.exposed_s(compute_s, exchange, kappa=kappa, eta=eta)
        return m * (max(shown, job.software.exposed_gathers * exchange) + ends)

    return _step(job, exposed, shards=job.devices)


def kept_rate(job: TrainingJob) -> float:
    """Share of its rate that an exchange among all devices keeps beside compute (V2)."""
    return 1.0 if job.software.ring == "flat" else collectives.eta(job.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where states go, on each host."""

    host: Host
    devices: int
    """Devices of a host."""
    to_disk: bool = False
    """ZeRO-Infinity: optimizer state on drives."""


def predict_offload_step(job: TrainingJob, offload: Offload) -> StepTime:
    """The time of a step (U4). Raises ConfigError where states do not fit a host."""
    host, share = offload.host, job.model.parameters * offload.devices / job.devices
    _check_memory(job, offload, share)
    sharded = predict_sharded_step(job)
    resources = {  # of the optimizer stage (U5)
        "PCIe": WIRE_BYTES * share / offload.devices / job.device.host_rate,
        "processor": host.adam(share),
    }
    if offload.to_disk:
        resources["disk read"] = host.read(STATE_BYTES * share)
        resources["disk write"] = host.write(STATE_BYTES * share)
    parts = dict(sharded.parts)
    del parts["optimizer"]
    gradients_s = job.software.gradient_bytes * share / offload.devices / job.device.host_rate
    computing = sum(seconds for name, seconds in parts.items() if name != "exchange")
    left_s = job.micro_batches * gradients_s - computing - parts["exchange"]
    parts["offload in backward"] = max(0.0, left_s)  # U1
    parts["optimizer stage"] = sum(resources.values())
    busy = {"compute": computing, "exchange": parts["exchange"], **resources}
    return StepTime(parts=parts, notes=sharded.notes, resources=busy)


def _check_memory(job: TrainingJob, offload: Offload, share: float) -> None:
    """Check that the resident data of a host, with so many parameters, fits in its memory."""
    kept = (WIRE_BYTES + (0 if offload.to_disk else STATE_BYTES)) * share
    if kept > offload.host.memory_bytes:
        has, needs = offload.host.memory_bytes / 1e9, kept / 1e9
        raise ConfigError(
            f"memory_bytes: a host has {has:.0f} GB, and {needs:.0f} GB of states stay in it; take "
            f"{math.ceil(job.devices * needs / has)} devices"
            f"{'' if offload.to_disk else ', or zero-infinity, which puts those of Adam on drives'}"
        )


def predict_replicated_step(job: TrainingJob) -> StepTime:
    """The time of a step of DDP: devices sum the gradients in a ring (R1)."""
    path, nbytes = ring_path(job, group_of(job, "all")), _gradient_bytes(job)
    seconds = collectives.ring_all_reduce(job.devices, nbytes, path)
    kappa = collectives.KAPPA if job.devices > 1 else 0.0
    return _summed_step(job, seconds, kappa=kappa, eta=kept_rate(job))


def predict_switch_summed_step(job: TrainingJob) -> StepTime:
    """The time of a step whose gradients a switch sums, and hands back (R2)."""
    path, seconds = network_path(job.network), 0.0
    if job.devices > 1:
        rate = fitted("atp_share") * path.rate
        seconds = 2 * path.latency_s + _gradient_bytes(job) / rate  # R2
    return _summed_step(job, seconds, kappa=0.0, eta=1.0)


def _gradient_bytes(job: TrainingJob) -> float:
    return job.software.gradient_bytes * job.model.parameters


def _summed_step(job: TrainingJob, reduction_s: float, *, kappa: float, eta: float) -> StepTime:
    """Gradients are summed once per step, beside the backward of its last micro-batch (V1)."""

    def exposed(compute_s: float) -> float:
        return collectives.exposed_s(compute_s * 2 / 3, reduction_s, kappa=kappa, eta=eta)

    return _step(job, exposed, shards=1)


def _step(job: TrainingJob, exposed: Callable[[float], float], *, shards: int) -> StepTime:
    """A step with what is exposed beside a micro-batch's compute, and Adam on a share."""
    operators = operators_of(job)
    compute = compute_time(job, operators)
    parts = {name: job.micro_batches * seconds for name, seconds in compute.items()}
    parts["exchange"] = exposed(sum(compute.values()))
    parts["optimizer"] = operators.passes(job.model.parameters * OPTIMIZER_BYTES / shards)
    return StepTime(parts=parts, notes=operators.notes)

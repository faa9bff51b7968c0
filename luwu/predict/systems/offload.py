"""A step of ZeRO-Offload and ZeRO-Infinity: optimizer state in hosts' memory, or on their drives.

    U1  PCIe          gradients down, weights up, of a device's share, each direction at once
    U2  optimizer     Adam on the processors (H1), of the share of a host's devices
    U3  drives        12 bytes per parameter of that share read and written, and the 16-bit weights
                      read for each gather where they are on drives too
    U4  a step        micro-batches as ZeRO-3 (Z2), then the optimizer stage, which is not hidden
    U5  its stage     U1 (up), U2 and U3, one after the other, which is DeepSpeed's default; in a
                      pipeline, the longest of them

Sources: arXiv 2101.06840 and 2104.07857; that the optimizer stage is exposed by default, an
independent study of GPUs that idle 40 to 70 % of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hosts import STATE_BYTES, Host
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.traffic import GATHERS
from luwu.predict.systems.zero import predict_sharded_step


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
        if self.devices < 1:
            raise ConfigError(f"devices of a host: {self.devices}, at least 1")
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

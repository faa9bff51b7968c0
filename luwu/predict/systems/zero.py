"""A step of data parallel training whose states are sharded: ZeRO-3 and FSDP.

    Z1  bytes on the wire     (gathers * 2 + gradient) Psi (N - 1)/N for each micro-batch and rank
    Z2  a micro-batch         compute and exchange at once (V1, V2), or what of the exchange the
                              framework leaves in the open, if that is more; and the first gather
                              and the last reduction, which nothing hides
    Z3  a step                micro-batches one after the other, then Adam on a share

Weights are gathered for forward and again for backward; where forward is recomputed, they are
there already. Their carrier depends on the ring: one that goes through all ports of a host in
parallel has their sum, a flat one has one of them. Source: Rajbhandari et al. arXiv 1910.02054;
rows of SC'21, table 2.
"""

from __future__ import annotations

from luwu.predict.hardware.curves import Notes
from luwu.predict.model.collectives import Path, ring_all_gather
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.overlap import KAPPA, eta, overlapped
from luwu.predict.model.placement import placed, ring_path
from luwu.predict.model.traffic import GATHERS
from luwu.predict.systems.training import OPTIMIZER_BYTES


def predict_sharded_step(job: TrainingJob) -> StepTime:
    """The time of a step of ZeRO-3 or FSDP (Z3)."""
    notes = Notes()
    operators = operators_of(job, notes)
    model, path = job.model, sharded_path(job)
    compute = compute_time(job, operators)
    gradient = job.software.gradient_bytes
    exchange = exchange_time(job)
    hidden = overlapped(sum(compute.values()), exchange, kappa=KAPPA, eta=kept_rate(job))
    ends = ring_all_gather(job.devices, (WIRE_BYTES + gradient) * model.layer_parameters, path)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    exposed = max(hidden.exposed, job.software.exposed_gathers * exchange)
    parts["exchange"] = m * (exposed + ends)
    parts["optimizer"] = operators.passes(model.parameters * OPTIMIZER_BYTES / job.devices)
    return StepTime(parts=parts, micro_batches=m, notes=notes)


def exchange_time(job: TrainingJob) -> float:
    """Seconds of the gathers and the reduction of a micro-batch, without compute beside (Z1)."""
    nbytes = (GATHERS * WIRE_BYTES + job.software.gradient_bytes) * job.model.parameters
    return ring_all_gather(job.devices, nbytes, sharded_path(job))


def kept_rate(job: TrainingJob) -> float:
    """Share of its rate that an exchange among all devices keeps beside compute (V2)."""
    return 1.0 if job.software.ring == "flat" else eta(job.devices)


def sharded_path(job: TrainingJob) -> Path:
    """A rank's path in the ring through all devices (G3)."""
    return ring_path(job, placed(job, job.devices, 1))

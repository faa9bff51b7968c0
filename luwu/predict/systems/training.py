"""A step of 3-D parallel training: tensor and sequence, pipeline, context and data parallel ranks.

    T3  a stage's micro-batch its layers (`layers.py`), forward, backward, recomputation, and the
                              exposed exchanges of its ranks (X4, J3)
    T4  a step                m stages + (p - 1)/v stages of the bubble + T5 + data parallel
                              exchanges + optimizer, never less than its port needs (P2), + T6
    T5  sends that show       2 (p - 1) (1 + (m - 1)/p) in 1F1B, which waits all along;
                              2 (p v - 1) if interleaved, where the ends wait, and of the other
                              2 m v those that are not hidden
    T6  a step's wait         of n devices for the slowest: w ln n seconds, however long the step,
                              or where that is less, a share of the step times ln n. Where states
                              are sharded, published steps do not grow so

m is the number of micro-batches, p of stages, v of parts of the model that a stage has. The last
stage also has the output layer, in place of a layer or in addition, and the others wait for it.
Gradients are reduced over the data and the context parallel ranks, which have the same weights;
those of experts over their copies (J6).
`placement.py` decides what stays in a domain and what crosses the network.
Sources: Narayanan et al. SC'21 (T3, T4, bubble).
"""

from __future__ import annotations

import math

from luwu.predict.hardware.software import fitted
from luwu.predict.model import collectives, layers, placement, traffic
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import LayerTime, Operators

OPTIMIZER_BYTES = 30
"""That Adam passes over for a parameter: master, two moments, gradient and the 16-bit copy."""


def predict_step(job: TrainingJob) -> StepTime:
    """The time of a step (T4). Raises ConfigError for a device that lacks a precision."""
    operators = layers.operators_of(job)
    m = job.micro_batches
    stage, head = _stage(job, operators)
    parts = {name: m * seconds for name, seconds in stage.items()}
    spared = sum(stage.values()) / job.stage_layers if job.ends_as_layers else 0.0
    parts["output layer"] = m * max(0.0, head - spared)
    parts["bubble"] = (job.pipeline - 1) / job.virtual * sum(stage.values())
    for name in ("pipeline exchange", "data exchange"):
        parts[name] = exchange_time(job, name)
    updated = layers.own_parameters(job).updated(job)
    parts["optimizer"] = operators.passes(updated * OPTIMIZER_BYTES)
    waits, bound_by = waiting_for(parts, traffic.three_d_busy(job))
    parts |= waits
    wait_s = min(fitted("step_wait_s"), fitted("step_wait_share") * sum(parts.values()))
    parts["straggling"] = wait_s * math.log(job.devices)
    return StepTime(parts=parts, notes=operators.notes, bound_by=bound_by)


def waiting_for(
    parts: dict[str, float], busy: dict[str, float]
) -> tuple[dict[str, float], str]:  # fmt: skip
    """What a step of these parts still waits for (P2), and the name of that resource, if any."""
    name = max(busy, key=lambda each: busy[each])
    left = busy[name] - sum(parts.values())
    return ({f"waiting for {name}": left}, name) if left > 0 else ({}, "")


def _stage(job: TrainingJob, operators: Operators) -> tuple[dict[str, float], float]:
    """Time of a micro-batch (T3): the parts of a stage in the middle, and the output layer."""
    layer = layers.layer_time(job, operators)
    whole = layers.compute_time(job, operators, layer)
    head = whole.pop("output layer")
    share = job.stage_layers / job.model.layers
    stage = {name: seconds * share for name, seconds in whole.items()}
    return stage | _stage_exchanges(job, layer), head


def exchange_time(job: TrainingJob, name: str) -> float:
    """One of the exchanges among the parts of `predict_step`, without the others."""
    if name == "pipeline exchange":
        return _shown_sends(job) * _send_time(job) if job.pipeline > 1 else 0.0
    if name == "data exchange":
        return 0.0 if job.software.hides else _data_exchange(job)
    layer = layers.layer_time(job, layers.operators_of(job))
    return job.micro_batches * _stage_exchanges(job, layer)[name]


def _stage_exchanges(job: TrainingJob, layer: LayerTime) -> dict[str, float]:
    """Exchanges of a stage's micro-batch: of tensor parallel ranks, without what is behind
    products, of keys and values that attention waits for, and of experts."""
    shown, attention = job.software.tensor_shown, layer.attention
    context = traffic.context_exchange(job, attention, layers.attention_backward(job) * attention)
    return {
        "tensor exchange": job.stage_layers * traffic.all_reduces(job) * shown * layer.exchange,
        "context exchange": job.stage_layers * context,
        "expert exchange": job.stage_layers * layers.expert_exchange(job),
    }


def _shown_sends(job: TrainingJob) -> float:
    """Sends between stages that the step waits for (T5)."""
    p, v, m = job.pipeline, job.virtual, job.micro_batches
    if v == 1:
        return 2 * (p - 1) * (1 + (m - 1) / p)
    ends = 2 * (p * v - 1)
    return ends if job.software.hides else max(ends, 2 * m * v)


def _send_time(job: TrainingJob) -> float:
    """Activations of a micro-batch from a stage to the next, the mean of all of a way (G2)."""
    stages, nbytes = placement.group_of(job, "pipeline"), traffic.stage_bytes(job)
    back = (job.virtual - 1) * (stages.domains > 1)  # from the last stage to the first
    crossings = (stages.domains - 1) * job.virtual + back
    inside = stages.size * job.virtual - 1 - crossings
    leaving = placement.leaving_path(job, stages, traffic.BOTH_ENDS)
    whole = crossings * collectives.send(nbytes, leaving)
    whole += inside * collectives.send(nbytes, placement.domain_path(job.device))
    return whole / (crossings + inside)


def _data_exchange(job: TrainingJob) -> float:
    """Gradients are reduced, and parameters gathered where the optimizer is sharded."""
    own, gradient, seconds = layers.own_parameters(job), job.software.gradient_bytes, 0.0
    back = layers.WIRE_BYTES if job.software.shards_optimizer else gradient
    for parameters, ranks in ((own.shared, "gradient"), (own.experts, "copies")):
        if parameters:
            group = placement.group_of(job, ranks)
            path = placement.ring_path(job, group)
            reduced_s = collectives.ring_all_gather(group.size, parameters * gradient, path)
            back_s = collectives.ring_all_gather(group.size, parameters * back, path)
            seconds += reduced_s + back_s
    return seconds

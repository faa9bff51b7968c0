"""Memory of a device in training.

    Y1  states of 3-D training    per parameter 2 bytes of weights, those of a gradient that is
                                  reduced (4 or 2), and 12 of Adam
    Y2  activations of a layer    what backward needs of it, unless it is recomputed; of experts
                                  also what goes in and what comes out, for each copy of a token; in
                                  fp8, what products take is kept in a byte
    Y3  of stage k of p           its layers, without those in hosts, for p - k micro-batches; if
                                  interleaved, of v parts, for (p v + p - 1 - 2 k)/v
    Y4  sharded states            16 bytes per parameter over all ranks; a window of whole layers,
                                  which DeepSpeed bounds in parameters

Sources: Korthikanti et al. arXiv 2205.05198 (Y1 to Y3; its bars imply 18 bytes); Rajbhandari et al.
arXiv 1910.02054 (Y4); Transformer Engine (fp8); DeepSpeed's defaults of stage 3. Without
embeddings, as in these sources: they are on one stage only.
"""

from __future__ import annotations

from luwu.predict.hardware.hardware import STATE_BYTES
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import WIRE_BYTES, layer_activation_bytes, own_parameters

WHOLE_STATE_BYTES = 16
SHARED_BYTES = {"zero3": WHOLE_STATE_BYTES, "zero-offload": 2 * WIRE_BYTES}
"""By system: bytes of state a parameter that are divided among the devices."""
WINDOW_LAYERS = 3
"""Whole at once where states are sharded: the one in use, the next, and the one that is reduced."""
LIVE_PARAMETERS = 1e9
"""That DeepSpeed keeps whole at once, or one matrix if that is larger; its two buckets, of what is
gathered next and what is reduced, are as large."""


def stage_memory(job: TrainingJob) -> tuple[float, float]:
    """States and activations of the fullest stage (Y1, Y3): the first, or the second, which has a
    layer more where the embedding takes the place of one."""
    stages = (0, 1) if job.ends_as_layers and job.pipeline > 2 else (0,)
    return max((_stage_memory(job, stage) for stage in stages), key=sum)


def _stage_memory(job: TrainingJob, stage: int) -> tuple[float, float]:
    own, software = own_parameters(job, embeddings=False), job.software
    both, shards = own.shared + own.experts, own.updated(job)
    gradients = software.gradient_bytes * (shards if software.shards_gradients else both)
    states = WIRE_BYTES * both + gradients + STATE_BYTES * shards
    p, v = job.pipeline, job.virtual
    in_flight = (p * v + p - 1 - 2 * stage) / v if v > 1 else p - stage
    in_flight *= min(1.0, job.micro_batches / p)
    layers = job.stage_layers - (1 if job.ends_as_layers and stage == 0 else 0)
    kept = layers * (1 - job.layers_in_hosts / job.model.layers)
    moving = 1 if job.layers_in_hosts else 0
    states *= layers * p / job.model.layers
    return states, layer_activation_bytes(job) * (kept * in_flight + moving)


def state_bytes(system: str, job: TrainingJob) -> float:
    """States of a device that is no stage: all, or its share and the whole layers in use (Y4)."""
    model, layers = job.model, WINDOW_LAYERS * float(job.model.layer_parameters)
    if system in ("ddp", "atp"):
        return WHOLE_STATE_BYTES * float(model.parameters)
    if job.software.kernels.startswith("deepspeed"):
        largest = max(LIVE_PARAMETERS, float(model.hidden * model.ffn))
        layers = min(layers, largest + LIVE_PARAMETERS)
    share = SHARED_BYTES.get(system, 0) * model.parameters / job.devices
    return share + 2 * WIRE_BYTES * layers

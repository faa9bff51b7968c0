"""Memory of a device in training.

    Y1  states of 3-D training    18 bytes per parameter: 2 of weights, 4 of gradients, 12 of Adam
    Y2  activations of a layer    what backward needs of it, unless it is recomputed; of experts
                                  also what goes in and what comes out, for each copy of a token
    Y3  of a first stage          as many layers' worth as the model has; more, if interleaved
    Y4  sharded states            16 bytes per parameter over all ranks; a window of whole layers

Sources: Korthikanti et al. arXiv 2205.05198 (Y1 to Y3; its bars imply 18 bytes); Rajbhandari et al.
arXiv 1910.02054 (Y4). Without embeddings, as in these sources: they are on one stage only.
"""

from __future__ import annotations

from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import WIRE_BYTES, own_parameters

STATE_BYTES = 18
SHARDED_STATE_BYTES = 16
WINDOW_LAYERS = 3
"""Whole at once where states are sharded: the one in use, the next, and the one that is reduced."""
SCORE_BYTES = 5
"""Bytes of a saved score: before and after softmax in 16 bits, and a mask."""


def state_bytes(job: TrainingJob) -> float:
    """Weights, gradients and optimizer state of the layers on one device (Y1)."""
    own = own_parameters(job, embeddings=False)
    both = own.shared + own.experts
    if not job.software.shards_optimizer:
        return STATE_BYTES * both
    shards = own.shared / (job.data * job.context) + own.experts / job.expert_copies
    return (STATE_BYTES - 12) * both + 12 * shards


def sharded_state_bytes(job: TrainingJob) -> float:
    """State of ZeRO-3 and FSDP, with the whole layers that are in use (Y4)."""
    window = WINDOW_LAYERS * 2 * WIRE_BYTES * job.model.layer_parameters
    return SHARDED_STATE_BYTES * job.model.parameters / job.devices + window


def replicated_state_bytes(job: TrainingJob) -> float:
    """State of a device with a whole model: nothing is sharded."""
    return SHARDED_STATE_BYTES * float(job.model.parameters)


def activation_bytes(job: TrainingJob) -> float:
    """Activations of the first stage, which saves most (Y3)."""
    stages = job.pipeline
    interleaved = 1 + (stages - 1) / (stages * job.virtual) if job.virtual > 1 else 1.0
    in_flight = min(stages, job.micro_batches)  # begun by the first stage, and not ended
    return layer_activation_bytes(job) * job.model.layers / stages * in_flight * interleaved


def layer_activation_bytes(job: TrainingJob) -> float:
    """Activations of one layer and one micro-batch (Y2)."""
    model = job.model
    tokens = job.own_tokens
    whole_share = job.tensor if job.sequence_parallel else 1
    if job.recompute == "full":
        return WIRE_BYTES * tokens * model.hidden / whole_share
    masks = 2 * model.hidden if model.dropout else 0
    whole: float = 8 * model.hidden + masks
    heads = 2 * model.head_width * (2 * model.heads + 2 * model.kv_heads)
    copies = model.experts_used * job.load
    mlp = WIRE_BYTES * model.ffn * model.mlp_matrices * copies
    if model.experts > 1:
        whole += 2 * WIRE_BYTES * model.hidden * copies
    kept = tokens * (whole / whole_share + (heads + mlp) / job.tensor)
    if job.recompute == "selective" or job.software.fused_attention:
        return kept
    return kept + SCORE_BYTES * tokens * job.sequence * model.heads / job.tensor

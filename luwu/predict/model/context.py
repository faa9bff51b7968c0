"""Exchanges of context parallel ranks: ring attention.

A sequence is shared by c ranks; each has the queries, keys and values of n of its tokens. Keys and
values go around: in each of c - 1 steps a rank sends the block that it has to the next one, while
it attends to that block. Backward they go around again, and with them their gradients, which begin
at the rank after the block's owner and arrive at the owner after c - 1 steps too.

    X1  a block       2 g/t d n elements, of g heads over t tensor parallel ranks, d wide each
    X2  forward       a rank sends (c - 1) blocks: (c - 1)/c of the keys and values of the sequence
    X3  backward      2 (c - 1) blocks: with gradients
    X4  exposed       (c - 1) times what V1 leaves of one send beside the attention of one block,
                      which is 1/c of the layer's; the last block's attention has no send beside it

A causal mask leaves the ranks equal work, as each has a piece of the sequence's beginning and one
of its end. Sources: Liu et al. arXiv 2310.01889 (ring attention); derived (X2 to X4).
"""

from __future__ import annotations

from luwu.predict.model.collectives import send
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.overlap import KAPPA, KAPPA_NETWORK, overlapped
from luwu.predict.model.placement import context_group, step_path

BACKWARD_BLOCKS = 2
"""Sent in each step: keys and values, and their gradients."""


def block_bytes(job: TrainingJob) -> float:
    """Bytes of the keys and values of one rank's tokens, of one micro-batch and layer (X1)."""
    n = job.micro_batch * job.sequence / job.context
    heads = max(1.0, job.model.kv_heads / job.tensor)
    return WIRE_BYTES * 2 * heads * job.model.head_width * n


def sent_bytes(job: TrainingJob) -> tuple[float, float]:
    """By a rank, of a layer and micro-batch: forward (X2), backward (X3)."""
    forward = (job.context - 1) * block_bytes(job)
    return forward, BACKWARD_BLOCKS * forward


def context_exchange(job: TrainingJob, attention: float, backward_attention: float) -> float:
    """Seconds of a layer and micro-batch in which attention waits for keys and values (X4).

    `attention` is of a layer's forward on one rank, in all its blocks; where forward is computed
    again, keys and values go around again.
    """
    if job.context == 1:
        return 0.0
    again = {"full": 1.0, "half": 0.5}.get(job.recompute, 0.0)
    if job.recompute == "selective" and not job.software.fused_attention:
        again = 1.0
    forward = _shown(job, attention, 1)
    return (1 + again) * forward + _shown(job, backward_attention, BACKWARD_BLOCKS)


def _shown(job: TrainingJob, attention: float, blocks: int) -> float:
    group = context_group(job)
    one = send(blocks * block_bytes(job), step_path(job, group))
    kappa = KAPPA if group.is_inside else KAPPA_NETWORK
    both = overlapped(attention / job.context, one, kappa=kappa, eta=1.0)
    return (job.context - 1) * both.exposed

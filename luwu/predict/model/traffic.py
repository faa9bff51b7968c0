"""Bytes that the busiest device sends in a step, by exchange: through its port, and in its domain.

    S13  sharded       m (gathers 2 + gradient) Psi (N - 1)/N over the rings; DDP 2 gradient Psi
                       (N - 1)/N once a step
    S14  3-D           gradients: (gradient + back) Psi/(t p) (n - 1)/n over the rings of n data and
                       context ranks, those of experts over their copies; a stage: P1; tensor ranks:
                       2 (D - 1)/D of each all-reduce over k, of D domains; context ranks: X2 and
                       X3; ranks of experts: J2, but for what stays inside
    P1   a stage       sends m v micro-batches to the next and as many to the one before, of 2 n h
                       bytes; the last sends m (v - 1) to the first, and the first back. Where a
                       domain has several stages in a row, only one of the two leaves it
    P2   a step        is never shorter than what one port sends takes, whatever overlaps
    P3   a shared port of d devices is busy with what all of them send: what one sends counts by
                       max(1/d, s/k) of G5, over a device's part of the rate

m micro-batches, p stages of v parts. Sources: Narayanan et al. SC'21 (S14, P1); derived.

Ring attention: a sequence is shared by c ranks; each has the queries, keys and values of n of its
tokens. Keys and values go around: in each of c - 1 steps a rank sends the block that it has to the
next one, while it attends to that block. Backward they go around again, and with them their
gradients, which begin at the rank after the block's owner and arrive there after c - 1 steps too.

    X1  a block       2 g/t d n elements, of g heads over t tensor parallel ranks, d wide each
    X2  forward       a rank sends (c - 1) blocks: (c - 1)/c of the keys and values of the sequence
    X3  backward      2 (c - 1) blocks: with gradients
    X4  exposed       (c - 1) times what V1 leaves of one send beside the attention of one block,
                      which is 1/c of the layer's; the last block's attention has no send beside it

A causal mask leaves the ranks equal work, as each has a piece of the sequence's beginning and one
of its end. Sources: Liu et al. arXiv 2310.01889 (ring attention); derived (X2 to X4).
"""

from __future__ import annotations

from luwu.predict.model import layers, placement
from luwu.predict.model.collectives import KAPPA, KAPPA_NETWORK, exposed_s, send
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.placement import Group

BACKWARD_BLOCKS = 2
"""Sent in each step: keys and values, and their gradients."""


def block_bytes(job: TrainingJob) -> float:
    """Bytes of the keys and values of one rank's tokens, of one micro-batch and layer (X1)."""
    heads = max(1.0, job.model.kv_heads / job.tensor)
    return layers.WIRE_BYTES * 2 * heads * job.model.head_width * job.own_tokens


def sent_bytes(job: TrainingJob) -> tuple[float, float]:
    """By a rank, of a layer and micro-batch: forward (X2), backward (X3)."""
    forward = (job.context - 1) * block_bytes(job)
    return forward, BACKWARD_BLOCKS * forward


def context_exchange(job: TrainingJob, attention: float, backward_attention: float) -> float:
    """Seconds of a layer and micro-batch in which attention waits for keys and values (X4).

    `attention` is of a layer's forward on one rank, in all its blocks; where forward is computed
    again, keys and values go around again."""
    if job.context == 1:
        return 0.0
    again = job.again
    if job.recompute == "selective" and not job.software.fused_attention:
        again = 1.0
    forward = _shown(job, attention, 1)
    return (1 + again) * forward + _shown(job, backward_attention, BACKWARD_BLOCKS)


def _shown(job: TrainingJob, attention: float, blocks: int) -> float:
    group = placement.group_of(job, "context")
    one = send(blocks * block_bytes(job), placement.step_path(job, group))
    kappa = KAPPA if group.domains == 1 else KAPPA_NETWORK
    return (job.context - 1) * exposed_s(attention / job.context, one, kappa=kappa, eta=1.0)


GATHERS = 2
"""Of weights, in a micro-batch: forward and backward."""
BOTH_ENDS = 2
"""Stages of a domain that send out of it: its last one forward, its first one back."""


def stage_bytes(job: TrainingJob) -> float:
    """What a device sends of a micro-batch to the next stage; none of one stage."""
    shared = job.tensor if job.sequence_parallel else 1
    sent = layers.WIRE_BYTES * job.own_tokens * job.model.hidden / shared
    return sent if job.pipeline > 1 else 0.0


def all_reduces(job: TrainingJob) -> float:
    """All-reduces of tensor parallel ranks, of a layer and micro-batch: two forward, two backward,
    two if forward is recomputed; with sequence parallel ranks, an all-gather of activations."""
    return 4.0 + 2 * job.again + (0.5 if job.sequence_parallel else 0.0)


def ports(job: TrainingJob, group: Group) -> int:
    """Ports of a domain that a ring through the group uses at once."""
    return group.inside if job.software.ring == "hierarchical" else 1


def ring_bytes(job: TrainingJob, group: Group, nbytes: float) -> float:
    """That each port sends of a tensor that goes once around (S11, P3); none inside of a domain."""
    if group.domains == 1:
        return 0.0
    share = 1.0 if job.software.ring == "hierarchical" else placement.spread(job.network, group)
    return share * nbytes * (group.size - 1) / group.size / ports(job, group)


def whole_ring_bytes(job: TrainingJob, system: str) -> float:
    """Through each port, of rings through all devices: zero3 and what offloads, or ddp (S13)."""
    gradients = job.software.gradient_bytes * job.model.parameters
    gathered = GATHERS * layers.WIRE_BYTES * job.model.parameters
    nbytes = 2 * gradients if system == "ddp" else job.micro_batches * (gradients + gathered)
    return ring_bytes(job, placement.group_of(job, "all"), nbytes)


def three_d_bytes(job: TrainingJob) -> dict[str, float]:
    """Through each port, or a device's part of it (S14, P3), without what stays in domains."""
    rounds = job.micro_batches * job.stage_layers
    tensor, context, experts = (
        placement.group_of(job, ranks) for ranks in ("tensor", "context", "expert")
    )
    back = layers.WIRE_BYTES if job.software.shards_optimizer else job.software.gradient_bytes
    both, own = job.software.gradient_bytes + back, layers.own_parameters(job)
    found = {
        "tensor": _reduced_bytes(job) * 2 * (tensor.domains - 1) / tensor.domains / tensor.inside,
        "context": 0.0 if context.domains == 1
        else placement.spread(job.network, context) * rounds * sum(sent_bytes(job)),
        "expert": rounds * layers.all_to_alls(job) * layers.dispatched_bytes(job)
        * (experts.size - experts.inside) / experts.size,
        "data": ring_bytes(job, placement.group_of(job, "gradient"), own.shared * both)
        + ring_bytes(job, placement.group_of(job, "copies"), own.experts * both),
        "pipeline": placement.spread(job.network, placement.group_of(job, "pipeline"), BOTH_ENDS)
        * _sends(job, leaving=True) * stage_bytes(job),
    }  # fmt: skip
    return {name: nbytes for name, nbytes in found.items() if nbytes}


def _reduced_bytes(job: TrainingJob) -> float:
    """What all all-reduces of a stage's tensor parallel ranks are of."""
    each = layers.element_bytes(job) * job.own_tokens * job.model.hidden
    return job.micro_batches * job.stage_layers * all_reduces(job) * each


def _domain_bytes(job: TrainingJob) -> float:
    """Through each device's link to its domain, at least: what does not leave it."""
    inside, context = placement.group_of(job, "tensor").inside, 0.0
    if placement.group_of(job, "context").domains == 1:
        context = job.micro_batches * job.stage_layers * sum(sent_bytes(job))
    reduced = _reduced_bytes(job) * 2 * (inside - 1) / inside
    return reduced + context + _sends(job, leaving=False) * stage_bytes(job)


def _sends(job: TrainingJob, *, leaving: bool) -> int:
    """Micro-batches that a device in the middle sends out of its domain, or inside of it (P1)."""
    group, most = placement.group_of(job, "pipeline"), job.micro_batches * job.virtual
    if job.pipeline == 1:
        return 0
    both = 2 * most if job.pipeline > 2 else 2 * most - job.micro_batches
    if group.inside == 1 or group.domains == 1:
        return both if leaving == (group.inside == 1) else 0
    return most if leaving or group.inside == 2 else both


def three_d_busy(job: TrainingJob) -> dict[str, float]:
    """Seconds that a device's port and its link to its domain are busy in a step, at least (P2)."""
    return {
        "network port": sum(three_d_bytes(job).values()) / placement.network_path(job.network).rate,
        "domain link": _domain_bytes(job) / placement.domain_path(job.device).rate,
    }

"""Experts: of E in a layer a token passes k, and ranks share them.

Of the t x c x d ranks of a stage (tensor, context, data), w next to each other share one expert,
x groups of these have different experts, and the remaining ranks have copies. A rank brings n/t
tokens; C is the capacity factor: the tokens of the fullest expert over its even share; all wait for
it, and buffers have its size.

    J1  rows          of an expert's products: n (x w/t) k C/E, of width f/w; its rank has E/x of
                      them, in one grouped product whose rows are those of all
    J2  dispatch      a rank sends n/t k C tokens of h elements to the ranks of their experts, and
                      as many come back (combine); both again backward
    J3  all-to-all    N15 among x ranks, every w-th device
    J4  in an expert  w ranks gather their tokens, n w/t k C of them, n w/t where x is 1: copies of
                      a token are made where it is used
    J5  passes        3 k C + 2 rows of h for each token: the router reads it (too narrow a product
                      to be limited by anything else), copies are made, and summed
    J6  gradients     of experts are reduced over their t c d/(x w) copies, of all else over d c

One expert that w = t ranks share is the MLP of a dense model, in each of these. All-to-alls are
exposed. Rows that do not fill a kernel's tile cost nothing more here, which is too little with many
experts and few tokens. Sources: Megatron-LM's MoE (w is t unless set, and the ranks of a stage are
w times x times copies; tensor parallel ranks need sequence parallelism); derived.
"""

from __future__ import annotations

from typing import NamedTuple

from luwu.predict.model.collectives import domains_all_to_all
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.operators import WIRE_BYTES, Operators
from luwu.predict.model.placement import Group, domain_path, network_path, placed


class Own(NamedTuple):
    """Parameters of one device."""

    shared: float
    """Parameters that all tokens pass."""
    experts: float


def own_parameters(job: TrainingJob) -> Own:
    """On one device, with embeddings spread over all stages."""
    model = job.model
    if not job.spreads_experts:
        return Own(model.parameters / (job.tensor * job.pipeline), 0.0)
    experts = model.layers * model.expert_parameters
    shared = (model.parameters - experts) / (job.tensor * job.pipeline)
    return Own(shared, experts / (job.expert * job.expert_width * job.pipeline))


def own_layer_parameters(job: TrainingJob) -> Own:
    """The same without embeddings."""
    model = job.model
    if not job.spreads_experts:
        return Own(model.layers * model.layer_parameters / (job.tensor * job.pipeline), 0.0)
    shared = model.layer_parameters - model.expert_parameters
    return Own(
        model.layers * shared / (job.tensor * job.pipeline),
        model.layers * model.expert_parameters / (job.expert * job.expert_width * job.pipeline),
    )


def expert_group(job: TrainingJob) -> Group:
    """Ranks with different experts."""
    return placed(job, job.expert, job.expert_width)


def copies_group(job: TrainingJob) -> Group:
    """Ranks with the same experts (J6)."""
    return placed(job, job.expert_copies, job.expert * job.expert_width)


# ---------------------------------------------------------------------- compute


def mlp_products(job: TrainingJob, operators: Operators, n: float) -> float:
    """Seconds of the products of a layer's experts on one rank, forward (J1)."""
    model, width = job.model, job.expert_width
    inner = model.ffn / width
    rows = n * (width / job.tensor) * model.experts_used * job.load
    seconds = operators.matmul(rows, model.hidden, inner * (model.mlp_matrices - 1))
    seconds += operators.matmul(rows, inner, model.hidden)
    return seconds


def passed_rows(job: TrainingJob) -> float:
    """Traffic of a token's width, read and written to bring tokens to experts and back (J5)."""
    return 3 * job.model.experts_used * job.load + 2 if job.model.experts > 1 else 0.0


def gathered_tokens(job: TrainingJob, n: float) -> float:
    """That the ranks of one expert gather before its products, of n of a tensor group (J4)."""
    copies = job.model.experts_used * job.load if job.expert > 1 else 1.0
    return n * (job.expert_width / job.tensor) * copies


# ---------------------------------------------------------------------- exchange


def dispatched_bytes(job: TrainingJob) -> float:
    """That a rank sends in one all-to-all of a layer and micro-batch, its own part too (J2)."""
    if job.expert == 1:
        return 0.0
    n = job.micro_batch * job.sequence / job.context
    tokens = n / job.tensor * job.model.experts_used * job.load
    return WIRE_BYTES * tokens * job.model.hidden


def all_to_alls(job: TrainingJob) -> float:
    """All-to-alls of a layer and micro-batch: two forward, two backward, two if forward is
    recomputed (J2).
    """
    return 4.0 + 2 * {"full": 1.0, "half": 0.5}.get(job.recompute, 0.0)


def expert_exchange(job: TrainingJob) -> float:
    """Seconds of a layer's and micro-batch's all-to-alls (J3)."""
    if job.expert == 1:
        return 0.0
    group = expert_group(job)
    return all_to_alls(job) * domains_all_to_all(
        group.domains, group.inside, dispatched_bytes(job),
        domain_path(job.device), network_path(job.network),
    )  # fmt: skip

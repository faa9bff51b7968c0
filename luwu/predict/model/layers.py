"""The time of operators, of a layer on a device, forward and backward, and of the output layer.

    O1   product      operations / (rate of the cube of as many operations * scale)
    O2   pass         bytes / (memory rate * efficiency)
    O3   attention    operations / (rate of the largest product in 16 bits * efficiency of the
                      device's generation * exponentials), where it is one kernel

The rate of a product is a measured curve of the device, of cubes. Where a precision was not
measured, the curve of another one is taken, twice as fast with half the bits: so the level is
that of a measurement, and the peaks of data sheets are there for utilisation alone. Training and
inference have one rule. The scale is fitted, one number for each kind of kernels: what frameworks
lose or gain against that measurement.

    T1  a layer's forward     products + attention + passes over memory + exchanges
    T2  a layer's backward    twice products and passes, 2 times the attention (2.5 in one kernel)
    T7  activations in hosts  down beside forward, and up beside backward in as much time

Sources: Korthikanti et al. arXiv 2205.05198 (sequence parallel ranks, selective recomputation).

Experts: of E in a layer a token passes k, and ranks share them. Of the t x c x d ranks of a stage
(tensor, context, data), w next to each other share one expert, x groups of these have different
experts, and the remaining ranks have copies. A rank brings n/t tokens, and experts
have even shares of them.

    J1  rows          of an expert's products: n (x w/t) k/E, of width f/w; its rank has E/x of
                      them, in one grouped product whose rows are those of all
    J2  dispatch      a rank sends n/t k tokens of h elements to the ranks of their experts, and
                      as many come back (combine); both again backward
    J3  all-to-all    N15 among x ranks, every w-th device
    J4  in an expert  w ranks gather their tokens, n w/t k of them, n w/t where x is 1: copies of
                      a token are made where it is used
    J5  passes        3 k + 2 rows of h for each token: the router reads it (too narrow a product
                      to be limited by anything else), copies are made, and summed
    J6  gradients     of experts are reduced over their t c d/(x w) copies, of all else over d c

One expert that w = t ranks share is the MLP of a dense model, in each of these. All-to-alls are
exposed. Rows that do not fill a kernel's tile cost nothing more here, which is too little with many
experts and few tokens. Sources: Megatron-LM's MoE (w is t unless set, and the ranks of a stage are
w times x times copies; tensor parallel ranks need sequence parallelism); derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Curve, Device, Notes
from luwu.predict.hardware.software import fitted
from luwu.predict.model import collectives
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.placement import Group, domain_path, group_of, network_path, placed

WIRE_BYTES = 2
"""Bytes of an element in 16 bits."""
FP8_BYTES = 1
BITS = {"bf16": 16, "fp8": 8, "fp4": 4}
"""Of an operand; matrix units are twice as fast with half of them."""


@dataclass(slots=True, kw_only=True)
class Operators:
    """A device at work."""

    device: Device
    precision: str = "bf16"
    """Precision of products of weights: bf16 or fp8. Attention is in 16 bits."""
    matmul_scale: float = 1.0
    notes: Notes = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_precision(self.device, self.precision, BITS)

    def matmul(self, rows: float, inner: float, columns: float) -> float:
        """Seconds of [rows, inner] x [inner, columns] (O1)."""
        volume = rows * inner * columns
        return 2 * volume / self.matmul_rate(volume ** (1 / 3))

    def matmul_rate(self, size: float) -> float:
        """Operations a second of a cube of this size."""
        return cube_rate(self.device, self.precision, size, self.notes) * self.matmul_scale

    def passes(self, nbytes: float) -> float:
        """Seconds to read or write so many bytes of the device's memory (O2)."""
        return nbytes / (self.device.memory_rate * self.device.memory_efficiency)


def check_precision(
    device: Device, precision: str, known: Iterable[str], free: Sequence[str] = ()
) -> None:
    """Raises ConfigError for one whose products a device lacks, of those known; all have some."""
    has = [each for each in known if each in free or getattr(device, each)]
    if precision not in has:
        raise ConfigError(f"precision: a {device.name} has no {precision}; it has {', '.join(has)}")


def cube_rate(device: Device, precision: str, size: float, notes: Notes | None = None) -> float:
    """Operations per second of a product of cubes (O1). Raises ConfigError without a curve."""
    for measured in (precision, "fp8", "bf16"):
        curve: Curve | None = getattr(device, f"matmul_{measured}", None)
        if curve is not None:
            return curve.rate(size, notes) * BITS[measured] / BITS[precision]
    raise ConfigError(
        f"device.{device.name} has no measured curve of matrix products; give matmul_bf16 or "
        "matmul_fp8, or take that of another by like"
    )


def attention_rate(device: Device) -> float:
    """Operations per second of attention in one kernel (O3)."""
    name = "attention_efficiency" + ("" if device.fp4 is None else "_Blackwell")
    return cube_rate(device, "bf16", math.inf) * fitted(name) * device.exponentials


FP8_CAST_BYTES = 6
"""Of each element that is made fp8: read in 16 bits for its scale and to be cast, written as it is
and transposed, which backward needs."""
SCORE_BYTES = 5
"""Bytes of a saved score: before and after softmax in 16 bits, and a mask."""
SCORE_PASSES = 7
"""Over the scores, forward, where attention is not one kernel: written, softmax, dropout, read."""


class LayerTime(NamedTuple):
    """Seconds of one layer and one micro-batch on one device."""

    products: float
    attention: float
    passes: float
    exchange: float
    """Exchange of tensor parallel ranks, forward, exposed or not."""
    recompute: float


def layer_time(job: TrainingJob, operators: Operators) -> LayerTime:
    """One layer's forward on one micro-batch (T1), and what of it is computed again."""
    model, tensor = job.model, job.tensor
    n = job.own_tokens
    own_heads = model.head_width * (model.heads + 2 * model.kv_heads) / tensor
    products = (
        operators.matmul(n, model.hidden, own_heads)
        + operators.matmul(n, model.head_width * model.heads / tensor, model.hidden)
        + mlp_products(job, operators, n)
    )
    attention = _attention(job, operators, n)
    passes = operators.passes(_passed_bytes(job, n) * fitted("pass_share"))
    forward = products + attention + passes
    again = {
        "none": 0.0, "selective": 0.0 if job.software.fused_attention else attention,
        "half": forward / 2, "full": forward,
    }  # fmt: skip
    exchange, recompute = _tensor_exchange(job, n, operators.notes), again[job.recompute]
    return LayerTime(products, attention, passes, exchange, recompute)


def compute_time(
    job: TrainingJob, operators: Operators, layer: LayerTime | None = None
) -> dict[str, float]:
    """Compute time of all layers, forward and backward, of a micro-batch on a device that has them
    all (T2). `layer`: that of `layer_time`, if it is known."""
    layer, layers = layer or layer_time(job, operators), job.model.layers
    n, columns = job.own_tokens, job.model.vocab / job.tensor
    loss_s = operators.passes(3 * n * columns * 4)
    found = {
        "products": 3 * layers * layer.products,
        "attention": (1 + attention_backward(job)) * layers * layer.attention,
        "memory": 3 * layers * layer.passes,
        "recomputation": layers * layer.recompute,
        "output layer": 3 * operators.matmul(n, job.model.hidden, columns) + loss_s,
    }
    if job.layers_in_hosts:
        forward_s = layers * (layer.products + layer.attention + layer.passes)
        moved_s = job.layers_in_hosts * layer_activation_bytes(job) / job.device.host_rate
        found["activations to hosts"] = 2 * max(0.0, moved_s - forward_s)
    return found


def attention_backward(job: TrainingJob) -> float:
    """Factor of a layer's attention backward over its forward (T2)."""
    return 2.5 if job.software.fused_attention else 2.0


def operators_of(job: TrainingJob) -> Operators:
    """The job's device, as far as it was measured and fitted."""
    return Operators(device=job.device, precision=job.precision, matmul_scale=_scale(job))


def _scale(job: TrainingJob) -> float:
    """Of products, by the kernels of the software; without a curve in 16 bits, the vendor's reach
    there half of what was measured in fp8 (O1), and PyTorch's lose as much in both."""
    kernels = job.software.kernels
    if job.device.matmul_bf16 is not None:
        of_kernels = f"_{kernels}" if kernels.startswith("deepspeed") else ""
        return fitted(f"matmul_scale_A100{of_kernels}")
    if job.precision not in ("bf16", "fp8"):
        raise ConfigError(
            f"precision: training in {job.precision} was not measured; bf16 and fp8 fit"
        )
    scale = fitted("matmul_scale_H100_fp8") if job.precision == "fp8" else 1.0
    return scale if kernels == "vendor" else scale * fitted("matmul_scale_H100_bf16_torch")


def _attention(job: TrainingJob, operators: Operators, n: float) -> float:
    """Scores and their product with values; where they are written, passes over them too."""
    model, seen = job.model, job.software.counts_causal
    operations = model.attention_operations(n, job.sequence, seen) / job.tensor
    if job.software.fused_attention:
        return operations / attention_rate(job.device)  # O3
    scores = n * job.sequence * model.heads / job.tensor
    products = operations / operators.matmul_rate(min(job.sequence, 16 * model.head_width))
    return products + operators.passes(scores * WIRE_BYTES * SCORE_PASSES * fitted("pass_share"))


def _passed_bytes(job: TrainingJob, n: float) -> float:
    """Memory traffic of a layer's operators, forward, without products and attention: two norms,
    two additions to the residual stream, the activation, the rotation of queries and keys."""
    model = job.model
    whole = job.tensor if job.sequence_parallel else 1
    residual = model.hidden * (2 * 2 + 2 * 3 + (1 if model.dropout else 0)) / whole
    copies = model.experts_used
    if model.experts > 1:
        residual += model.hidden * (3 * copies + 2) / whole  # J5
    activation = model.ffn * copies * (3 if model.gated else 2) / job.tensor
    turned = 2 * model.head_width * (model.heads + 2 * model.kv_heads) / job.tensor
    nbytes = n * WIRE_BYTES * (residual + activation + turned)
    if job.precision == "fp8":
        inner = model.head_width * model.heads + copies * model.ffn
        cast = (1 + copies) * model.hidden + inner / job.tensor
        nbytes += n * FP8_CAST_BYTES * cast
    return nbytes


def _tensor_exchange(job: TrainingJob, n: float, notes: Notes) -> float:
    """One all-reduce of a layer's activations, or the two halves of it: the mean of those around
    attention and around the MLP, whose experts may be shared otherwise (J4)."""
    attention = _all_reduce(job, group_of(job, "tensor"), n, notes)
    if not job.spreads_experts:
        return attention
    mlp = _all_reduce(job, placed(job, job.expert_width, 1), gathered_tokens(job, n), notes)
    return (attention + mlp) / 2


def _all_reduce(job: TrainingJob, group: Group, tokens: float, notes: Notes) -> float:
    """Seconds of an all-reduce of the activations of so many tokens."""
    if group.size == 1:
        return 0.0
    nbytes = element_bytes(job) * tokens * job.model.hidden
    if job.device.all_reduce is not None and group.domains == 1:
        return collectives.measured_all_reduce(group.size, nbytes, job.device.all_reduce, notes)
    return collectives.hierarchical_all_reduce(
        group.domains, group.inside, nbytes, domain_path(job.device), network_path(job.network)
    )


def element_bytes(job: TrainingJob) -> int:
    """Of what tensor parallel ranks exchange: in fp8 a byte an element. Source: Transformer
    Engine's exchanges in fp8; that both halves of an all-reduce are is assumed."""
    return FP8_BYTES if job.precision == "fp8" else WIRE_BYTES


def layer_activation_bytes(job: TrainingJob) -> float:
    """Activations of one layer and one micro-batch (Y2)."""
    model, tokens = job.model, job.own_tokens
    whole_share = job.tensor if job.sequence_parallel else 1
    if job.recompute == "full":
        return WIRE_BYTES * tokens * model.hidden / whole_share
    operand = FP8_BYTES if job.precision == "fp8" else WIRE_BYTES
    masks = 2 * model.hidden if model.dropout else 0
    whole: float = (2 * WIRE_BYTES + 2 * operand) * model.hidden + masks
    heads = WIRE_BYTES * model.head_width * (2 * model.heads + 2 * model.kv_heads)
    copies = model.experts_used
    mlp = (WIRE_BYTES * (model.mlp_matrices - 1) + operand) * model.ffn * copies
    if model.experts > 1:
        whole += 2 * WIRE_BYTES * model.hidden * copies
    kept = tokens * (whole / whole_share + (heads + mlp) / job.tensor)
    if job.recompute == "selective" or job.software.fused_attention:
        return kept
    return kept + SCORE_BYTES * tokens * job.sequence * model.heads / job.tensor


class Own(NamedTuple):
    """Parameters of one device: those that all tokens pass, and those of experts."""

    shared: float
    experts: float

    def updated(self, job: TrainingJob) -> float:
        """Those of them that the device updates."""
        if not job.software.shards_optimizer:
            return self.shared + self.experts
        return self.shared / (job.data * job.context) + self.experts / job.expert_copies


def own_parameters(job: TrainingJob, *, embeddings: bool = True) -> Own:
    """On one device, with embeddings spread over all stages, or without them."""
    model, share = job.model, job.tensor * job.pipeline
    layers = model.layers * model.layer_parameters
    parameters = model.parameters if embeddings else layers
    experts = model.layers * model.expert_parameters if job.spreads_experts else 0
    own_share = job.expert * job.expert_width * job.pipeline
    return Own((parameters - experts) / share, experts / own_share)


def mlp_products(job: TrainingJob, operators: Operators, n: float) -> float:
    """Seconds of the products of a layer's experts on one rank, forward (J1)."""
    model, width = job.model, job.expert_width
    inner = model.ffn / width
    rows = n * (width / job.tensor) * model.experts_used
    into_s = operators.matmul(rows, model.hidden, inner * (model.mlp_matrices - 1))
    return into_s + operators.matmul(rows, inner, model.hidden)


def gathered_tokens(job: TrainingJob, n: float) -> float:
    """That the ranks of one expert gather before its products, of n of a tensor group (J4)."""
    copies = job.model.experts_used if job.expert > 1 else 1.0
    return n * (job.expert_width / job.tensor) * copies


def dispatched_bytes(job: TrainingJob) -> float:
    """That a rank sends in one all-to-all of a layer and micro-batch, its own part too (J2)."""
    if job.expert == 1:
        return 0.0
    tokens = job.own_tokens / job.tensor * job.model.experts_used
    return WIRE_BYTES * tokens * job.model.hidden


def all_to_alls(job: TrainingJob) -> float:
    """Of a layer and micro-batch: two forward, two backward, two if forward is recomputed (J2)."""
    return 4.0 + 2 * job.again


def expert_exchange(job: TrainingJob) -> float:
    """Seconds of a layer's and micro-batch's all-to-alls (J3)."""
    if job.expert == 1:
        return 0.0
    group = group_of(job, "expert")
    return all_to_alls(job) * collectives.domains_all_to_all(
        group.domains, group.inside, dispatched_bytes(job),
        domain_path(job.device), network_path(job.network),
    )  # fmt: skip

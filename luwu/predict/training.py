"""A step of 3-D parallel training: tensor and sequence, pipeline, context and data parallel ranks.

    T1  a layer's forward     products + attention + passes over memory + exchanges in the open
    T2  a layer's backward    twice the products, 2 (fused: 2.5) times the attention, 2 the passes
    T3  a stage's micro-batch its layers, forward, backward and what is computed again
    T4  a step                m stages + (p - 1)/v stages of the bubble + data parallel exchanges
                              + optimizer, all of it longer by what the slowest of n devices takes

m is the number of micro-batches, p of stages, v of parts of the model that a stage has. The last
stage also has the output layer, and the others wait for it.
Sources: Narayanan et al. SC'21 (T3, T4, bubble); Korthikanti et al. arXiv 2205.05198 (sequence
parallel, selective recomputation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from luwu.base.errors import ConfigError
from luwu.predict.collectives import Path, measured_all_reduce, ring_all_gather, send
from luwu.predict.curves import Notes
from luwu.predict.hardware import Device, Network
from luwu.predict.model import Transformer
from luwu.predict.operators import WIRE_BYTES, Operators
from luwu.predict.software import Software, fitted

OPTIMIZER_BYTES = 30
"""That Adam passes over for a parameter: master, two moments, gradient and the 16-bit copy."""
RECOMPUTE = ("none", "selective", "full")
SCORE_PASSES = 7
"""Over the scores, forward, where attention is not one kernel: written, softmax, dropout, read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What is trained, on what, how. Counts of 1 mean: not at all."""

    model: Transformer
    device: Device
    network: Network
    software: Software
    devices: int
    sequence: int
    batch: int
    """Sequences of a step, in all."""
    micro_batch: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    precision: str = "bf16"

    def __post_init__(self) -> None:
        inner = self.tensor * self.pipeline * self.context
        if self.recompute not in RECOMPUTE:
            raise ConfigError(f"recompute: {self.recompute!r} is none of {', '.join(RECOMPUTE)}")
        if self.devices % inner:
            raise ConfigError(
                f"devices: {self.devices} are no multiple of tensor x pipeline x context = {inner}"
            )
        if self.batch % (self.data * self.micro_batch):
            raise ConfigError(
                f"batch: {self.batch} sequences cannot be shared by {self.data} data parallel "
                f"ranks in micro-batches of {self.micro_batch}; a multiple of "
                f"{self.data * self.micro_batch} fits"
            )
        if self.pipeline > self.model.layers:
            raise ConfigError(
                f"pipeline: {self.pipeline} stages, but {self.model.name} has "
                f"{self.model.layers} layers"
            )
        if self.tensor > self.model.heads:
            raise ConfigError(
                f"tensor: {self.tensor} ranks, but {self.model.name} has {self.model.heads} heads"
            )

    @property
    def data(self) -> int:
        """Data parallel ranks."""
        return self.devices // (self.tensor * self.pipeline * self.context)

    @property
    def micro_batches(self) -> int:
        """That a pipeline takes in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one layer and one micro-batch on one device."""

    products: float
    attention: float
    passes: float
    exchange: float
    """Forward, in the open or not."""
    recompute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, by what they go to; they add up to `seconds`."""

    parts: dict[str, float]
    micro_batches: int
    notes: Notes = field(default_factory=Notes)

    @property
    def seconds(self) -> float:
        """Of the step."""
        return sum(self.parts.values())

    @property
    def binding(self) -> str:
        """What takes most."""
        return max(self.parts, key=lambda name: self.parts[name])


def predict_step(job: TrainingJob) -> StepTime:
    """The time of a step (T4). Raises ConfigError for a device that lacks a precision."""
    notes = Notes()
    operators = _operators(job, notes)
    layer = layer_time(job, operators)
    model, m = job.model, job.micro_batches
    layers = model.layers / job.pipeline
    fused = job.software.fused_attention
    shown = 1 - job.software.tensor_overlap
    forward_backward = {
        "products": 3 * layer.products,
        "attention": (3.5 if fused else 3) * layer.attention,
        "memory": 3 * layer.passes,
        "recomputation": layer.recompute,
        "tensor exchange": _exchanges(job) * layer.exchange * shown,
    }
    stage = {name: layers * seconds for name, seconds in forward_backward.items()}
    parts = {name: m * seconds for name, seconds in stage.items()}
    parts["output layer"] = m * _head_time(job, operators)
    parts["bubble"] = (job.pipeline - 1) / job.virtual * sum(stage.values())
    parts["pipeline exchange"] = _pipeline_exchange(job)
    parts["data exchange"] = _data_exchange(job) * (1 - job.software.data_overlap)
    parts["optimizer"] = _optimizer(job, operators)
    parts["straggling"] = sum(parts.values()) * fitted("straggling") * math.log(job.devices)
    return StepTime(parts=parts, micro_batches=m, notes=notes)


def layer_time(job: TrainingJob, operators: Operators) -> LayerTime:
    """One layer's forward on one micro-batch (T1), and what of it is computed again."""
    model, tensor = job.model, job.tensor
    n = job.micro_batch * job.sequence / job.context
    own_heads = model.head_width * (model.heads + 2 * model.kv_heads) / tensor
    inner = model.ffn / tensor
    used = model.experts_used
    products = (
        operators.matmul(n, model.hidden, own_heads)
        + operators.matmul(n, model.head_width * model.heads / tensor, model.hidden)
        + used * operators.matmul(n, model.hidden, inner * (model.mlp_matrices - 1))
        + used * operators.matmul(n, inner, model.hidden)
    )
    attention = _attention(job, operators, n)
    passes = operators.passes(_passed_bytes(job, n) * fitted("pass_share"))
    exchange = _tensor_exchange(job, n, operators.notes)
    again = {"none": 0.0, "selective": 0.0 if job.software.fused_attention else attention}
    return LayerTime(
        products=products, attention=attention, passes=passes, exchange=exchange,
        recompute=again.get(job.recompute, products + attention + passes),
    )  # fmt: skip


def _operators(job: TrainingJob, notes: Notes) -> Operators:
    family = "A100" if job.device.matmul("bf16") is not None else f"H100_{job.precision}"
    return Operators(
        device=job.device, precision=job.precision,
        matmul_scale=fitted(f"matmul_scale_{family}"),
        attention_efficiency=fitted("attention_efficiency"), notes=notes,
    )  # fmt: skip


def _attention(job: TrainingJob, operators: Operators, n: float) -> float:
    """Scores and their product with values; where they are written, passes over them too."""
    model = job.model
    seen = job.software.counts_causal
    operations = model.attention_operations(n, job.sequence, seen) / job.tensor
    if job.software.fused_attention:
        return operators.fused_attention(operations)
    scores = n * job.sequence * model.heads / job.tensor
    products = operations / operators.matmul_rate(min(job.sequence, 16 * model.head_width))
    return products + operators.passes(scores * WIRE_BYTES * SCORE_PASSES * fitted("pass_share"))


def _passed_bytes(job: TrainingJob, n: float) -> float:
    """What a layer's operators read and write, forward, without products and attention: two norms,
    two additions to the residual stream, the activation, the turn of queries and keys."""
    model = job.model
    whole = job.tensor if job.sequence_parallel else 1
    residual = model.hidden * (2 * 2 + 2 * 3 + (1 if model.dropout else 0)) / whole
    activation = model.ffn * model.experts_used * (3 if model.gated else 2) / job.tensor
    turned = 2 * model.head_width * (model.heads + 2 * model.kv_heads) / job.tensor
    nbytes = n * WIRE_BYTES * (residual + activation + turned)
    if job.precision == "fp8":
        cast = 2 * model.hidden + (model.head_width * model.heads + model.ffn) / job.tensor
        nbytes += n * fitted("fp8_cast_bytes") * cast
    return nbytes


def _tensor_exchange(job: TrainingJob, n: float, notes: Notes) -> float:
    """One all-reduce of a layer's activations, or the two halves of it."""
    if job.tensor == 1:
        return 0.0
    nbytes = WIRE_BYTES * n * job.model.hidden
    if job.device.all_reduce is not None and job.tensor <= job.device.domain_count:
        return measured_all_reduce(job.tensor, nbytes, job.device.all_reduce, notes)
    return 2 * ring_all_gather(job.tensor, nbytes, path_of(job.network))


def _exchanges(job: TrainingJob) -> float:
    """All-reduces of a layer: two forward, two backward, two where forward is computed again; with
    sequence parallel ranks, an all-gather of what was kept in parts."""
    return {"full": 6.0}.get(job.recompute, 4.0) + (0.5 if job.sequence_parallel else 0.0)


def _head_time(job: TrainingJob, operators: Operators) -> float:
    """Output layer and loss of a micro-batch, forward and backward."""
    n = job.micro_batch * job.sequence / job.context
    columns = job.model.vocab / job.tensor
    return 3 * operators.matmul(n, job.model.hidden, columns) + operators.passes(
        3 * n * columns * 4
    )


def _pipeline_exchange(job: TrainingJob) -> float:
    """Activations between stages, while the pipeline fills and drains."""
    if job.pipeline == 1:
        return 0.0
    n = job.micro_batch * job.sequence / job.context
    shared = job.tensor if job.sequence_parallel else 1
    one = send(WIRE_BYTES * n * job.model.hidden / shared, path_of(job.network))
    return 2 * (job.pipeline - 1) * one


def _data_exchange(job: TrainingJob) -> float:
    """Gradients are reduced, and parameters gathered where the optimizer is sharded."""
    if job.data == 1:
        return 0.0
    own = job.model.parameters / (job.tensor * job.pipeline)
    path = path_of(job.network)
    back = WIRE_BYTES if job.software.shards_optimizer else job.software.gradient_bytes
    return ring_all_gather(job.data, own * job.software.gradient_bytes, path) + ring_all_gather(
        job.data, own * back, path
    )


def _optimizer(job: TrainingJob, operators: Operators) -> float:
    own = job.model.parameters / (job.tensor * job.pipeline)
    shards = job.data * job.context if job.software.shards_optimizer else 1
    return operators.passes(own * OPTIMIZER_BYTES / shards)


def path_of(network: Network) -> Path:
    """What a rank has of a network."""
    return Path(latency_s=network.latency_s, rate=network.rate * network.efficiency)

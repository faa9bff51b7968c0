"""The time of answers on devices: prefill of the prompt, decode of a token per sequence, batches;
and the memory that a job of inference needs.

    IN1  product        max(operations / rate, bytes / memory rate); the rate is measured of a cube
                        with as many operations: flat or thin products are limited by bytes
    IN2  attention      of decode: max(cache / memory rate, operations / rate); of prefill:
                        operations / rate
    IN3  a layer        products + attention + passes over memory + 2 all-reduces + launches of a
                        prefill's kernels + a fitted time for each sequence in decode
    IN4  a round        all layers, the output layer, sends between stages; with m parts of a batch
                        in p stages no faster than m times the slowest stage
    IN5  static batch   prefill + (output - 1) decodes at the mean length
    IN6  continuous     of b sequences each round decodes one token, and prefills b input / output
                        tokens for sequences that replace those that ended; b is limited by memory
                        and by the budget of a round
    IN7  small          an all-reduce of n ranks by NCCL's protocol for small messages: base +
                        2 (n - 1) hop + 2 (n - 1)/n S / (share of the rate)

    F1  cache of a sequence   2 l/p tokens max(1, g/t) d bytes, on each rank of the stage with most
    F2  weights of a rank     its share of each matrix; embedding and output layer are in 16 bits
    F3  largest batch         what weights and the work space of a round leave, over F1; in
                              continuous batching a server takes of that, without its runtime, nine
                              tenths (TensorRT-LLM's default), and more where it is asked for
    F4  w8                    weights in 8 bits, whose products are in 16

An all-reduce takes the time measured at its size, or IN7 if that is shorter, as in decode, where
sizes are a few KB.
l layers, p stages, t tensor parallel ranks, g heads of keys and values, d the width of a head. With
fewer such heads than ranks, ranks hold copies.
Sources: LIMINAL's form, max(compute, memory) and exposed exchanges; NCCL's tuning (IN7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Device, Network, Notes
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import fitted
from luwu.predict.hardware.values import check_choice
from luwu.predict.model.collectives import Path, measured_all_reduce, ring_all_reduce, send
from luwu.predict.model.job import StepTime, check_most
from luwu.predict.model.layers import WIRE_BYTES, attention_rate, check_precision, cube_rate
from luwu.predict.model.placement import network_path

NCCL_BASE_S = 3.6e-6
"""Base latency of a ring with the LL protocol; NCCL's tuning."""
NCCL_HOP_S = 0.47e-6
"""Latency of each of its 2 (n - 1) steps, over NVLink."""
NCCL_SMALL_SHARE = 0.25
"""Minimum share of a link's rate that LL reaches."""
CAUSAL_SHARE = 0.5
"""Share of the scores that kernels compute in prefill: masked ones are skipped."""
WEIGHT_BYTES: Final = {"bf16": 2.0, "w8": 1.0, "fp8": 1.0, "fp4": 9 / 16}
"""Bytes of a weight. fp4: NVFP4, where 16 values share a scale of a byte. Source: NVIDIA."""
RUNTIME_BYTES: Final = 3e9
"""Of a device: its context, libraries, captured graphs. From memory."""
CACHE_SHARE: Final = 0.9
"""Of the memory that is left, for keys and values (F3). Source: TensorRT-LLM's default."""
CACHE_PRECISIONS: Final = ("bf16", "fp8", "int8")
BATCHINGS: Final = ("static", "continuous")
LOGIT_BYTES: Final = 4


# ---------------------------------------------------------------------- the job and its memory


def cache_bytes_per_element(precision: str, head_width: int) -> float:
    """Bytes of an element of keys and values; int8 has a scale for each head, 1/d more."""
    return {"bf16": 2.0, "fp8": 1.0, "int8": 1.0 + 1.0 / head_width}[precision]


def check_tensor(key: str, ranks: int, model: Transformer) -> None:
    """Raises ConfigError where ranks cannot share a model's heads."""
    kv_heads = model.kv_heads
    shares = [each for each in range(1, model.heads + 1) if model.heads % each == 0]
    fits = [each for each in shares if kv_heads % each == 0 or each % kv_heads == 0]
    if ranks not in fits:
        raise ConfigError(
            f"{key}: {ranks} ranks cannot share {model.heads} heads, {kv_heads} of keys and "
            f"values, of {model.name}; {', '.join(map(str, fits))} fit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceJob:
    """An inference job. Raises ConfigError if it is impossible, or memory lacks for the batch."""

    model: Transformer
    device: Device
    network: Network
    """Between devices that share no domain."""
    tensor: int = 1
    pipeline: int = 1
    precision: str = "bf16"
    """Precision of weights and products (F4); attention is in 16 bits."""
    kv_precision: str = "bf16"
    batch: int = 1
    """Sequences at once, of all stages."""
    input_tokens: int
    output_tokens: int
    batching: str = "static"
    """static: a batch begins and ends as one. continuous: a sequence that ends makes place for the
    next, and each round has prefill and decode."""
    budget_tokens: int = 8192
    """Of a round of continuous batching: sequences in decode and tokens of prefill together."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, WEIGHT_BYTES)
        check_choice("kv_precision", self.kv_precision, CACHE_PRECISIONS)
        check_choice("batching", self.batching, BATCHINGS)
        check_precision(self.device, self.precision, WEIGHT_BYTES, free=("w8",))
        check_tensor("tensor", self.tensor, self.model)
        check_most("pipeline", self.pipeline, " stages", self.model, "layers")
        self._check_memory()

    def _check_memory(self) -> None:
        fits = math.floor(cache_memory_bytes(self) / sequence_bytes(self))
        missing = (max(1, self.batch) * sequence_bytes(self) - cache_memory_bytes(self)) / 1e9
        if fits < 1:
            raise ConfigError(
                f"tensor: {self.devices} of {self.device.name} do not hold {self.model.name} in "
                f"{self.precision} and one sequence; {missing:.3g} GB are missing on each. More "
                "tensor or pipeline ranks, or a smaller precision, would fit"
            )
        if self.batch > fits:
            raise ConfigError(
                f"batch: {self.batch} sequences of {self.tokens} tokens are more than "
                f"{self.devices} of {self.device.name} hold; {missing:.3g} GB are missing on "
                f"each, a batch of {fits} fits"
            )

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline

    @property
    def tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.input_tokens + self.output_tokens

    @property
    def stage_layers(self) -> int:
        """Layers of the largest stage."""
        return math.ceil(self.model.layers / self.pipeline)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, on a rank."""
        return max(1, self.model.kv_heads // self.tensor)


def layer_cache_bytes(job: InferenceJob) -> float:
    """Cache bytes of a token in one layer, on a rank."""
    width = job.model.head_width
    return 2 * job.kv_heads * width * cache_bytes_per_element(job.kv_precision, width)


def cache_bytes(job: InferenceJob, tokens: int) -> float:
    """Keys and values of one sequence on a rank of the stage with most layers (F1)."""
    return job.stage_layers * tokens * layer_cache_bytes(job)


def layer_weight_bytes(job: InferenceJob) -> float:
    """Matrices of one layer, all experts, on a rank."""
    model = job.model
    attention = model.hidden * model.head_width * 2 * (model.heads / job.tensor + job.kv_heads)
    mlp = model.experts * model.mlp_parameters / job.tensor
    return (attention + mlp) * WEIGHT_BYTES[job.precision]


def weight_bytes(job: InferenceJob) -> float:
    """Weights of a rank of the fullest stage (F2): with the output layer, or with the embedding."""
    model = job.model
    ends = 2 if job.pipeline == 1 and not model.tied else 1
    embeddings = ends * model.embedding_parameters / job.tensor * WIRE_BYTES
    return job.stage_layers * layer_weight_bytes(job) + embeddings


def fixed_bytes(job: InferenceJob) -> float:
    """Work space that does not depend on the batch: that of a round's budget."""
    return job.budget_tokens * _work_bytes(job) if job.batching == "continuous" else 0.0


def sequence_bytes(job: InferenceJob) -> float:
    """Memory of one more sequence on a rank: its cache at its end, its logits, and if a batch
    starts as a whole, work space of its prompt; stages work on different parts of a batch."""
    logits = LOGIT_BYTES * job.model.vocab / job.tensor / job.pipeline
    as_one = job.batching != "continuous"
    prompt = job.input_tokens * _work_bytes(job) / job.pipeline if as_one else 0.0
    return cache_bytes(job, job.tokens) + logits + prompt


def _work_bytes(job: InferenceJob) -> float:
    """Activations of a token that live at once: two of the residual stream and their norms, heads,
    inner widths of the MLP."""
    model = job.model
    heads = model.head_width * (model.heads / job.tensor + 2 * job.kv_heads)
    inner = (model.mlp_matrices - 1) * model.ffn * model.experts_used / job.tensor
    return WIRE_BYTES * (4 * model.hidden + heads + inner)


def cache_memory_bytes(job: InferenceJob) -> float:
    """Memory of a device for its sequences (F3); below 0 where it does not hold the weights."""
    return job.device.memory_bytes - weight_bytes(job) - fixed_bytes(job)


def maximum_batch(job: InferenceJob) -> int:
    """Sequences that a server takes unless it is asked for more (F3), one at least."""
    left = cache_memory_bytes(job)
    if job.batching == "continuous":
        left = (left - RUNTIME_BYTES) * CACHE_SHARE
    return max(1, math.floor(left / sequence_bytes(job)))


# ---------------------------------------------------------------------- its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one round in each layer."""

    decodes: float = 0.0
    """Sequences that get their next token."""
    context: float = 0.0
    """Tokens that each of them sees."""
    prefill_tokens: float = 0.0
    prompt: float = 1
    """Length of the prompts that these tokens belong to."""
    ended: float | None = None
    """Prompts that get their first token; None: all, as these tokens are whole ones."""

    @property
    def tokens(self) -> float:
        """That pass through the layers."""
        return self.decodes + self.prefill_tokens

    @property
    def answers(self) -> float:
        """Tokens that come out."""
        ended = self.prefill_tokens / self.prompt if self.ended is None else self.ended
        return self.decodes + ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The prediction of an inference job."""

    tokens_per_s: float
    """That come out."""
    batch: float
    """In decode at once; what a round's budget leaves of the job's batch."""
    decode: StepTime
    """Between two tokens of a sequence, on the mean; continuous, with prefill of its rounds."""
    first_token: StepTime
    """Prefill of a whole batch; in continuous batching of a request that waits for all of the round
    under way."""

    @property
    def notes(self) -> Notes:
        """Curves that were read outside of what was measured."""
        return self.first_token.notes | self.decode.notes


def predict_inference(job: InferenceJob) -> Inference:
    """All that users ask of a job (IN5, IN6). Raises ConfigError for a device
    without curves."""
    first = predict_prefill(job)
    if job.batching == "continuous":
        batch, decode = predict_continuous(job)
        rate = batch / decode.seconds
        alone = predict_prefill(replace(job, batch=1))
        parts = {"round under way": decode.seconds, **alone.parts}
        first = StepTime(parts=parts, notes=first.notes)
    else:
        batch, decode = float(job.batch), predict_decode(job)
        whole_s = first.seconds + (job.output_tokens - 1) * decode.seconds
        rate = batch * job.output_tokens / whole_s
    return Inference(tokens_per_s=rate, batch=batch, decode=decode, first_token=first)


def predict_prefill(job: InferenceJob) -> StepTime:
    """All prompts of a batch at once, a part of them in each stage."""
    parts = min(job.batch, job.pipeline)
    tokens = job.batch / parts * job.input_tokens
    work = Work(prefill_tokens=tokens, prompt=job.input_tokens)
    launch_s = fitted("prefill_layer_s")
    return predict_round(job, work, parts, is_continuous=False, layer_launch_s=launch_s)


def predict_decode(job: InferenceJob) -> StepTime:
    """One token for each sequence of a batch, at the mean length of the answers."""
    parts = min(job.batch, job.pipeline)
    context = job.input_tokens + job.output_tokens / 2
    work = Work(decodes=job.batch / parts, context=context)
    return predict_round(job, work, parts, is_continuous=False)


def predict_continuous(job: InferenceJob) -> tuple[float, StepTime]:
    """Sequences in decode, and a round that gives each one token (IN6)."""
    prefills = job.input_tokens / job.output_tokens
    batch = min(job.batch, job.pipeline * job.budget_tokens / (1 + prefills))
    parts = min(batch, job.pipeline)
    work = Work(
        decodes=batch / parts, context=job.input_tokens + job.output_tokens / 2,
        prefill_tokens=batch / parts * prefills, prompt=job.input_tokens,
    )  # fmt: skip
    return batch, predict_round(job, work, parts)


def with_largest_batch(job: InferenceJob) -> InferenceJob:
    """The same with as many sequences as memory holds."""
    return replace(job, batch=maximum_batch(job))


def predict_round(
    job: InferenceJob, work: Work, parts: float = 1.0, *, is_continuous: bool = True,
    layer_launch_s: float = 0.0,
) -> StepTime:  # fmt: skip
    """A round of as many parts of a batch as are under way, each of them `work` (IN4)."""
    round_s = fitted("round_s") if is_continuous else 0.0
    notes: Notes = {}
    layer = layer_time(job, work, notes)
    layer["launches"] = layer_launch_s
    layer["sequences"] = work.decodes * fitted("layer_sequence_s")
    layer_s = sum(layer.values())
    head_s, send_s = _head_time(job, work.answers, notes), _send(job, work.tokens)
    layers, stages = job.model.layers, job.pipeline
    seconds = {name: layers * each for name, each in layer.items()} | {
        "output layer": head_s,
        "stage exchange": (stages - 1) * send_s,
        "scheduling": stages * round_s,
    }
    last_s = layers // stages * layer_s + head_s
    slowest_s = max(job.stage_layers * layer_s, last_s) + send_s + round_s
    seconds["waiting for stages"] = max(0.0, parts * slowest_s - sum(seconds.values()))
    return StepTime(parts=seconds, notes=notes)


def layer_time(job: InferenceJob, work: Work, notes: Notes) -> dict[str, float]:
    """Seconds of one layer on a rank, by what they go to, without launches (IN3)."""
    exchange = 2 * _all_reduce(job, WIRE_BYTES * work.tokens * job.model.hidden, notes)
    return {
        "products": _products(job, work.tokens, notes),
        "attention": _attention(job, work),
        "memory": _passes(job, work.tokens) * fitted("pass_share"),
        "tensor exchange": exchange,
    }


def _products(job: InferenceJob, n: float, notes: Notes) -> float:
    """The four matrices of a layer; of experts, those that some token uses."""
    model, tensor = job.model, job.tensor
    own = model.head_width * model.heads / tensor
    keys = 2 * model.head_width * job.kv_heads
    inner = model.ffn / tensor
    touched = model.experts * (1 - (1 - model.experts_used / model.experts) ** n)
    rows = n * model.experts_used / touched
    shapes = [
        (1.0, n, model.hidden, own + keys),
        (1.0, n, own, model.hidden),
        (touched, rows, model.hidden, inner * (model.mlp_matrices - 1)),
        (touched, rows, inner, model.hidden),
    ]
    weight_bytes = WEIGHT_BYTES[job.precision]
    precision = "bf16" if job.precision == "w8" else job.precision
    return sum(
        times * product(job, weight_bytes, precision, shape, notes) for times, *shape in shapes
    )


def product(
    job: InferenceJob, weight_bytes: float, precision: str, shape: Sequence[float], notes: Notes
) -> float:  # fmt: skip
    """Seconds of [rows, inner] x [inner, columns], weights on the right (IN1)."""
    rows, inner, columns = shape
    weights = inner * columns * weight_bytes
    passed_s = _memory(job.device, weights + rows * (inner + columns) * WIRE_BYTES)
    volume = rows * inner * columns
    size = volume ** (1 / 3)
    computed_s = 2 * volume / cube_rate(job.device, precision, size)
    if computed_s > passed_s:  # a look-up beyond the curve is told of only where it matters
        cube_rate(job.device, precision, size, notes)
    return max(computed_s, passed_s)


def _attention(job: InferenceJob, work: Work) -> float:
    """Scores and their product with values, of decode and of prefill (IN2)."""
    model, rate = job.model, attention_rate(job.device)
    seen = work.decodes * work.context
    cached_s = _memory(job.device, seen * layer_cache_bytes(job))
    decode = model.attention_operations(work.decodes, work.context) / job.tensor
    prefill = model.attention_operations(work.prefill_tokens, work.prompt, CAUSAL_SHARE)
    return max(cached_s, decode / rate) + prefill / job.tensor / rate


def _passes(job: InferenceJob, n: float) -> float:
    """Memory traffic of operators between products, as in training's forward."""
    model = job.model
    residual = model.hidden * (2 * 2 + 2 * 3)
    activation = model.ffn * model.experts_used * (3 if model.gated else 2) / job.tensor
    turned = 2 * model.head_width * (model.heads / job.tensor + 2 * job.kv_heads)
    return _memory(job.device, n * WIRE_BYTES * (residual + activation + turned))


def _head_time(job: InferenceJob, answers: float, notes: Notes) -> float:
    """The output layer in 16 bits, for tokens that come out alone, and a pass over its logits."""
    if not answers:  # a part of a prompt, and nothing else
        return 0.0
    columns = job.model.vocab / job.tensor
    logits = 2 * answers * columns * LOGIT_BYTES
    shape = (answers, job.model.hidden, columns)
    return product(job, WIRE_BYTES, "bf16", shape, notes) + _memory(job.device, logits)


def _memory(device: Device, nbytes: float) -> float:
    return nbytes / (device.memory_rate * device.memory_efficiency)


def _all_reduce(job: InferenceJob, nbytes: float, notes: Notes) -> float:
    """Seconds of an all-reduce of a layer's activations among tensor parallel ranks."""
    ranks, device = job.tensor, job.device
    if ranks == 1:
        return 0.0
    if ranks > device.domain_count:
        return ring_all_reduce(ranks, nbytes, network_path(job.network))
    inside = _domain_path(job)
    if device.all_reduce is None:
        return ring_all_reduce(ranks, nbytes, inside)
    small_s = small_all_reduce(ranks, nbytes, inside.rate)
    measured_s = measured_all_reduce(ranks, nbytes, device.all_reduce)
    if measured_s < small_s:
        return measured_all_reduce(ranks, nbytes, device.all_reduce, notes)
    return small_s


def small_all_reduce(ranks: int, nbytes: float, rate: float) -> float:
    """By NCCL's protocol for small messages, in a domain (IN7)."""
    latency_s = NCCL_BASE_S + 2 * (ranks - 1) * NCCL_HOP_S
    return latency_s + 2 * (ranks - 1) / ranks * nbytes / (rate * NCCL_SMALL_SHARE)


def _send(job: InferenceJob, tokens: float) -> float:
    """Activations from one stage to the next."""
    if job.pipeline == 1:
        return 0.0
    inside = job.devices <= job.device.domain_count
    path = _domain_path(job) if inside else network_path(job.network)
    return send(WIRE_BYTES * tokens * job.model.hidden, path)


def _domain_path(job: InferenceJob) -> Path:
    """To a device of the same domain; without a network of its own, through the host."""
    return Path(latency_s=NCCL_BASE_S, rate=job.device.domain_rate or job.device.host_rate)

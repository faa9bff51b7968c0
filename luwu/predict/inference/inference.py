"""The time of answers on devices: prefill of the prompt, decode of a token per sequence, batches.

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

An all-reduce takes the time measured at its size, or IN7 if that is shorter, as in decode, where
sizes are a few KB.
Sources: LIMINAL's form, max(compute, memory) and exposed exchanges; NCCL's tuning (IN7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from luwu.predict.hardware.hardware import Device, Notes
from luwu.predict.hardware.software import fitted
from luwu.predict.inference.inference_job import (
    LOGIT_BYTES,
    WEIGHT_BYTES,
    InferenceJob,
    layer_cache_bytes,
)
from luwu.predict.model.collectives import Path, measured_all_reduce, ring_all_reduce, send
from luwu.predict.model.job import StepTime
from luwu.predict.model.layers import WIRE_BYTES, attention_rate, cube_rate
from luwu.predict.model.placement import network_path

NCCL_BASE_S = 3.6e-6
"""Base latency of a ring with the LL protocol; NCCL's tuning."""
NCCL_HOP_S = 0.47e-6
"""Latency of each of its 2 (n - 1) steps, over NVLink."""
NCCL_SMALL_SHARE = 0.25
"""Minimum share of a link's rate that LL reaches."""
CAUSAL_SHARE = 0.5
"""Share of the scores that kernels compute in prefill: masked ones are skipped."""


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

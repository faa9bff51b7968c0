"""A job of inference on devices, and the memory that it needs.

    F1  cache of a sequence   2 l/p tokens max(1, g/t) d bytes, on each rank of the stage with most
    F2  weights of a rank     its share of each matrix; embedding and output layer are in 16 bits
    F3  largest batch         what weights and the work space of a round leave, over F1; in
                              continuous batching a server takes of that, without its runtime, nine
                              tenths (TensorRT-LLM's default), and more where it is asked for
    F4  w8                    weights in 8 bits, whose products are in 16

l layers, p stages, t tensor parallel ranks, g heads of keys and values, d the width of a head. With
fewer such heads than ranks, ranks hold copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Device, Network
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.values import check_choice
from luwu.predict.model.job import check_most
from luwu.predict.model.layers import WIRE_BYTES, check_precision

WEIGHT_BYTES: Final = {"bf16": 2.0, "w8": 1.0, "fp8": 1.0, "fp4": 9 / 16}
"""Bytes of a weight. fp4: NVFP4, where 16 values share a scale of a byte. Source: NVIDIA."""
RUNTIME_BYTES: Final = 3e9
"""Bytes of a device's context, libraries and captured graphs. From memory, to be checked."""
CACHE_SHARE: Final = 0.9
"""Share of the remaining memory for keys and values (F3). Source: TensorRT-LLM's default."""
CACHE_PRECISIONS: Final = ("bf16", "fp8", "int8")
BATCHINGS: Final = ("static", "continuous")
LOGIT_BYTES: Final = 4


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
    """Limit of a round of continuous batching: sequences in decode plus tokens of prefill."""

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


def with_largest_batch(job: InferenceJob) -> InferenceJob:
    """The same with as many sequences as memory holds."""
    return replace(job, batch=maximum_batch(job))

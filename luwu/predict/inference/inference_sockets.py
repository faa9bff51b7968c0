"""Inference on the sockets of hosts: processors that share a model's layers as tensor ranks.

    K1  a token         max((weights / t + cache) / (memory rate x share), operations / (t peak))
                        + exchanges
    K2  exchanges       two all-reduces in each layer, in hosts and between them (N11), where the
                        sockets of a host share its port
    K3  prefill         the same with the prompt's operations

t sockets. Token numbers are broadcast, and only the best few logits are reduced, so both take
negligible time.
Source: xFasterTransformer, arXiv 2407.00029 and 2407.07304.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network, Processor
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import fitted
from luwu.predict.hardware.values import check_choice
from luwu.predict.inference.inference import Inference
from luwu.predict.inference.inference_job import cache_bytes_per_element, check_tensor
from luwu.predict.model.collectives import Path, hierarchical_all_reduce
from luwu.predict.model.job import StepTime
from luwu.predict.model.layers import WIRE_BYTES
from luwu.predict.model.placement import network_path

SOCKET_WEIGHT_BYTES: Final = {"bf16": 2.0, "int8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketJob:
    """An inference job on sockets. Raises ConfigError if it is impossible."""

    model: Transformer
    processor: Processor
    network: Network
    """Between hosts, by what a host has of it."""
    inside: Network
    """Between the sockets of a host."""
    sockets: int = 1
    host_sockets: int = 2
    precision: str = "bf16"
    kv_precision: str = "bf16"
    batch: int = 1
    input_tokens: int
    output_tokens: int
    memory_bytes: float | None = None
    """Memory of a socket; None: it is not checked whether it holds the batch."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, SOCKET_WEIGHT_BYTES)
        check_choice("kv_precision", self.kv_precision, ("bf16", "int8"))
        check_tensor("sockets", self.sockets, self.model)
        if self.sockets > self.host_sockets and self.sockets % self.host_sockets:
            raise ConfigError(
                f"sockets: {self.sockets} are not a multiple of host_sockets = {self.host_sockets}"
            )
        if self.memory_bytes is not None:
            self._check_memory(self.memory_bytes)

    def _check_memory(self, has: float) -> None:
        fits = _batch_max(self, has)
        if self.batch > fits:
            each = socket_cache_bytes(self, self.tokens)
            needs = socket_weight_bytes(self) + self.batch * each
            advice = f"a batch of {fits} fits" if fits > 0 else "more sockets would fit"
            raise ConfigError(
                f"batch: {self.batch} sequences need {needs / 1e9:.3g} GB on each socket, which "
                f"has {has / 1e9:.3g} GB; {advice}"
            )

    @property
    def peak(self) -> float:
        """Peak operations/s of a socket. Raises ConfigError if the processor's is not known."""
        if self.processor.bf16 is None:
            raise ConfigError(
                f"processor.{self.processor.name}.bf16 is missing, and it limits prefill; give the "
                "peak of its matrix products"
            )
        return self.processor.bf16

    @property
    def devices(self) -> int:
        """Sockets in all."""
        return self.sockets

    @property
    def tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.input_tokens + self.output_tokens

    @property
    def hosts(self) -> int:
        """In all."""
        return max(1, self.sockets // self.host_sockets)


def socket_weight_bytes(job: SocketJob) -> float:
    """Weights of a socket, embedding and output layer included."""
    return job.model.parameters * SOCKET_WEIGHT_BYTES[job.precision] / job.sockets


def socket_cache_bytes(job: SocketJob, tokens: float) -> float:
    """Keys and values of one sequence on a socket."""
    model = job.model
    heads = max(1, model.kv_heads // job.sockets)
    element = cache_bytes_per_element(job.kv_precision, model.head_width)
    return 2 * model.layers * tokens * heads * model.head_width * element


def with_largest_socket_batch(job: SocketJob) -> SocketJob:
    """The same with as many sequences as memory holds. Raises ConfigError if it is not given."""
    if job.memory_bytes is None:
        raise ConfigError(
            "memory_bytes is missing: the largest batch is what the memory of a socket holds; give "
            'it, such as "256 GiB", or a batch'
        )
    return replace(job, batch=_batch_max(job, job.memory_bytes))


def _batch_max(job: SocketJob, memory_bytes: float) -> int:
    each = socket_cache_bytes(job, job.tokens)
    return int((memory_bytes - socket_weight_bytes(job)) // each)


def predict_on_sockets(job: SocketJob) -> Inference:
    """All that users ask of a job."""
    decode, prefill = predict_socket_token(job), predict_socket_prefill(job)
    whole_s = prefill.seconds + (job.output_tokens - 1) * decode.seconds  # IN5
    rate = job.batch * job.output_tokens / whole_s
    return Inference(tokens_per_s=rate, batch=job.batch, decode=decode, first_token=prefill)


def predict_socket_token(job: SocketJob) -> StepTime:
    """Between two tokens of a sequence, at the mean length (K1)."""
    context = job.input_tokens + job.output_tokens / 2
    cache = job.batch * socket_cache_bytes(job, context)
    attention = job.model.layers * job.model.attention_operations(job.batch, context)
    return _time(job, job.batch, cache, attention)


def predict_socket_prefill(job: SocketJob) -> StepTime:
    """The prompts of a batch (K3): at the peak of the processor, so a bound from below; nothing
    published calibrates it."""
    tokens = job.batch * job.input_tokens
    attention = job.model.layers * job.model.attention_operations(tokens, job.input_tokens, 0.5)
    return _time(job, tokens, 0.0, attention)


def _time(job: SocketJob, tokens: float, cache: float, attention: float) -> StepTime:
    """Tokens that pass through all layers on all sockets."""
    model = job.model
    rate = job.processor.memory_rate * fitted("processor_share")
    idle = model.embedding_parameters if not model.tied else 0  # a look-up, of a row for a token
    unread = idle * SOCKET_WEIGHT_BYTES[job.precision] / job.sockets
    weights_s = (socket_weight_bytes(job) - unread) / rate
    operations = 2 * model.active_parameters * tokens + attention
    computed_s = operations / job.sockets / job.peak
    cache_s = cache / rate
    in_host, port = min(job.sockets, job.host_sockets), network_path(job.network)
    hop_s, nbytes = fitted("socket_hop_s"), WIRE_BYTES * tokens * model.hidden
    between = Path(latency_s=port.latency_s + hop_s, rate=port.rate / in_host)
    inside = network_path(job.inside)
    exchange_s = hierarchical_all_reduce(job.hosts, in_host, nbytes, inside, between)
    return StepTime(
        parts={
            "weights": weights_s,
            "cache": cache_s,
            "products": max(0.0, computed_s - weights_s - cache_s),
            "exchange": 2 * model.layers * exchange_s,
        }
    )

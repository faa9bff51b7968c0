"""Questions of inference: what answers, on devices or on the sockets of hosts.

    system = "inference"             on devices
    model = "Llama3-405B"
    device = "H200-141"
    network = "ib-ndr"               between devices that share no domain
    tensor = 8
    pipeline = 1
    replicas = 1                     copies of the model that share the requests
    precision = "fp8"                of weights and products: bf16, fp8, fp4
    kv_precision = "fp8"             of the cache: bf16, fp8, int8
    batch = "largest"                or sequences at once, of a copy
    batching = "continuous"          or static: a batch begins and ends as one
    budget_tokens = 8192             of a round of continuous batching
    input_tokens = 2048
    output_tokens = 128

    system = "inference-sockets"     on processors, with `processor`, `sockets`, `host_sockets`,
                                     `inside` (the network in a host), `parallel_blocks`, and
                                     `memory_bytes` of a socket, which a largest batch needs

A largest batch is that which memory holds; of more memory it is larger, which elasticities show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict import units
from luwu.predict.catalogue import Catalogue
from luwu.predict.inference import Inference, predict_inference, with_largest_batch
from luwu.predict.inference_job import InferenceJob
from luwu.predict.inference_sockets import (
    SocketJob,
    SocketTime,
    predict_socket_prefill,
    predict_socket_token,
    socket_cache_bytes,
    socket_weight_bytes,
)
from luwu.predict.question_keys import check_keys, flag_of, text_of, whole_of, wholes_of
from luwu.predict.units import Dimension

INFERENCE: Final = {
    "inference": "prefill and decode on devices, by tensor and pipeline ranks",
    "inference-sockets": "the same on processors, whose sockets are tensor ranks",
}
LARGEST: Final = "largest"
_TOKENS: Final = ("input_tokens", "output_tokens")
_WHOLE: Final = ("tensor", "pipeline", "budget_tokens", *_TOKENS)
_CHOICES: Final = ("precision", "kv_precision", "batching")
_NEEDED: Final = ("system", "model", "device", "network", *_TOKENS)
_SOCKET_WHOLE: Final = ("sockets", "host_sockets", *_TOKENS)
_SOCKET_NEEDED: Final = ("system", "model", "processor", "network", *_TOKENS)
_SOCKETS_INSIDE: Final = "upi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is predicted of a question on devices."""

    job: InferenceJob
    """With the batch that was taken."""
    inference: Inference
    replicas: int

    @property
    def tokens_per_s(self) -> float:
        """That come out of all devices of all copies."""
        return self.replicas * self.inference.tokens_per_s

    @property
    def seconds(self) -> float:
        """Of a token that comes out, of all of them."""
        return 1 / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceQuestion:
    """What answers on devices."""

    job: InferenceJob
    """Where the batch is to be the largest, with a batch of 1."""
    is_largest: bool = False
    replicas: int = 1

    @property
    def system(self) -> str:
        """As users write it."""
        return "inference"

    @property
    def devices(self) -> int:
        """Of all copies."""
        return self.replicas * self.job.devices

    def answer(self) -> Served:
        """The prediction. Raises ConfigError for what cannot be."""
        job = with_largest_batch(self.job) if self.is_largest else self.job
        return Served(job=job, inference=predict_inference(job), replicas=self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBySockets:
    """What is predicted of a question on sockets."""

    job: SocketJob
    """With the batch that was taken."""
    token: SocketTime
    prefill: SocketTime | None
    """None: the processor's peak, which binds it, is not known."""
    replicas: int

    @property
    def tokens_per_s(self) -> float | None:
        """That come out of all sockets of all copies (I5); None where prefill is not known."""
        if self.prefill is None:
            return None
        job = self.job
        whole_s = self.prefill.seconds + (job.output_tokens - 1) * self.token.seconds
        return self.replicas * job.batch * job.output_tokens / whole_s

    @property
    def seconds(self) -> float:
        """Of a token that comes out, of all of them; where prefill is not known, of decode."""
        rate = self.tokens_per_s
        return 1 / rate if rate else self.token.seconds / self.job.batch / self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketQuestion:
    """What answers on sockets."""

    job: SocketJob
    is_largest: bool = False
    replicas: int = 1

    @property
    def system(self) -> str:
        """As users write it."""
        return "inference-sockets"

    def answer(self) -> ServedBySockets:
        """The prediction. Raises ConfigError for what cannot be."""
        job = replace(self.job, batch=largest_socket_batch(self.job)) if self.is_largest else (
            self.job
        )  # fmt: skip
        prefill = None if job.processor.bf16 is None else predict_socket_prefill(job)
        return ServedBySockets(
            job=job, token=predict_socket_token(job), prefill=prefill, replicas=self.replicas
        )


def largest_socket_batch(job: SocketJob) -> int:
    """Sequences that the memory of a socket holds. Raises ConfigError where nobody said it."""
    if job.memory_bytes is None:
        raise ConfigError(
            "memory_bytes is missing: the largest batch is what the memory of a socket holds; give "
            'it, such as "256 GiB", or a batch'
        )
    each = socket_cache_bytes(job, job.input_tokens + job.output_tokens)
    return max(1, int((job.memory_bytes - socket_weight_bytes(job)) // each))


def make_inference_question(
    table: Mapping[str, Any], catalogue: Catalogue, more: tuple[str, ...] = ()
) -> InferenceQuestion:
    """A question of a table, in which keys of `more` are somebody else's. Raises ConfigError."""
    known = [*_NEEDED, *_WHOLE, *_CHOICES, "batch", "replicas", *more]
    check_keys("", table, dict.fromkeys(known), _NEEDED)
    batch = _batch(table)
    job = InferenceJob(
        model=catalogue.model(text_of("", table, "model")),
        device=catalogue.device(text_of("", table, "device")),
        network=catalogue.network(text_of("", table, "network")),
        batch=batch or 1,
        **_values(table, _WHOLE, _CHOICES),
    )
    replicas = whole_of("", table, "replicas") if "replicas" in table else 1
    return InferenceQuestion(job=job, is_largest=batch is None, replicas=replicas)


def make_socket_question(
    table: Mapping[str, Any], catalogue: Catalogue, more: tuple[str, ...] = ()
) -> SocketQuestion:
    """The same of sockets. Raises ConfigError."""
    choices = ("precision", "kv_precision")
    own = ("inside", "parallel_blocks", "memory_bytes", "batch", "replicas")
    check_keys(
        "", table, dict.fromkeys([*_SOCKET_NEEDED, *_SOCKET_WHOLE, *choices, *own, *more]),
        _SOCKET_NEEDED,
    )  # fmt: skip
    memory = table.get("memory_bytes")
    inside = text_of("", table, "inside") if "inside" in table else _SOCKETS_INSIDE
    batch = _batch(table)
    job = SocketJob(
        model=catalogue.model(text_of("", table, "model")),
        processor=catalogue.processor(text_of("", table, "processor")),
        network=catalogue.network(text_of("", table, "network")),
        inside=catalogue.network(inside, "inside"),
        parallel_blocks=flag_of("", table, "parallel_blocks"),
        memory_bytes=None
        if memory is None
        else units.parse("memory_bytes", memory, Dimension.BYTES),
        batch=batch or 1,
        **_values(table, _SOCKET_WHOLE, choices),
    )
    if batch is None:
        largest_socket_batch(job)
    replicas = whole_of("", table, "replicas") if "replicas" in table else 1
    return SocketQuestion(job=job, is_largest=batch is None, replicas=replicas)


def _values(
    table: Mapping[str, Any], wholes: tuple[str, ...], choices: tuple[str, ...]
) -> dict[str, Any]:
    found: dict[str, Any] = dict(wholes_of("", table, wholes))
    return found | {key: text_of("", table, key) for key in choices if key in table}


def _batch(table: Mapping[str, Any]) -> int | None:
    """Sequences at once; None: as many as memory holds."""
    batch = table.get("batch", 1)
    if batch == LARGEST:
        return None
    if isinstance(batch, str):
        raise ConfigError(f"batch: {batch!r} is neither a whole number nor {LARGEST!r}")
    return whole_of("", {"batch": batch}, "batch")

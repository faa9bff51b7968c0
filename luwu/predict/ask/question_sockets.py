"""Questions of inference on the sockets of hosts.

    system = "inference-sockets"
    model = "Qwen-72B"
    processor = "Xeon-8575C"
    network = "roce-100g"            between hosts
    inside = "upi"                   between the sockets of a host
    sockets = 4
    host_sockets = 2
    parallel_blocks = false          attention and MLP of a layer run side by side
    memory_bytes = "256 GiB"         of a socket; without it, nobody asks whether all fits
    precision = "bf16"               or int8; kv_precision the same
    batch = 1                        or "largest", which needs memory_bytes
    input_tokens = 128
    output_tokens = 128

Prefill is bound by the peak of the processor. Where that is not known, first tokens and tokens a
second in all are not either, and the answer says so; the time between tokens is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs, Place
from luwu.predict.ask.question_inference import batch_of
from luwu.predict.ask.question_keys import read_keys
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import network_of
from luwu.predict.inference.inference_sockets import (
    SocketJob,
    SocketTime,
    predict_socket_prefill,
    predict_socket_token,
    socket_cache_bytes,
    socket_weight_bytes,
)
from luwu.predict.networks.choice import Built, TopologyChoice
from luwu.predict.networks.on_topology import Exchange, connections, slowest, socket_exchanges

_INSIDE: Final = "upi"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBySockets:
    """The prediction of a question on sockets."""

    job: SocketJob
    """With the batch that was taken."""
    token: SocketTime
    prefill: SocketTime | None
    """None: the processor's peak, which binds it, is not known."""
    replicas: int

    @property
    def tokens_per_s(self) -> float | None:
        """That come out of all sockets of all copies (IN5); None where prefill is not known."""
        if self.prefill is None:
            return None
        job = self.job
        whole_s = self.prefill.seconds + (job.output_tokens - 1) * self.token.seconds
        return self.replicas * job.batch * job.output_tokens / whole_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketQuestion:
    """A question about inference on sockets."""

    job: SocketJob
    is_largest: bool = False
    replicas: int = 1
    topology: TopologyChoice | None = None
    costs: Costs | None = None

    @property
    def system(self) -> str:
        """As users write it."""
        return "inference-sockets"

    @property
    def place(self) -> Place:
        """The machines that it needs."""
        return Place(ranks=self.replicas * self.job.hosts, are_hosts=True)

    def build(self) -> Built | None:
        """The network between the hosts of all copies."""
        if self.topology is None:
            return None
        return self.topology.build(self.job.network, None, self.replicas * self.job.hosts)

    def exchanges(self) -> dict[str, Exchange]:
        """That go over the network in a decode round."""
        return socket_exchanges(self._asked)

    @property
    def _asked(self) -> SocketJob:
        if not self.is_largest:
            return self.job
        return replace(self.job, batch=largest_socket_batch(self.job))

    def answer(self) -> ServedBySockets:
        """The prediction. Raises ConfigError for what cannot be."""
        job = self._asked
        built = self.build()
        if built is not None:
            found = connections(built, socket_exchanges(job))
            job = replace(job, network=slowest(job.network, list(found.values())))
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


def make_socket_question(
    table: Mapping[str, Any],
    catalogue: Catalogue,
    *,
    topology: TopologyChoice | None = None,
    costs: Costs | None = None,
) -> SocketQuestion:
    """The same of sockets. Raises ConfigError."""
    values = read_keys(table, "inference-sockets")
    replicas, batch = values.pop("replicas", 1), batch_of(values)
    del values["system"]
    job = SocketJob(
        model=catalogue.model(values.pop("model")),
        processor=catalogue.processor(values.pop("processor")),
        network=network_of(values, catalogue),
        inside=catalogue.network(values.pop("inside", _INSIDE), "inside"),
        batch=batch or 1,
        **values,
    )
    if batch is None:
        largest_socket_batch(job)
    return SocketQuestion(
        job=job, is_largest=batch is None, topology=topology, costs=costs, replicas=replicas
    )

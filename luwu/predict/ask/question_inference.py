"""Questions of inference: what answers, on devices. Of sockets: `question_sockets.py`.

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

`[arrivals]` has requests come one by one, and plays them (`inference/arrivals.py`).

A largest batch is that which memory holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs, Place
from luwu.predict.ask.question_keys import read_keys
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import network_of, optional_section_of, whole_of
from luwu.predict.inference.arrivals import Arrivals, make_arrivals
from luwu.predict.inference.inference import Inference, predict_inference, with_largest_batch
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.networks.choice import Built, TopologyChoice, check_ports
from luwu.predict.networks.on_topology import Exchange, connections, inference_exchanges, slowest

LARGEST: Final = "largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The prediction of a question on devices."""

    job: InferenceJob
    """With the batch that was taken."""
    inference: Inference
    replicas: int

    @property
    def tokens_per_s(self) -> float:
        """That come out of all devices of all copies."""
        return self.replicas * self.inference.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceQuestion:
    """A question about inference on devices."""

    job: InferenceJob
    """Where the batch is to be the largest, with a batch of 1."""
    is_largest: bool = False
    replicas: int = 1
    arrivals: Arrivals | None = None
    nics_per_host: int | None = None
    """That the devices of a host share, as it was asked; None: one each."""
    topology: TopologyChoice | None = None
    costs: Costs | None = None

    def __post_init__(self) -> None:
        if self.topology is not None:
            check_ports(self.job.network)

    @property
    def system(self) -> str:
        """As users write it."""
        return "inference"

    @property
    def place(self) -> Place:
        """The machines that it needs."""
        return Place(ranks=self.devices)

    def build(self) -> Built | None:
        """The network, for all copies."""
        if self.topology is None:
            return None
        return self.topology.build(self.job.network, self.job.device, self.devices)

    @property
    def devices(self) -> int:
        """Devices of all copies."""
        return self.replicas * self.job.devices

    def exchanges(self) -> dict[str, Exchange]:
        """That go over the network in a decode round."""
        return inference_exchanges(self._asked)

    @property
    def _asked(self) -> InferenceJob:
        return with_largest_batch(self.job) if self.is_largest else self.job

    def answer(self) -> Served:
        """The prediction. Raises ConfigError for what cannot be."""
        job = self._asked
        built = self.build()
        if built is not None:
            found = connections(built, inference_exchanges(job))
            job = replace(job, network=slowest(job.network, list(found.values())))
        return Served(job=job, inference=predict_inference(job), replicas=self.replicas)


def make_inference_question(
    table: Mapping[str, Any],
    catalogue: Catalogue,
    *,
    topology: TopologyChoice | None = None,
    costs: Costs | None = None,
) -> InferenceQuestion:
    """A question of a table without its [topology] and [cost]. Raises ConfigError."""
    values = read_keys(table, "inference")
    replicas, batch = values.pop("replicas", 1), batch_of(values)
    nics = values.pop("nics_per_host", None)
    device = catalogue.device(values.pop("device"))
    network = network_of(values, catalogue)
    if nics is not None:
        network = network.of_nics(nics, int(device.domain_count))
    del values["system"]
    job = InferenceJob(
        model=catalogue.model(values.pop("model")), device=device, network=network,
        batch=batch or 1, **values,
    )  # fmt: skip
    came = optional_section_of(table, "arrivals")
    return InferenceQuestion(
        job=job, is_largest=batch is None, topology=topology, costs=costs,
        arrivals=None if came is None else make_arrivals(came, job), replicas=replicas,
        nics_per_host=nics,
    )  # fmt: skip


def batch_of(values: dict[str, Any]) -> int | None:
    """Sequences at once, taken out of the values; None: as many as memory holds."""
    batch = values.pop("batch", 1)
    if batch == LARGEST:
        return None
    if isinstance(batch, str):
        raise ConfigError(f"batch: {batch!r} is neither a whole number nor {LARGEST!r}")
    return whole_of("", {"batch": batch}, "batch")

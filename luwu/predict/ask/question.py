"""A question as users write it: a TOML file, or a table, made into what is predicted.

Which keys there are depends on the system (`keys.py`). `[cost]` goes with all systems (`cost.py`),
`[topology]` with those of training: `networks/choice.py`; `[arrivals]` with inference on devices:
`inference/arrivals.py`. A key that is unknown, of another system, or missing is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.base.foreign import read_toml
from luwu.predict.ask.cost import Costs
from luwu.predict.ask.keys import SECTIONS, TRAINING, read_keys, system_of
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Host
from luwu.predict.hardware.model import CONFIG_SUFFIX
from luwu.predict.hardware.values import optional_section_of, section_of, whole_of
from luwu.predict.inference import inference_sockets as on_sockets
from luwu.predict.inference.arrivals import Arrivals, make_arrivals
from luwu.predict.inference.inference import Inference, predict_inference
from luwu.predict.inference.inference_job import InferenceJob, with_largest_batch
from luwu.predict.inference.inference_sockets import SocketJob
from luwu.predict.model import memory
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.placement import domain_count
from luwu.predict.networks import on_topology
from luwu.predict.networks.choice import Built, TopologyChoice, make_topology
from luwu.predict.networks.topologies import AggregationTree
from luwu.predict.systems import data_parallel
from luwu.predict.systems.data_parallel import Offload
from luwu.predict.systems.in_network import OptimizerNodes, predict_in_network_step
from luwu.predict.systems.training import predict_step

ALONE: Final = {
    "zero3": data_parallel.predict_sharded_step,
    "3d": predict_step,
    "ddp": data_parallel.predict_replicated_step,
    "atp": data_parallel.predict_switch_summed_step,
}
"""Systems that are a job and nothing else."""
LARGEST: Final = "largest"
_DEGREES: Final = ("tensor", "pipeline", "virtual", "context", "expert", "expert_tensor")
_HOST: Final = ("processor", "processors", "memory_bytes", "disk", "disks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A training job on a system; `part` is what only that system has."""

    system: str
    job: TrainingJob
    part: OptimizerNodes | Offload | None = None
    topology: TopologyChoice | None = None
    costs: Costs | None = None
    tokens: float | None = None
    """Of the whole training; None: not given."""
    nics_per_host: int | None = None
    """That the devices of a host share, as it was asked; None: one each."""

    def __post_init__(self) -> None:
        if self.topology is not None:
            sharing = self.job.network.devices_count
            if sharing > 1:  # an endpoint is the port of one device
                raise ConfigError(
                    f"nics_per_host: {sharing:g} devices share a NIC, while [topology] has a port "
                    "for each; leave one of them out"
                )
            if self.nodes is not None and self.nodes.per_host != "none":
                raise ConfigError("node.per_host: [topology] copies to each device; leave one out")

    def answer(self) -> StepTime:
        """The prediction. Raises ConfigError for what cannot be."""
        built = self.build()
        if built is not None and self.system == "3d":
            found = on_topology.connections(built, self.exchanges())
            return on_topology.three_d_step(self.job, found)
        if built is not None:
            return self.as_on_topology().answer()
        if isinstance(self.part, OptimizerNodes):
            return predict_in_network_step(self.job, self.part)
        if isinstance(self.part, Offload):
            return data_parallel.predict_offload_step(self.job, self.part)
        return ALONE[self.system](self.job)

    def as_on_topology(self) -> Question:
        """The same without a topology, on ports as it leaves them."""
        built, part = self.build(), self.part
        if built is None:
            return self
        found = on_topology.connections(built, self.exchanges())
        network = on_topology.slowest(self.job.network, found.values())
        if isinstance(part, OptimizerNodes):  # whose form counts the tiers itself
            network = replace(network, latency_s=self.job.network.latency_s)
            tiers = len(built.tiers) if isinstance(built, AggregationTree) else found["pull"].hops
            part = replace(part, tiers=tiers)
        return replace(self, job=replace(self.job, network=network), part=part, topology=None)

    def build(self) -> Built | None:
        """The network, with a place for every device, and for the nodes. Raises ConfigError."""
        if self.topology is None:
            return None
        job, nodes = self.job, 0 if self.nodes is None else self.nodes.nodes
        return self.topology.build(job.network, job.devices, nodes, domain=domain_count(job))

    def exchanges(self) -> dict[str, on_topology.Exchange]:
        """That go over the network in a step."""
        return on_topology.training_exchanges(self.system, self.job, self.nodes)

    @property
    def nodes(self) -> OptimizerNodes | None:
        """Where LuWu's state is."""
        return self.part if isinstance(self.part, OptimizerNodes) else None

    @property
    def memory_bytes(self) -> dict[str, float]:
        """Memory of a device by use."""
        states, activations = memory.stage_memory(self.job)
        if self.system != "3d":
            states = memory.state_bytes(self.system, self.job)
        return {"states": states, "activations": activations}

    @property
    def needed_bytes(self) -> float:
        """Memory of a device that the job needs."""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.job.device.memory_bytes

    @property
    def dollars_per_s(self) -> float | None:
        """The rent of its machines; None where no costs are given. Raises ConfigError."""
        nodes = 0 if self.nodes is None else self.nodes.nodes
        return None if self.costs is None else self.costs.dollars_per_s(self.job.devices, nodes)


def make_training_question(
    table: Mapping[str, Any], catalogue: Catalogue, *, topology: TopologyChoice | None = None,
    costs: Costs | None = None,
) -> Question:  # fmt: skip
    """A question of training, whose [topology] and [cost] are read. Raises ConfigError."""
    system = system_of(table)
    values = read_keys(table, system, catalogue)
    del values["system"]
    if system != "3d":
        for key in _DEGREES:
            if values.get(key, 1) != 1:
                raise ConfigError(f"{key}: {system} has data parallel ranks alone; leave it out")
    nics, tokens = values.pop("nics_per_host", None), values.pop("tokens", None)
    job = on_nics(TrainingJob(**_on_hosts(values)), nics)
    if tokens is not None and not tokens >= job.tokens:
        raise ConfigError(
            f"tokens: {table['tokens']!r} of the whole training are less than a step's "
            f"{job.tokens:,}; such as '1T' fits"
        )
    part, section = None, SECTIONS.get(system)
    if section is not None:
        own = section_of(table, section, f"{system} needs to know where its state is")
        part = _part(read_keys(own, system, catalogue, section), system, job)
    return Question(
        system=system, job=job, part=part, topology=topology, costs=costs, tokens=tokens,
        nics_per_host=nics,
    )  # fmt: skip


def _part(values: dict[str, Any], system: str, job: TrainingJob) -> OptimizerNodes | Offload:
    host = Host(**{key: values.pop(key) for key in _HOST if key in values})
    if system != "luwu":
        return Offload(host=host, to_disk=system == "zero-infinity", **values)
    own = replace(job.network, devices_count=1.0)  # a node has a port of its own
    return OptimizerNodes(host=host, **{"network": own, **values})


def on_nics(job: TrainingJob, nics: int | None) -> TrainingJob:
    """The same job, whose devices in a host share so many NICs. Raises ConfigError."""
    if nics is None:
        return job
    places = domain_count(job)
    return replace(job, network=job.network.of_nics(nics, places, min(places, job.devices)))


def _on_hosts(values: dict[str, Any]) -> dict[str, Any]:
    """The values, with the devices of a host that they give."""
    devices = values.pop("devices_per_host", None)
    if devices is not None:
        values["device"] = replace(values["device"], domain_count=float(devices))
        if "software" in values:
            values["software"] = replace(values["software"], host_devices=None)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceQuestion:
    """A question about inference, on devices or on the sockets of hosts."""

    job: InferenceJob | SocketJob
    is_largest: bool = False
    """The batch is the largest that memory holds."""
    arrivals: Arrivals | None = None
    nics_per_host: int | None = None
    """That the devices of a host share, as it was asked; None: one each."""
    costs: Costs | None = None

    @property
    def system(self) -> str:
        """As users write it."""
        return "inference" if isinstance(self.job, InferenceJob) else "inference-sockets"

    @property
    def dollars_per_s(self) -> float | None:
        """The rent of its machines; None where no costs are given. Raises ConfigError."""
        each = self.job.devices if isinstance(self.job, InferenceJob) else self.job.hosts
        return None if self.costs is None else self.costs.dollars_per_s(each)

    def answer(self) -> Inference:
        """The prediction. Raises ConfigError for what cannot be."""
        if isinstance(self.job, InferenceJob):
            return predict_inference(self.job)
        return on_sockets.predict_on_sockets(self.job)


def _make_inference_question(
    table: Mapping[str, Any], catalogue: Catalogue, **shared: Any
) -> InferenceQuestion:
    """A question of inference, whose [cost] is read."""
    values = _on_hosts(read_keys(table, system_of(table), catalogue))
    is_on_devices = values.pop("system") == "inference"
    nics, batch = values.pop("nics_per_host", None), _batch_of(values)
    shared |= {"is_largest": batch is None}
    if not is_on_devices:
        values.setdefault("inside", catalogue.network("upi", "inside"))
        host = SocketJob(batch=batch or 1, **values)
        return InferenceQuestion(
            job=host if batch else on_sockets.with_largest_socket_batch(host), **shared
        )
    job = InferenceJob(batch=batch or 1, **values)
    if nics is not None:
        places = int(job.device.domain_count)
        network = job.network.of_nics(nics, places, min(places, job.devices))
        job = replace(job, network=network)
    came = optional_section_of(table, "arrivals")
    return InferenceQuestion(
        job=job if batch else with_largest_batch(job), nics_per_host=nics,
        arrivals=None if came is None else make_arrivals(came, job), **shared,
    )  # fmt: skip


def _batch_of(values: dict[str, Any]) -> int | None:
    """Sequences at once, taken out of the values; None: as many as memory holds."""
    batch = values.pop("batch", 1)
    if batch == LARGEST:
        return None
    if isinstance(batch, str):
        raise ConfigError(f"batch: {batch!r} is neither a whole number nor {LARGEST!r}")
    return whole_of("", {"batch": batch}, "batch")


AnyQuestion: TypeAlias = Question | InferenceQuestion


def read_table(path: Path) -> dict[str, Any]:
    """A TOML file; a model's `config.json` is found from its place. Raises ConfigError."""
    table = read_toml(path, "question")
    model = table.get("model")
    if isinstance(model, str) and model.endswith(CONFIG_SUFFIX):
        table["model"] = str(path.parent / model)
    return table


def make_question(table: Mapping[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """A question of a table. Raises ConfigError, which names the key."""
    system = system_of(table)
    spent = optional_section_of(table, "cost")
    costs = None if spent is None else Costs(**read_keys(spent, system, catalogue, "cost"))
    if system not in TRAINING:
        return _make_inference_question(table, catalogue, costs=costs)
    network = optional_section_of(table, "topology")
    topology = None if network is None else make_topology(network)
    return make_training_question(table, catalogue, topology=topology, costs=costs)

"""Questions of training: a job on a system, of what users write.

    nics_per_host = 1            that the devices of a host share; one each unless given
    streams = 24                 at once on a port, of networks where one does not fill it
    tokens = "1T"                of the whole training: how long it takes, and what it costs

    [node]                       of luwu: where the state is
    processor = "Xeon-5320"
    disk = "P5510-3.84T"
    disks = 12
    memory_bytes = "512 GiB"

`[host]` is the same of the systems that offload, with `devices` of a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs, Place
from luwu.predict.ask.question_keys import SECTIONS, read_keys, system_of
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hosts import Host
from luwu.predict.hardware.keys import network_of, section_of
from luwu.predict.hardware.software import software
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.placement import domain_count
from luwu.predict.networks.choice import Built, TopologyChoice, check_ports
from luwu.predict.networks.on_topology import (
    Exchange,
    build_for_training,
    on_topology,
    three_d_step,
    training_exchanges,
)
from luwu.predict.systems.in_network import OptimizerNodes, predict_in_network_step
from luwu.predict.systems.offload import Offload, predict_offload_step
from luwu.predict.systems.replicated import predict_replicated_step, predict_switch_summed_step
from luwu.predict.systems.training import predict_step
from luwu.predict.systems.zero import predict_sharded_step

ALONE: Final = {
    "zero3": predict_sharded_step,
    "3d": predict_step,
    "ddp": predict_replicated_step,
    "atp": predict_switch_summed_step,
}
"""Systems that are a job and nothing else."""
_DEGREES: Final = ("tensor", "pipeline", "virtual", "context", "expert", "expert_tensor")
_HOST: Final = ("processors", "memory_bytes", "disks")
Part = OptimizerNodes | Offload | None


def predict(system: str, job: TrainingJob, part: Part) -> StepTime:
    """A step of a job on a system. Raises ConfigError for what cannot be."""
    if isinstance(part, OptimizerNodes):
        return predict_in_network_step(job, part)
    if isinstance(part, Offload):
        return predict_offload_step(job, part)
    return ALONE[system](job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A job on a system; `part` is what only that system has."""

    system: str
    job: TrainingJob
    part: Part = None
    topology: TopologyChoice | None = None
    costs: Costs | None = None
    tokens: float | None = None
    """Of the whole training; None: not given."""
    nics_per_host: int | None = None
    """That the devices of a host share, as it was asked; None: one each."""

    def __post_init__(self) -> None:
        if self.topology is None:
            return
        check_ports(self.job.network)
        if self.nodes is not None and self.nodes.per_host != "none":
            raise ConfigError("node.per_host: [topology] copies to each device; leave one out")

    def answer(self) -> StepTime:
        """The prediction. Raises ConfigError for what cannot be."""
        if self.topology is None:
            return predict(self.system, self.job, self.part)
        job, nodes, found = on_topology(self.topology, self.system, self.job, self.nodes)
        if self.system == "3d":
            return three_d_step(self.job, found)
        return predict(self.system, job, nodes or self.part)

    def as_on_topology(self) -> Question:
        """The same without a topology, on ports as it leaves them."""
        if self.topology is None:
            return self
        job, nodes, _ = on_topology(self.topology, self.system, self.job, self.nodes)
        return replace(self, job=job, part=nodes or self.part, topology=None)

    def build(self) -> Built | None:
        """The network."""
        if self.topology is None:
            return None
        return build_for_training(self.topology, self.job, self.nodes)

    def exchanges(self) -> dict[str, Exchange]:
        """That go over the network in a step."""
        return training_exchanges(self.system, self.job, self.nodes)

    @property
    def nodes(self) -> OptimizerNodes | None:
        """Where LuWu's state is."""
        return self.part if isinstance(self.part, OptimizerNodes) else None

    @property
    def place(self) -> Place:
        """The machines that it needs."""
        ranks, part = self.job.devices, self.part
        if isinstance(part, OptimizerNodes):
            host = part.host
            return Place(ranks=ranks, nodes=part.nodes, node_disk=host.disk, node_disks=host.disks)
        if isinstance(part, Offload):
            host = part.host
            return Place(
                ranks=ranks, host_disk=host.disk, host_disks=host.disks, host_devices=part.devices
            )
        return Place(ranks=ranks)


def make_training_question(
    table: Mapping[str, Any],
    catalogue: Catalogue,
    *,
    topology: TopologyChoice | None = None,
    costs: Costs | None = None,
) -> Question:
    """A question of a table without its [topology] and [cost]. Raises ConfigError."""
    values = read_keys(table, system_of(table))
    system = values.pop("system")
    if system != "3d":
        for key in _DEGREES:
            if values.get(key, 1) != 1:
                raise ConfigError(f"{key}: {system} has data parallel ranks alone; leave it out")
    nics, tokens = values.pop("nics_per_host", None), values.pop("tokens", None)
    job = _job(values, catalogue)
    if nics is not None:
        job = replace(job, network=job.network.of_nics(nics, domain_count(job)))
    if tokens is not None and not tokens >= job.tokens:
        raise ConfigError(
            f"tokens: {table['tokens']!r} of the whole training are less than a step's "
            f"{job.tokens:,}; such as '1T' fits"
        )
    question = Question(
        system=system, job=job, topology=topology, costs=costs, tokens=tokens, nics_per_host=nics
    )
    section = SECTIONS.get(system)
    if section is None:
        return question
    own = section_of(table, section, f"{system} needs to know where its state is")
    if topology is not None and "tiers" in own:
        raise ConfigError(f"{section}.tiers: [topology] says how many there are; leave it out")
    return replace(question, part=_part(read_keys(own, system, section), system, catalogue, job))


def _job(values: dict[str, Any], catalogue: Catalogue) -> TrainingJob:
    return TrainingJob(
        model=catalogue.model(values.pop("model")), device=catalogue.device(values.pop("device")),
        network=network_of(values, catalogue), software=software(values.pop("software")), **values,
    )  # fmt: skip


def _part(
    values: dict[str, Any], system: str, catalogue: Catalogue, job: TrainingJob
) -> OptimizerNodes | Offload:
    section = SECTIONS[system]
    host = Host(
        processor=catalogue.processor(values.pop("processor"), f"{section}.processor"),
        disk=catalogue.disk(values.pop("disk"), f"{section}.disk") if "disk" in values else None,
        **{key: values.pop(key) for key in _HOST if key in values},
    )
    if section == "host":
        return Offload(host=host, to_disk=system == "zero-infinity", **values)
    network = replace(job.network, devices_count=1.0)  # a node has a port of its own
    if "network" in values:
        network = catalogue.network(values.pop("network"), "node.network")
    return OptimizerNodes(host=host, network=network, **values)

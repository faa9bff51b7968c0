"""Questions of training: a job on a system, of what users write.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs, Place
from luwu.predict.hardware import units
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hosts import Host
from luwu.predict.hardware.keys import (
    SHARED,
    check_keys,
    flag_of,
    network_of,
    section_of,
    text_of,
    whole_of,
    wholes_of,
)
from luwu.predict.hardware.software import software
from luwu.predict.hardware.units import Dimension
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.networks.choice import Built, TopologyChoice
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

TRAINING: Final = {
    "luwu": "weights and optimizer state at a node, sums in the network",
    "zero3": "states sharded over all devices: ZeRO-3, FSDP",
    "zero-offload": "the same, with optimizer state in the memory of hosts",
    "zero-infinity": "the same, with optimizer state on drives of hosts",
    "3d": "tensor, pipeline, context and data parallel ranks",
    "ddp": "a whole model on each device, gradients reduced among them",
    "atp": "the same, gradients summed by a switch",
}
ALONE: Final = {
    "zero3": predict_sharded_step,
    "3d": predict_step,
    "ddp": predict_replicated_step,
    "atp": predict_switch_summed_step,
}
"""Systems that are a job and nothing else."""
SECTIONS: Final = {"luwu": "node", "zero-offload": "host", "zero-infinity": "host"}
_DEGREES: Final = ("tensor", "pipeline", "virtual", "context", "expert", "expert_tensor")
_WHOLE: Final = ("devices", "sequence", "batch", "micro_batch", *_DEGREES)
_NAMES: Final = ("system", "model", "device", "network", "software", "recompute", "precision")
_NEEDED: Final = (
    "system", "model", "device", "network", "software", "devices", "sequence", "batch",
)  # fmt: skip
_HOST_KEYS: Final = ("processor", "processors", "memory_bytes", "disk", "disks")
_OWN_KEYS: Final = {
    "node": (
        *_HOST_KEYS,
        "network",
        "nodes",
        "cached",
        "aggregate_rate",
        "tiers",
        "pulls",
        "pulls_ahead",
    ),
    "host": (*_HOST_KEYS, "devices", "weights_to_disk", "pipelined"),
}
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

    def answer(self) -> StepTime:
        """The prediction. Raises ConfigError for what cannot be."""
        if self.topology is None:
            return predict(self.system, self.job, self.part)
        job, nodes, found = on_topology(self.topology, self.system, self.job, self.nodes)
        if self.system == "3d":
            return three_d_step(self.job, found, predict_step)
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
    system = text_of("", table, "system")
    section = SECTIONS.get(system)
    known = [
        *_NAMES,
        *_WHOLE,
        "sequence_parallel",
        "ends_as_layers",
        "streams",
        "tokens",
        "capacity",
        "slowdown",
        *([section] if section else []),
        *SHARED,
    ]
    check_keys("", table, known, _NEEDED)
    if system != "3d":
        for key in _DEGREES:
            if table.get(key, 1) != 1:
                raise ConfigError(f"{key}: {system} has data parallel ranks alone; leave it out")
    values: dict[str, Any] = dict(wholes_of("", table, _WHOLE))
    values |= {key: text_of("", table, key) for key in ("recompute", "precision") if key in table}
    for key in ("capacity", "slowdown"):
        if key in table:
            values[key] = units.parse(key, table[key], Dimension.RATIO)
    job = TrainingJob(
        model=catalogue.model(text_of("", table, "model")),
        device=catalogue.device(text_of("", table, "device")),
        network=network_of(table, catalogue),
        software=software(text_of("", table, "software")),
        sequence_parallel=flag_of("", table, "sequence_parallel"),
        ends_as_layers=flag_of("", table, "ends_as_layers"),
        **values,
    )
    tokens = None
    if "tokens" in table:
        tokens = units.parse("tokens", table["tokens"], Dimension.TOKENS)
        if not tokens >= job.tokens:
            raise ConfigError(
                f"tokens: {table['tokens']!r} of the whole training are less than a step's "
                f"{job.tokens:,}; such as '1T' fits"
            )
    if section is None:
        return Question(system=system, job=job, topology=topology, costs=costs, tokens=tokens)
    own = section_of(table, section, f"{system} needs to know where its state is")
    if topology is not None and "tiers" in own:
        raise ConfigError(f"{section}.tiers: [topology] says how many there are; leave it out")
    make: Callable[..., Part] = _nodes if section == "node" else _offload
    part = make(own, catalogue, job, system)
    return Question(
        system=system, job=job, part=part, topology=topology, costs=costs, tokens=tokens
    )  # fmt: skip


def _nodes(
    table: Mapping[str, Any], catalogue: Catalogue, job: TrainingJob, system: str
) -> OptimizerNodes:
    check_keys("node.", table, _OWN_KEYS["node"], ("processor", "memory_bytes"))
    values: dict[str, Any] = dict(wholes_of("node.", table, ("nodes", "tiers", "pulls")))
    if "cached" in table:
        values["cached"] = units.parse("node.cached", table["cached"], Dimension.RATIO)
    if "aggregate_rate" in table:
        rate = units.parse("node.aggregate_rate", table["aggregate_rate"], Dimension.BYTES_PER_S)
        values["aggregate_rate"] = rate
    own = catalogue.network(table["network"], "node.network") if "network" in table else None
    return OptimizerNodes(
        host=_host("node.", table, catalogue), network=own or job.network,
        pulls_ahead=flag_of("node.", table, "pulls_ahead"), **values,
    )  # fmt: skip


def _offload(
    table: Mapping[str, Any], catalogue: Catalogue, job: TrainingJob, system: str
) -> Offload:
    check_keys("host.", table, _OWN_KEYS["host"], ("processor", "memory_bytes", "devices"))
    return Offload(
        host=_host("host.", table, catalogue), devices=whole_of("host.", table, "devices"),
        to_disk=system == "zero-infinity",
        weights_to_disk=flag_of("host.", table, "weights_to_disk"),
        pipelined=flag_of("host.", table, "pipelined"),
    )  # fmt: skip


def _host(place: str, table: Mapping[str, Any], catalogue: Catalogue) -> Host:
    disk = table.get("disk")
    return Host(
        processor=catalogue.processor(str(table["processor"]), f"{place}processor"),
        memory_bytes=units.parse(f"{place}memory_bytes", table["memory_bytes"], Dimension.BYTES),
        disk=None if disk is None else catalogue.disk(disk, f"{place}disk"),
        **wholes_of(place, table, ("processors", "disks")),
    )

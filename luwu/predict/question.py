"""A question as users write it: a TOML file, or a table, made into a job on a system.

    system = "luwu"              one of SYSTEMS
    model = "GPT-175B"           names of the catalogue
    device = "A100-40"
    network = "roce-100g"
    software = "megatron-2023"
    devices = 8
    sequence = 2048
    batch = 64
    micro_batch = 8
    recompute = "full"
    streams = 24                 at once on a port, of networks where one does not fill it

    [node]                       of luwu: where the state is
    processor = "Xeon-5320"
    disk = "P5510-3.84T"
    disks = 12
    memory_bytes = "512 GiB"

`[host]` is the same of the systems that offload. A key that nobody knows, that belongs to another
system, or that is missing is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict import units
from luwu.predict.catalogue import Catalogue
from luwu.predict.hardware import Network
from luwu.predict.hosts import Host
from luwu.predict.in_network import OptimizerNodes, predict_in_network_step
from luwu.predict.job import StepTime, TrainingJob
from luwu.predict.offload import Offload, predict_offload_step
from luwu.predict.replicated import predict_replicated_step, predict_switch_summed_step
from luwu.predict.software import software
from luwu.predict.training import predict_step
from luwu.predict.units import Dimension
from luwu.predict.zero import predict_sharded_step

SYSTEMS: Final = {
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
_DEGREES: Final = ("tensor", "pipeline", "virtual", "context", "expert", "expert_tensor")
_WHOLE: Final = ("devices", "sequence", "batch", "micro_batch", *_DEGREES)
_NAMES: Final = ("system", "model", "device", "network", "software", "recompute", "precision")
_NEEDED: Final = (
    "system",
    "model",
    "device",
    "network",
    "software",
    "devices",
    "sequence",
    "batch",
)
SECTIONS: Final = {"luwu": "node", "zero-offload": "host", "zero-infinity": "host"}
_HOST_KEYS: Final = ("processor", "processors", "memory_bytes", "disk", "disks")
_OWN_KEYS: Final = {
    "node": (*_HOST_KEYS, "network", "nodes", "cached", "aggregate_rate", "tiers", "pulls"),
    "host": (*_HOST_KEYS, "devices", "weights_to_disk", "pipelined"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A job on a system; `part` is what only that system has."""

    system: str
    job: TrainingJob
    part: OptimizerNodes | Offload | None = None

    def answer(self) -> StepTime:
        """The prediction. Raises ConfigError for what cannot be."""
        if isinstance(self.part, OptimizerNodes):
            return predict_in_network_step(self.job, self.part)
        if isinstance(self.part, Offload):
            return predict_offload_step(self.job, self.part)
        return ALONE[self.system](self.job)


def read_table(path: Path) -> dict[str, Any]:
    """A TOML file of a user. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path}: is no TOML: {exc}") from exc


def read_question(path: Path, catalogue: Catalogue) -> Question:
    """A question of a file. Raises ConfigError."""
    return make_question(read_table(path), catalogue)


def make_question(table: Mapping[str, Any], catalogue: Catalogue) -> Question:
    """A question of a table. Raises ConfigError, which names the key."""
    system = table.get("system")
    if system not in SYSTEMS:
        raise ConfigError(
            f"system: {system!r} is none of {', '.join(SYSTEMS)}{suggestion(str(system), SYSTEMS)}"
        )
    section = SECTIONS.get(system)
    known = [
        *_NAMES,
        *_WHOLE,
        "sequence_parallel",
        "streams",
        "capacity",
        *([section] if section else []),
    ]
    _check_keys("", table, known, _NEEDED)
    if system != "3d":
        for key in _DEGREES:
            if table.get(key, 1) != 1:
                raise ConfigError(f"{key}: {system} has data parallel ranks alone; leave it out")
    values: dict[str, Any] = {key: _whole(key, table[key]) for key in _WHOLE if key in table}
    values |= {key: _text(key, table) for key in ("recompute", "precision") if key in table}
    if "capacity" in table:
        values["capacity"] = units.parse("capacity", table["capacity"], Dimension.RATIO)
    job = TrainingJob(
        model=catalogue.model(_text("model", table)),
        device=catalogue.device(_text("device", table)),
        network=_network(table, catalogue),
        software=software(_text("software", table)),
        sequence_parallel=_flag("sequence_parallel", table),
        **values,
    )
    if section is None:
        return Question(system=system, job=job)
    own = table.get(section)
    if not isinstance(own, dict):
        raise ConfigError(f"[{section}] is missing: {system} needs to know where its state is")
    make: Callable[..., Any] = _nodes if section == "node" else _offload
    return Question(system=system, job=job, part=make(own, catalogue, job, system))


def _network(table: Mapping[str, Any], catalogue: Catalogue) -> Network:
    network = catalogue.network(_text("network", table))
    if "streams" not in table:
        return network
    return network.with_streams(_whole("streams", table["streams"]))


def _nodes(
    table: Mapping[str, Any], catalogue: Catalogue, job: TrainingJob, system: str
) -> OptimizerNodes:
    _check_keys("node.", table, _OWN_KEYS["node"], ("processor", "memory_bytes"))
    values: dict[str, Any] = {
        key: _whole(f"node.{key}", table[key])
        for key in ("nodes", "tiers", "pulls")
        if key in table
    }
    if "cached" in table:
        values["cached"] = units.parse("node.cached", table["cached"], Dimension.RATIO)
    if "aggregate_rate" in table:
        rate = units.parse("node.aggregate_rate", table["aggregate_rate"], Dimension.BYTES_PER_S)
        values["aggregate_rate"] = rate
    own = catalogue.network(table["network"], "node.network") if "network" in table else None
    return OptimizerNodes(
        host=_host("node.", table, catalogue), network=own or job.network, **values
    )


def _offload(
    table: Mapping[str, Any], catalogue: Catalogue, job: TrainingJob, system: str
) -> Offload:
    _check_keys("host.", table, _OWN_KEYS["host"], ("processor", "memory_bytes", "devices"))
    return Offload(
        host=_host("host.", table, catalogue), devices=_whole("host.devices", table["devices"]),
        to_disk=system == "zero-infinity",
        weights_to_disk=_flag("weights_to_disk", table),
        pipelined=_flag("pipelined", table),
    )  # fmt: skip


def _host(place: str, table: Mapping[str, Any], catalogue: Catalogue) -> Host:
    disk = table.get("disk")
    return Host(
        processor=catalogue.processor(str(table["processor"]), f"{place}processor"),
        memory_bytes=units.parse(f"{place}memory_bytes", table["memory_bytes"], Dimension.BYTES),
        disk=None if disk is None else catalogue.disk(disk, f"{place}disk"),
        **{key: _whole(place + key, table[key]) for key in ("processors", "disks") if key in table},
    )


def _check_keys(place: str, table: Mapping[str, Any], known: Any, needed: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(
                f"{place}{key} is unknown here{suggestion(key, known)}; keys are {', '.join(known)}"
            )
    for key in needed:
        if key not in table:
            raise ConfigError(f"{place}{key} is missing")


def _text(key: str, table: Mapping[str, Any]) -> str:
    if not isinstance(table[key], str):
        raise ConfigError(f"{key}: {table[key]!r} is no name")
    found: str = table[key]
    return found


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key}: {value!r} is no whole number above zero")
    return value


def _flag(key: str, table: Mapping[str, Any]) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key}: {value!r} is neither true nor false")
    return value

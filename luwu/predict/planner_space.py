"""What a plan searches: every configuration as a question's table, and the networks.

Tensor ranks are powers of two within a domain, stages and their parts divide the layers, a
micro-batch is a power of two up to 64, and those alone that share devices and batch evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.catalogue import Catalogue
from luwu.predict.question_cost import Costs, make_costs
from luwu.predict.question_topology import TopologyChoice, make_topology
from luwu.predict.question_training import SECTIONS, TRAINING

SEARCHED: Final = (
    "tensor", "pipeline", "virtual", "context", "micro_batch", "recompute", "sequence_parallel",
    "system",
)  # fmt: skip
_MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_OF_PLANS: Final = (
    "systems", "software", "node", "host", "topology", "cost", "batch_per_device", "budget",
    "budget_per_hour", "goal",
)  # fmt: skip
"""Keys that are not handed on as they are."""


def topologies(table: Mapping[str, Any]) -> list[TopologyChoice | None]:
    """Those to choose from; None where the question names none. Raises ConfigError."""
    found = table.get("topology")
    if found is None:
        return [None]
    several = found if isinstance(found, list) else [found]
    if not several or not all(isinstance(each, dict) for each in several):
        raise ConfigError(f"topology: {found!r} is no section; write [topology] or [[topology]]")
    return [make_topology(each) for each in several]


def costs_by_system(table: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Costs]:
    """What each system is bought or rented on: [cost], with what [cost.SYSTEM] adds to it; none
    where the question has no costs. Raises ConfigError."""
    found = table.get("cost")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"cost: {found!r} is no section; write [cost] and its keys below")
    common = {key: value for key, value in found.items() if not isinstance(value, dict)}
    systems = _systems(table)
    for key, value in found.items():
        if isinstance(value, dict) and key not in systems:
            raise ConfigError(
                f"cost.{key}: none of the systems searched, {', '.join(systems)}"
                f"{suggestion(key, systems)}"
            )
    costs = {name: make_costs({**common, **found.get(name, {})}, catalogue) for name in systems}
    if len({each.tariff is None for each in costs.values()}) > 1:
        raise ConfigError(
            "cost.rented: of some systems and not of others; what is bought has a price and a "
            "power, what is rented has none, so all or none of them fit"
        )
    return costs


def check_table(table: Mapping[str, Any]) -> None:
    """Raises ConfigError for what a plan searches itself, and for what is missing."""
    for key in table:
        if key in SEARCHED:
            raise ConfigError(f"{key}: is what a plan searches; leave it out")
    for needed in ("model", "device", "network", "software", "sequence"):
        if needed not in table:
            raise ConfigError(f"{needed} is missing")


def configurations(table: Mapping[str, Any], catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Every one of a number of devices and a batch, without network and costs. Raises
    ConfigError."""
    layers = catalogue.model(table["model"]).layers
    domain = int(catalogue.device(table["device"]).domain_count)
    for system in _systems(table):
        section = SECTIONS.get(system)
        base = {key: value for key, value in table.items() if key not in _OF_PLANS}
        base |= {"system": system, "software": _software(table, system)}
        if section is not None:
            base[section] = table[section]
        for degrees in _degrees(system, table["devices"], layers, domain):
            for own in _batches(table, degrees):
                yield {**base, **degrees, **own}


def _batches(table: Mapping[str, Any], degrees: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Micro-batches that share the batch, and what is computed again."""
    data = table["devices"] // (degrees["tensor"] * degrees["pipeline"])
    for micro_batch in _MICRO_BATCHES:
        rounds, rest = divmod(table["batch"], data * micro_batch)
        if rest or (degrees["virtual"] > 1 and rounds % degrees["pipeline"]):
            continue
        for recompute in ("none", "selective", "full"):
            own: dict[str, Any] = {"micro_batch": micro_batch, "recompute": recompute}
            if degrees["tensor"] > 1:
                own["sequence_parallel"] = True
            yield own


def _degrees(system: str, devices: int, layers: int, domain: int) -> Iterator[dict[str, int]]:
    """Tensor ranks within a domain, stages and parts that divide the layers."""
    if system != "3d":
        yield {"tensor": 1, "pipeline": 1, "virtual": 1}
        return
    for tensor in (each for each in (1, 2, 4, 8, 16, 32) if each <= domain):
        for pipeline in range(1, layers + 1):
            if layers % pipeline or devices % (tensor * pipeline):
                continue
            for virtual in range(1, layers // pipeline + 1):
                if (layers // pipeline) % virtual == 0 and (virtual == 1 or pipeline > 1):
                    yield {"tensor": tensor, "pipeline": pipeline, "virtual": virtual}


def _systems(table: Mapping[str, Any]) -> list[str]:
    asked = table.get("systems")
    if asked is None:
        return [name for name in TRAINING if SECTIONS.get(name) is None or SECTIONS[name] in table]
    for name in asked:
        if name not in TRAINING:
            raise ConfigError(
                f"systems: {name!r} is none of {', '.join(TRAINING)}"
                f"{suggestion(str(name), TRAINING)}"
            )
        if SECTIONS.get(name) not in (None, *table):
            raise ConfigError(f"[{SECTIONS[name]}] is missing: {name} needs to know its hosts")
    return list(asked)


def _software(table: Mapping[str, Any], system: str) -> Any:
    chosen = table["software"]
    if not isinstance(chosen, dict):
        return chosen
    if system not in chosen:
        raise ConfigError(f"software.{system} is missing")
    return chosen[system]

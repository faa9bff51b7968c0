"""Configurations that a plan searches, each as a question's table, and networks.

A micro-batch is a power of two up to 64, of recomputation there is none, selective and full, and
those alone count that share devices and batch evenly. Degrees of "3d", each only where it matters:

    tensor           powers of two within a domain
    pipeline         stages and their parts (virtual) divide the layers; or, with ends_as_layers,
                     the layers and two more, where the layers alone they do not
    context          powers of two within a domain, as long as a rank has 4,096 tokens of a
                     sequence: as many as are a whole sequence elsewhere
    expert           of models with experts: powers of two that divide these, and all of them
    expert_tensor    where experts are spread over tensor ranks: all of them share one, or none do
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.predict.ask.cost import Costs, make_costs
from luwu.predict.ask.keys import ALIASES, SECTIONS, TRAINING, with_assumed
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import (
    check_keys,
    optional_section_of,
    section_of,
    text_of,
    whole_of,
)
from luwu.predict.hardware.model import Transformer
from luwu.predict.networks.choice import TopologyChoice, make_topology

SEARCHED: Final = (
    "tensor", "pipeline", "virtual", "context", "expert", "expert_tensor", "ends_as_layers",
    "micro_batch", "recompute", "sequence_parallel", "system",
)  # fmt: skip
MICRO_BATCH_MAX: Final = 64
TENSOR_MAX: Final = 32
CONTEXT_TOKENS_MIN: Final = 4096
"""Minimum tokens of a sequence on each of the ranks that share it."""
_OF_PLANS: Final = ("systems", "software", "node", "host", "topology", "cost", "goal")
"""Keys that are not handed on as they are."""


def topologies(table: Mapping[str, Any]) -> list[TopologyChoice | None]:
    """Those to choose from; None where the question names none. Raises ConfigError."""
    found = table.get("topology")
    if found is None:
        return [None]
    several = found if isinstance(found, list) else [found]
    if not several or not all(isinstance(each, dict) for each in several):
        raise ConfigError(f"topology: {found!r} is not a section; write [topology] or [[topology]]")
    return [make_topology(each) for each in several]


def costs_by_system(
    table: Mapping[str, Any], catalogue: Catalogue, systems: list[str]
) -> dict[str, Costs]:
    """Costs of each system: [cost], where those of nodes are LuWu's, with the additions of
    [cost.SYSTEM]; none if the question has no costs. Raises ConfigError."""
    found = optional_section_of(table, "cost")
    if found is None:
        return {}
    costs = {}
    for key, value in found.items():
        if isinstance(value, dict) and key not in systems:
            raise ConfigError(
                f"cost.{key}: none of the systems searched, {', '.join(systems)}"
                f"{suggestion(key, systems)}"
            )
    for name in systems:
        common = {
            key: value for key, value in found.items()
            if not isinstance(value, dict) and (name == "luwu" or not key.startswith("node_"))
        }  # fmt: skip
        costs[name] = make_costs({**common, **found.get(name, {})}, catalogue)
    if len({each.tariff is None for each in costs.values()}) > 1:
        raise ConfigError(
            "cost.rented: of some systems and not of others; what is bought has a price and a "
            "power, what is rented has none, so all or none of them fit"
        )
    return costs


def completed(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with what it leaves out, as a question of each of its systems assumes it, and that
    alone. Raises ConfigError for what a plan searches itself, and for what is missing."""
    for key in table:
        if key in SEARCHED:
            raise ConfigError(f"{key}: is what a plan searches; leave it out")
    check_keys("", table, table, ("model", "device", "network", "devices"))
    whole_of("", table, "devices")
    named, software = table.get("software", {}), dict[str, str]()
    whole, assumed = dict(table), dict[str, Any]()
    for system in systems_of(table):
        base = {key: value for key, value in table.items() if key != "software"}
        own, more = with_assumed({**base, "system": system})
        software[system] = more.pop("software")
        assumed |= {key: value for key, value in more.items() if key not in SEARCHED}
        whole |= {key: own[key] for key in more if key not in SEARCHED}
    if isinstance(named, dict):
        whole["software"] = {**software, **named}
        assumed["software"] = {k: v for k, v in software.items() if k not in named}
    return whole, {key: value for key, value in assumed.items() if value != {}}


def configurations(table: Mapping[str, Any], catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Every one of a number of devices and a batch, without network and costs. Raises
    ConfigError."""
    model, sequence = catalogue.model(text_of("", table, "model")), whole_of("", table, "sequence")
    device, software = catalogue.device(text_of("", table, "device")), table["software"]
    domain = int(table.get("devices_per_host", device.domain_count))
    for system in systems_of(table):
        base = {key: value for key, value in table.items() if key not in _OF_PLANS}
        base |= {"system": system}
        base["software"] = software[system] if isinstance(software, dict) else software
        for section in _sections(table, SECTIONS.get(system)):
            for degrees in _degrees(system, table["devices"], model, domain, sequence):
                for own in _batches(table, degrees):
                    yield {**base, **section, **degrees, **own}


def _sections(table: Mapping[str, Any], name: str | None) -> Iterator[dict[str, Any]]:
    """The section of a system, once for each value where it gives a list of them."""
    if name is None:
        yield {}
        return
    own = section_of(table, name, "it says where the state is")
    lists = {key: value for key, value in own.items() if isinstance(value, list)}
    for values in itertools.product(*lists.values()):
        yield {name: {**own, **dict(zip(lists, values, strict=True))}}


def _batches(table: Mapping[str, Any], degrees: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Micro-batches that share the batch, and what is computed again."""
    inner = degrees["tensor"] * degrees["pipeline"] * degrees.get("context", 1)
    data = table["devices"] // inner
    more = {"sequence_parallel": True} if degrees["tensor"] > 1 else {}
    for micro_batch in _powers_of_two(MICRO_BATCH_MAX):
        rounds, rest = divmod(table["batch"], data * micro_batch)
        if rest or (degrees["virtual"] > 1 and rounds % degrees["pipeline"]):
            continue
        for recompute in ("none", "selective", "full"):
            yield {"micro_batch": micro_batch, "recompute": recompute, **more}


def _degrees(
    system: str, devices: int, model: Transformer, domain: int, sequence: int
) -> Iterator[dict[str, Any]]:
    """Degrees of tensor, context, pipeline and expert parallel ranks that divide the devices."""
    if system != "3d":
        yield {"tensor": 1, "pipeline": 1, "virtual": 1}
        return
    stages, contexts = list(_stages(model.layers)), _contexts(sequence, domain)
    for tensor in _powers_of_two(min(domain, TENSOR_MAX)):
        for context in contexts:
            shared = {"tensor": tensor} | ({"context": context} if context > 1 else {})
            for own in stages:
                if devices % (tensor * context * own["pipeline"]) == 0:
                    ranks = devices // own["pipeline"]
                    for experts in _experts(model.experts, tensor, ranks):
                        yield {**shared, **own, **experts}


def _stages(layers: int) -> Iterator[dict[str, Any]]:
    """Stages and parts that share the layers, or with the ends as layers these alone."""
    for pipeline in range(1, layers + 1):
        for virtual in range(1, layers + 3 if pipeline > 1 else 2):
            parts = pipeline * virtual
            if layers % parts == 0:
                yield {"pipeline": pipeline, "virtual": virtual}
            elif (layers + 2) % parts == 0:
                yield {"pipeline": pipeline, "virtual": virtual, "ends_as_layers": True}


def _contexts(sequence: int, domain: int) -> list[int]:
    """Ranks that may share a sequence."""
    return [
        each for each in _powers_of_two(domain)
        if each == 1 or (sequence % each == 0 and sequence // each >= CONTEXT_TOKENS_MIN)
    ]  # fmt: skip


def _experts(experts: int, tensor: int, ranks: int) -> Iterator[dict[str, int]]:
    """Ranks of a stage that have different experts."""
    yield {}
    for expert in sorted({*_powers_of_two(experts), experts} - {1}):
        if experts % expert:
            continue
        if ranks % (expert * tensor) == 0:
            yield {"expert": expert}
        if tensor > 1 and ranks % expert == 0:
            yield {"expert": expert, "expert_tensor": 1}


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def systems_of(table: Mapping[str, Any]) -> list[str]:
    """Those asked; by default those of which enough is given. Raises ConfigError."""
    asked = table.get("systems")
    if asked is None:
        return [name for name in TRAINING if SECTIONS.get(name) in (None, *table)]
    if not isinstance(asked, list) or not asked or not all(isinstance(e, str) for e in asked):
        raise ConfigError(f"systems: {asked!r} is not a list of names; one such as ['3d'] fits")
    found = [ALIASES[name] if name in ALIASES else str(name) for name in asked]
    for name in found:
        if found.count(name) > 1:
            raise ConfigError(f"systems: {name!r} is there twice; each once fits")
        if name not in TRAINING:
            names = [*TRAINING, *ALIASES]
            raise ConfigError(
                f"systems: {name!r} is not one of {', '.join(names)}{suggestion(name, names)}"
            )
        if SECTIONS.get(name) not in (None, "node", *table):
            raise ConfigError(f"[{SECTIONS[name]}] is missing: {name} needs to know its hosts")
    return found

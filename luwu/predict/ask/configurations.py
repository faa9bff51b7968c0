"""All configurations of a question that leaves them out: degrees, micro-batches, recomputations.

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

from luwu.base.errors import ConfigError
from luwu.predict.ask.keys import ALIASES, SECTIONS, TRAINING, with_assumed
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.model import Transformer

SEARCHED: Final = (
    "tensor", "pipeline", "virtual", "context", "expert", "expert_tensor", "ends_as_layers",
    "micro_batch", "recompute", "sequence_parallel", "system",
)  # fmt: skip
MICRO_BATCH_MAX: Final = 64
TENSOR_MAX: Final = 32
CONTEXT_TOKENS_MIN: Final = 4096
"""Minimum tokens of a sequence on each of the ranks that share it."""
_OF_PLANS: Final = ("systems", "software", "node", "host", "topology", "cost")
"""Keys that are not handed on as they are."""


def completed(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with what it leaves out, as a question of each of its systems assumes it, and that
    alone. Raises ConfigError for what a plan searches itself, and for what is missing."""
    for key in table:
        if key in SEARCHED:
            raise ConfigError(f"{key}: is what a plan searches; leave it out")
    values.check_keys("", table, table, ("model", "device", "network", "devices"))
    values.whole_of("", table, "devices")
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
    model = catalogue.model(values.text_of("", table, "model"))
    sequence = values.whole_of("", table, "sequence")
    device, software = catalogue.device(values.text_of("", table, "device")), table["software"]
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
    own = values.section_of(table, name, "it says where the state is")
    lists = {key: value for key, value in own.items() if isinstance(value, list)}
    for chosen in itertools.product(*lists.values()):
        yield {name: {**own, **dict(zip(lists, chosen, strict=True))}}


def _batches(table: Mapping[str, Any], degrees: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each size of micro-batch that divides the batch, with each way to recompute activations."""
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
    found = [ALIASES.get(name, name) for name in map(str, asked)]
    for name in found:
        if found.count(name) > 1:
            raise ConfigError(f"systems: {name!r} is there twice; each once fits")
        values.check_choice("systems", name, [*TRAINING, *ALIASES])
        if SECTIONS.get(name) not in (None, "node", *table):
            raise ConfigError(f"[{SECTIONS[name]}] is missing: {name} needs to know its hosts")
    return found

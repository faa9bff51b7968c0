"""The best configuration: all degrees, micro-batches and recomputations, of the systems asked.
docs/predict.md has the keys.

A micro-batch is a power of two up to 64, of recomputation there is none, selective and full, and
those alone count that share devices and batch evenly. Degrees of "3d", each only where it matters:

    tensor           powers of two within a domain
    pipeline         stages and their parts (virtual) divide the layers; or, with ends_as_layers,
                     the layers and two more, where the layers alone they do not
    context          powers of two within a domain, as long as a rank has 4,096 tokens of a
                     sequence: as many as are a whole sequence elsewhere
    expert           of models with experts: powers of two that divide these, and all of them
    expert_tensor    where experts are spread over tensor ranks: all of them share one, or none do

A configuration whose memory does not fit a device is left out and counted; so is one that a network
or a host cannot have, with the first reason. What remains is scored by closed forms; the *Pareto
set* are those that no other beats in all of tokens a second, memory left on a device, and with
[cost] dollars per million tokens. The order of search is fixed, and of two equal
ones the first counts, so two searches are the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.identifiers import identifier
from luwu.predict.ask.answer import asked, binding_text, whole_training
from luwu.predict.ask.cost import Costs, cost_document
from luwu.predict.ask.keys import ALIASES, SECTIONS, TRAINING, assumed_text, read_keys, with_assumed
from luwu.predict.ask.question import Question, make_training_question
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.model import Transformer
from luwu.predict.model.job import StepTime
from luwu.predict.networks.choice import make_topology

SCHEMA: Final = 5
"""5: the fastest come first."""
SHOWN: Final = 12
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


# ---------------------------------------------------------------------- the search


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Free memory of a device."""

    @property
    def tokens_per_s(self) -> float:
        return self.question.job.tokens / self.step.seconds

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """None where no costs are given."""
        per_s = self.question.dollars_per_s
        if per_s is None:
            return None
        return cost_document(self.tokens_per_s, per_s)["dollars_per_million_tokens"]

    @property
    def whole_training(self) -> dict[str, Any] | None:
        """Of all tokens, where the question gives them."""
        if self.question.tokens is None:
            return None
        return whole_training(self.question, self.step.seconds, self.question.dollars_per_s)

    @property
    def goals(self) -> tuple[float, ...]:
        """All to be large."""
        dollars = self.dollars_per_million_tokens
        return (self.tokens_per_s, self.left_bytes, *(() if dollars is None else (-dollars,)))


@dataclass(frozen=True, slots=True)
class OfSystem:
    """A system that was asked for, and what became of it."""

    system: str
    best: Found | None
    """Its fastest configuration; None: it has none."""
    why: str
    """Why it is not among the best of all; empty if it is."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """A search: what was tried, and the results."""

    assumed: dict[str, Any]
    """Keys that the question left out."""
    best: list[Found] = field(default_factory=list)
    """The Pareto set, the fastest first."""
    systems: list[OfSystem] = field(default_factory=list)
    """One of each system that was asked for."""
    tried: int = 0
    too_large: int = 0
    """Configurations whose memory does not fit."""
    refused: int = 0
    """Those that a network or a host cannot have."""
    first_refusal: str = ""
    found: list[Found] = field(default_factory=list)
    """All others."""
    needs: dict[str, float] = field(default_factory=dict)
    """Bytes of a device that the smallest configuration of a system needs."""

    def look_at(self, question: Question) -> None:
        """One configuration."""
        self.tried += 1
        has, needs = question.job.device.memory_bytes, question.needed_bytes
        self.needs[question.system] = min(needs, self.needs.get(question.system, math.inf))
        if needs > has:
            self.too_large += 1
            return
        try:
            step = question.answer()
        except ConfigError as exc:
            self.refused += 1
            self.first_refusal = self.first_refusal or str(exc)
            return
        self.found.append(Found(question=question, step=step, left_bytes=has - needs))


def plan(table: Mapping[str, Any], catalogue: Catalogue) -> Plan:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    table, assumed = completed(table)
    network = values.optional_section_of(table, "topology")
    topology = None if network is None else make_topology(network)
    costs = costs_by_system(table, catalogue, systems_of(table))
    search = Plan(assumed=assumed)
    values.whole_of("", table, "batch")
    for one in configurations(table, catalogue):
        own = costs.get(one["system"])
        search.look_at(make_training_question(one, catalogue, topology=topology, costs=own))
    _check(search)
    search.best = pareto(search.found)
    search.systems = [_of_system(name, table, search) for name in systems_of(table)]
    return search


def _of_system(system: str, table: Mapping[str, Any], search: Plan) -> OfSystem:
    """What became of a system."""
    own = [each for each in search.found if each.question.system == system]
    if own:
        first = max(own, key=lambda each: each.tokens_per_s)
        if any(each.question.system == system for each in search.best):
            return OfSystem(system, first, "")
        winner = next(each for each in search.best if _beats(each.goals, first.goals))
        return OfSystem(system, first, f"beaten by {winner.question.system}")
    why = f"batch {table['batch']} is no multiple of {table['devices']:,}"
    if system in search.needs:
        why = (
            f"the least needs {search.needs[system] / 1e9:,.0f} GB of a device, or a host or a "
            "network cannot have it"
        )
    return OfSystem(system, None, f"no configuration: {why}")


def _check(search: Plan) -> None:
    """Raises ConfigError if nothing is left."""
    if search.found:
        return
    if not search.tried:
        raise ConfigError(
            "batch: no degrees share it evenly among the devices; a multiple of them fits"
        )
    if search.refused:
        raise ConfigError(
            f"{search.first_refusal}; so it is with {search.refused} of {search.tried} "
            "configurations, and the others are too large for a device"
        )
    raise ConfigError(
        f"devices: none of {search.tried} configurations fits their memory; the least needs "
        f"{min(search.needs.values()) / 1e9:.0f} GB each; take more devices"
    )


def _beats(goals: tuple[float, ...], others: tuple[float, ...]) -> bool:
    """True if none of the goals is worse."""
    return all(mine >= other for mine, other in zip(goals, others, strict=True))


def pareto(found: Iterable[Found]) -> list[Found]:
    """Those that nothing beats in all goals, the fastest first; of equal ones the first."""
    best: list[tuple[tuple[float, ...], Found]] = []
    ordered = sorted(((each.goals, each) for each in found), key=lambda one: one[0], reverse=True)
    for own, each in ordered:  # who beats another stands before it
        if not any(_beats(goals, own) for goals, _ in best):
            best.append((own, each))
    return [each for _, each in best]


# ---------------------------------------------------------------------- configurations


def costs_by_system(
    table: Mapping[str, Any], catalogue: Catalogue, systems: list[str]
) -> dict[str, Costs]:
    """Costs of each system: [cost], where those of nodes are LuWu's, with the additions of
    [cost.SYSTEM]; none if the question has no costs. Raises ConfigError."""
    found = values.optional_section_of(table, "cost")
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
        own = {**common, **found.get(name, {})}
        costs[name] = Costs(**read_keys(own, name, catalogue, "cost"))
    return costs


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
    found = [ALIASES.get(name, name) for name in map(str, asked)]
    for name in found:
        if found.count(name) > 1:
            raise ConfigError(f"systems: {name!r} is there twice; each once fits")
        values.check_choice("systems", name, [*TRAINING, *ALIASES])
        if SECTIONS.get(name) not in (None, "node", *table):
            raise ConfigError(f"[{SECTIONS[name]}] is missing: {name} needs to know its hosts")
    return found


# ---------------------------------------------------------------------- shown


def plan_document(found: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal,
        "systems": [
            {
                "system": each.system,
                "why": each.why,
                "tokens_per_s": None if each.best is None else each.best.tokens_per_s,
            }
            for each in found.systems
        ],
        "best": [_row_document(each) for each in found.best], "assumed": found.assumed,
    }  # fmt: skip


def _row_document(found: Found) -> dict[str, Any]:
    job = found.question.job
    said: dict[str, Any] = {
        "system": found.question.system, "step_s": found.step.seconds,
        "tokens_per_s": found.tokens_per_s, "left_bytes": found.left_bytes,
        "binding": identifier(found.step.binding), "binding_port": found.step.port or None,
        "asked": asked(found.question)
        | {"expert_tensor": job.expert_width, "ends_as_layers": job.ends_as_layers},
    }  # fmt: skip
    if found.question.nodes is not None:
        nodes = found.question.nodes
        said["asked"] |= {"nodes": nodes.nodes, "per_host": nodes.per_host}
    if found.question.tokens is not None:
        said["whole_training"] = found.whole_training
    if found.question.costs is not None:
        said["dollars_per_million_tokens"] = found.dollars_per_million_tokens
    return said


def plan_text(found: Plan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    more = f", {found.refused} that cannot be" if found.refused else ""
    lines = assumed_text(found.assumed) + _systems(found)
    lines += [
        f"{found.tried} configurations, {found.too_large} of them too large for a device{more}; "
        f"{len(found.best)} that no other beats:",
        "  ".join(heading for heading, _ in _columns(found.best[0])),
        *("  ".join(cell for _, cell in _columns(each)) for each in found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first rejected: {found.first_refusal}")
    return "\n".join(lines)


def _systems(found: Plan) -> list[str]:
    """A line for each system that was asked for, if there are several."""
    if len(found.systems) < 2:
        return []
    return [
        f"{each.system:<13} "
        + ("" if each.best is None else f"{_best_text(each.best)}, ")
        + (each.why or "shown below")
        + (f": {_what(each.best)}" if each.best is not None and each.why else "")
        for each in found.systems
    ] + [""]


def _best_text(best: Found) -> str:
    """Speed, and the days and dollars of a whole training."""
    whole, said = best.whole_training, f"{best.tokens_per_s:,.0f} tokens/s at best"
    if whole is not None:
        said += f", {whole['days']:,.1f} days"
        said += "" if whole["dollars"] is None else f", {whole['dollars']:,.0f} USD"
    return said


def _columns(each: Found) -> list[tuple[str, str]]:
    """Headings and cells of a row. Costs are where there are any: then all rows have them."""
    whole, dollars = each.whole_training, each.dollars_per_million_tokens
    found = [(
        f"{'tokens/s':>12} {'step':>10} {'left':>8}",
        f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {each.left_bytes / 2**30:4.1f} GiB",
    )]  # fmt: skip
    if whole is not None:
        found.append((f"{'days':>9}", f"{whole['days']:9,.1f}"))
        if whole["dollars"] is not None:
            found.append((f"{'USD':>13}", f"{whole['dollars']:13,.0f}"))
    if dollars is not None:
        found.append((f"{'USD/Mtoken':>10}", f"{dollars:10,.3f}"))
    found.append((f"{'system':<13}", f"{each.question.system:<13}"))
    return [*found, ("degrees, micro-batch, again", _what(each))]


def _what(each: Found) -> str:
    """Degrees: tensor, pipeline, virtual, data; context (c), experts (e, of width w) and ends as
    layers where there are any; micro-batch and recomputation; the bottleneck; nodes of luwu."""
    job, nodes = each.question.job, each.question.nodes
    said = {"binding": identifier(each.step.binding), "binding_port": each.step.port}
    more = f" c{job.context}" if job.context > 1 else ""
    more += f" e{job.expert} w{job.expert_width}" if job.spreads_experts else ""
    more += " ends" if job.ends_as_layers else ""
    more += f", {job.micro_batch}, {job.recompute}; bottleneck: {binding_text(said)}"
    if nodes is not None and (nodes.nodes, nodes.per_host) != (1, "none"):
        more += f"; nodes {nodes.nodes}, per_host {nodes.per_host}"
    return f"t{job.tensor} p{job.pipeline} v{job.virtual} d{job.data}{more}"

"""The best configuration of a job of training, of the systems asked. docs/predict.md has the keys.

A configuration whose memory does not fit a device is left out and counted; so is one that a network
or a host cannot have, with the first reason. What remains is scored by closed forms; the *Pareto
set* are those that no other beats in all of tokens a second, memory left on a device, and with
[cost] dollars per million tokens. The order of search is fixed, and of two equal ones the first
counts, so two searches are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.identifiers import identifier
from luwu.predict.ask.answer import asked, binding_text, whole_training
from luwu.predict.ask.configurations import completed, configurations, systems_of
from luwu.predict.ask.cost import Costs, cost_document
from luwu.predict.ask.keys import assumed_text, read_keys
from luwu.predict.ask.question import Question, make_training_question
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import StepTime
from luwu.predict.networks.choice import make_topology

SCHEMA: Final = 5
"""5: the fastest come first."""
SHOWN: Final = 12


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

"""The best configuration: all degrees, micro-batches and recomputations, of the systems and
networks asked. docs/predict.md has the keys, `planner_space.py` what is searched.

A configuration whose memory does not fit a device is left out and counted; so is one that a network
or a host cannot have, with the first reason. What remains is scored by closed forms; the *Pareto
set* are those that no other beats in all of tokens a second, memory left on a device, and with
[cost] dollars per million tokens, price and power. The order of search is fixed, and of two equal
ones the first counts, so two searches are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.identifiers import identifier
from luwu.predict.ask.answer import asked, binding_text, whole_training
from luwu.predict.ask.cost import Costs, Expense, Place, dollars_per_million_tokens, expense
from luwu.predict.ask.keys import assumed_text
from luwu.predict.ask.question import Question, make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import whole_of
from luwu.predict.model.job import StepTime
from luwu.predict.networks.choice import TopologyChoice
from luwu.predict.plan.planner_space import (
    completed,
    configurations,
    costs_by_system,
    systems_of,
    topologies,
)

SCHEMA: Final = 3
"""3: a plan is of training and of one number of devices, and all its rows are closed forms."""
SHOWN: Final = 12
GOALS: Final = {
    "tokens_per_s": "", "dollars_per_million_tokens": ", cheapest tokens first",
    "capex": ", least to buy first", "watts": ", least power first",
}  # fmt: skip
"""What orders the list, and how its title ends."""
_OF_NODES: Final = ("nodes", "per_host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Free memory of a device."""
    expense: Expense | None = None
    """None where no costs are given."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all devices."""
        return self.question.job.tokens / self.step.seconds

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """None where no costs are given."""
        if self.expense is None:
            return None
        return dollars_per_million_tokens(self.tokens_per_s, self.expense.dollars_per_s)

    @property
    def whole_training(self) -> dict[str, Any] | None:
        """Of all tokens, where the question gives them."""
        if self.question.tokens is None:
            return None
        per_s = None if self.expense is None else self.expense.dollars_per_s
        return whole_training(self.question, self.step.seconds, per_s)

    @property
    def goals(self) -> tuple[float, ...]:
        """All to be large."""
        found = [self.tokens_per_s, self.left_bytes]
        if self.expense is not None:
            found.append(-(self.dollars_per_million_tokens or 0.0))
            bill = self.expense.bill
            found += [-bill.capex, -bill.watts] if bill is not None else []
        return tuple(found)

    def place(self, goal: str) -> float:
        """Its place by a goal: the least are the best."""
        if goal == "tokens_per_s":
            return -self.tokens_per_s
        spent: Any = self.expense
        return float(getattr(self if goal not in ("capex", "watts") else spent.bill, goal))


@dataclass(frozen=True, slots=True)
class OfSystem:
    """A system that was asked for, and what became of it."""

    system: str
    best: Found | None
    """Its best configuration by the goal; None: it has none."""
    why: str
    """Why it is not among the best of all; empty if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The searched space, and the results."""

    best: tuple[Found, ...]
    """The Pareto set, in the order of the goal."""
    tried: int
    too_large: int
    """Configurations whose memory does not fit."""
    refused: int
    """Those that a network or a host cannot have."""
    first_refusal: str
    goal: str
    assumed: dict[str, Any]
    """Keys that the question left out."""
    systems: tuple[OfSystem, ...]
    """One of each system that was asked for."""


@dataclass(slots=True)
class _Search:
    """State of a search."""

    tried: int = 0
    too_large: int = 0
    refusals: list[str] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    needs: dict[str, float] = field(default_factory=dict)
    """Bytes of a device that the smallest configuration of a system needs."""
    expenses: dict[tuple[str, Place, TopologyChoice | None], Expense] = field(default_factory=dict)
    """By what decides them."""

    def look_at(self, question: Question) -> None:
        """One configuration. Raises ConfigError for a cost that is not known."""
        self.tried += 1
        has, needs = question.job.device.memory_bytes, question.needed_bytes
        self.needs[question.system] = min(needs, self.needs.get(question.system, math.inf))
        if needs > has:
            self.too_large += 1
            return
        try:
            step = question.answer()
        except ConfigError as exc:
            self.refusals.append(str(exc))
            return
        spent = self._expense_of(question)
        self.found.append(
            Found(question=question, step=step, left_bytes=has - needs, expense=spent)
        )

    def _expense_of(self, question: Question) -> Expense | None:
        if question.costs is None:
            return None
        key = question.system, question.place, question.topology
        if key not in self.expenses:
            self.expenses[key] = expense(question.costs, question.place, question.build())
        return self.expenses[key]


def plan(table: Mapping[str, Any], catalogue: Catalogue) -> Plan:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    table, assumed = completed(table)
    choices, costs = topologies(table), costs_by_system(table, catalogue, systems_of(table))
    goal = _goal_of(table, costs)
    whole_of("", table, "batch")
    search = _Search()
    for one in configurations(table, catalogue):
        question = make_training_question(one, catalogue, costs=costs.get(one["system"]))
        for choice in choices:
            search.look_at(replace(question, topology=choice))
    _check(search)
    best = sorted(pareto(search.found), key=lambda each: each.place(goal))
    return Plan(
        best=tuple(best), tried=search.tried, too_large=search.too_large,
        refused=len(search.refusals), first_refusal=search.refusals[0] if search.refusals else "",
        goal=goal, assumed=assumed,
        systems=tuple(_of_system(name, table, search, best, goal) for name in systems_of(table)),
    )  # fmt: skip


def _goal_of(table: Mapping[str, Any], costs: Mapping[str, Costs]) -> str:
    goal, (speed, dollars, *bought) = table.get("goal", "tokens_per_s"), GOALS
    if goal not in GOALS:
        raise ConfigError(
            f"goal: {goal!r} is not one of {', '.join(GOALS)}{suggestion(str(goal), GOALS)}"
        )
    if goal != speed and not costs:
        raise ConfigError("goal: [cost] is missing, which says what is bought or rented")
    if goal in bought and any(each.tariff is None for each in costs.values()):
        raise ConfigError(
            f"goal: what is rented has no price and no power; {speed}, {dollars} would fit"
        )
    return str(goal)


def _of_system(
    system: str, table: Mapping[str, Any], search: _Search, best: list[Found], goal: str
) -> OfSystem:
    """What became of a system."""
    own = [each for each in search.found if each.question.system == system]
    if own:
        first = min(own, key=lambda each: each.place(goal))
        if any(each.question.system == system for each in best):
            return OfSystem(system, first, "")
        winner = next(
            each for each in best
            if all(a >= b for a, b in zip(each.goals, first.goals, strict=True))
        )  # fmt: skip
        return OfSystem(system, first, f"beaten by {winner.question.system}")
    if system not in search.needs:
        what = f"batch {table['batch']} is no multiple of {table['devices']:,}"
        return OfSystem(system, None, f"no configuration: {what}")
    return OfSystem(
        system, None,
        f"no configuration: the least needs {search.needs[system] / 1e9:,.0f} GB of a device, or a "
        "host or a network cannot have it",
    )  # fmt: skip


def _check(search: _Search) -> None:
    """Raises ConfigError if nothing is left."""
    if search.found:
        return
    if not search.tried:
        raise ConfigError(
            "batch: no degrees share it evenly among the devices; a multiple of them fits"
        )
    if search.refusals:
        raise ConfigError(
            f"{search.refusals[0]}; so it is with {len(search.refusals)} of {search.tried} "
            "configurations, and the others are too large for a device"
        )
    raise ConfigError(
        f"devices: none of {search.tried} configurations fits their memory; the least needs "
        f"{min(search.needs.values()) / 1e9:.0f} GB each; take more devices"
    )


def pareto(found: Iterable[Found]) -> list[Found]:
    """Those that nothing beats in all goals, the fastest first; of equal ones the first."""
    best: list[Found] = []
    shown: list[tuple[float, ...]] = []
    ordered = [(each.goals, rank, each) for rank, each in enumerate(found)]
    ordered.sort(key=lambda one: (*(-goal for goal in one[0]), one[1]))
    for own, _, each in ordered:  # who beats another stands before it
        if not any(all(a >= b for a, b in zip(other, own, strict=True)) for other in shown):
            best.append(each)
            shown.append(own)
    return best


def plan_document(found: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal, "goal": found.goal,
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
        said["asked"] |= {key: getattr(found.question.nodes, key) for key in _OF_NODES}
    if found.question.tokens is not None:
        said["whole_training"] = found.whole_training
    if found.question.topology is not None:
        said["topology"] = found.question.topology.kind
    if found.expense is not None:
        said["dollars_per_million_tokens"] = found.dollars_per_million_tokens
        if found.expense.bill is not None:
            said |= {"capex": found.expense.bill.capex, "watts": found.expense.bill.watts}
    return said


def plan_text(found: Plan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    more = f", {found.refused} that cannot be" if found.refused else ""
    lines = assumed_text(found.assumed) + _systems(found)
    lines += [
        f"{found.tried} configurations, {found.too_large} of them too large for a device{more}; "
        f"{len(found.best)} that no other beats{GOALS[found.goal]}:",
        _head(found.best[0]),
        *map(_line, found.best[:shown]),
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


def _head(first: Found) -> str:
    """Columns of costs and networks where there are any: then all rows have them."""
    own = [f"{'tokens/s':>12} {'step':>10} {'left':>8}"]
    own += [f"{'days':>9}"] if first.question.tokens is not None else []
    if first.expense is not None:
        own += [f"{'USD':>13}"] if first.question.tokens is not None else []
        own.append(f"{'USD/Mtoken':>10}")
        own += [f"{'MUSD':>8} {'kW':>9}"] if first.expense.bill is not None else []
    own += [f"{'network':<16}"] if first.question.topology is not None else []
    return "  ".join([*own, f"{'system':<13}", "degrees, micro-batch, again"])


def _line(each: Found) -> str:
    spent = each.expense
    own = [
        f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {each.left_bytes / 2**30:4.1f} GiB"
    ]
    whole = each.whole_training
    if whole is not None:
        own.append(f"{whole['days']:9,.1f}")
        own += [] if whole["dollars"] is None else [f"{whole['dollars']:13,.0f}"]
    if spent is not None:
        own.append(f"{each.dollars_per_million_tokens or 0.0:10,.3f}")
        bill = spent.bill
        own += [f"{bill.capex / 1e6:8,.2f} {bill.watts / 1e3:9,.1f}"] if bill is not None else []
    own += [f"{each.question.topology.kind:<16}"] if each.question.topology is not None else []
    return "  ".join([*own, f"{each.question.system:<13}", _what(each)])


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

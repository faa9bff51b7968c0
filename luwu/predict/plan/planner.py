"""The best configuration: all degrees, micro-batches and recomputations, of the systems and
networks asked.

    model = "GPT-175B"              as in a question (`question.py`), without what is searched
    device = "H100-80"
    network = "ib-ndr"
    devices = 512
    sequence = 2048
    batch = 1024
    systems = ["3d", "zero3"]       default: those that are told enough of
    software = "nemo-2024"          or {3d = "nemo-2024", zero3 = "torchtitan-2024"}
    goal = "capex"                  orders the list: tokens_per_s (the default),
                                    dollars_per_million_tokens, capex, watts

    [[topology]]                    one, or several to choose from; as in a question
    kind = "clos"
    radix = 64

    [cost]                          what is bought or rented; makes costs and power goals too
    server = "H100x8"
    [cost.luwu]                     and what a system needs besides
    nic = "U50"
    nics = 8

`[node]` and `[host]` are those of a question; `planner_space.py` has what is searched. A
configuration whose memory does not fit a device is left out and counted; so is one that a network
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

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.ask.cost import Costs, Expense, expense
from luwu.predict.ask.question import Question, make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import whole_of
from luwu.predict.model.job import StepTime
from luwu.predict.networks.choice import TopologyChoice
from luwu.predict.networks.cost import dollars_per_million_tokens
from luwu.predict.plan.planner_space import (
    check_table,
    configurations,
    costs_by_system,
    systems_of,
    topologies,
)

GOALS: Final = ("tokens_per_s", "dollars_per_million_tokens", "capex", "watts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Free memory of a device."""
    expense: Expense | None = None
    """None where no costs are told."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all devices."""
        return self.question.job.tokens / self.step.seconds

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """None where no costs are told."""
        if self.expense is None:
            return None
        return dollars_per_million_tokens(self.tokens_per_s, self.expense.dollars_per_s)

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
    expenses: dict[tuple[str, TopologyChoice | None], Expense] = field(default_factory=dict)
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
        key = question.system, question.topology
        if key not in self.expenses:
            self.expenses[key] = expense(question.costs, question.place, question.build())
        return self.expenses[key]


def plan(table: Mapping[str, Any], catalogue: Catalogue) -> Plan:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    check_table(table)
    choices, costs = topologies(table), costs_by_system(table, catalogue, systems_of(table))
    goal = _goal_of(table, costs)
    for key in ("devices", "batch"):
        if key not in table:
            raise ConfigError(f"{key} is missing")
        whole_of("", table, key)
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
        goal=goal,
        systems=tuple(_of_system(name, table, search, best, goal) for name in systems_of(table)),
    )  # fmt: skip


def _goal_of(table: Mapping[str, Any], costs: Mapping[str, Costs]) -> str:
    goal = table.get("goal", GOALS[0])
    if goal not in GOALS:
        raise ConfigError(
            f"goal: {goal!r} is not one of {', '.join(GOALS)}{suggestion(str(goal), GOALS)}"
        )
    if goal != GOALS[0] and not costs:
        raise ConfigError("goal: [cost] is missing, which says what is bought or rented")
    if goal in GOALS[2:] and any(each.tariff is None for each in costs.values()):
        raise ConfigError(
            f"goal: what is rented has no price and no power; {', '.join(GOALS[:2])} would fit"
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

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

    [[topology]]                    one, or several to choose from; as in a question
    kind = "clos"
    radix = 64

    [cost]                          what is bought or rented; makes costs and power goals too
    server = "H100x8"
    [cost.luwu]                     and what a system needs besides
    nic = "U50"
    nics = 8

`[node]` and `[host]` are those of a question; `planner_budget.py` has the keys of a budget, of
several numbers of devices and of the order, `planner_space.py` what is searched. A configuration
whose memory does not fit a device is left out and counted; so is one that a network or a host
cannot have, with the first reason. What remains is scored by closed forms; the *Pareto set* are
those that no other beats in all of tokens a second, memory left on a device, and with [cost]
dollars per million tokens, price and power; with several numbers of devices and nothing that is
bought, also in few devices. The best of it are played by the event core, where that can play them,
and both numbers are told. The order of search is fixed, and of two equal ones the first counts, so
two searches are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import memory_bytes
from luwu.predict.ask.break_even import BreakEven, break_even
from luwu.predict.ask.question_cost import Expense
from luwu.predict.ask.question_training import Question, make_training_question
from luwu.predict.ask.replay import TASKS_MAX, Replay, replay
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import StepTime
from luwu.predict.plan.planner_budget import (
    Spending,
    batch_of,
    make_wish,
    order_by,
    price_of,
    priced_goals,
    undominated,
)
from luwu.predict.plan.planner_space import (
    check_table,
    configurations,
    costs_by_system,
    systems_of,
    topologies,
)

PLAYED_MAX: Final = 20
"""Of the Pareto set, the first so many are played, as long as there are tasks left."""
_BREAK_EVEN: Final = ("luwu", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Of a device's memory."""
    expense: Expense | None = None
    replay: Replay | None = None
    """By the event core; None: it was not among the best."""

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.question.job.tokens / self.step.seconds

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """None where no costs are told."""
        return price_of(self.tokens_per_s, self.expense)

    @property
    def goals(self) -> tuple[float, ...]:
        """All to be large."""
        priced = priced_goals(self.tokens_per_s, self.expense)
        return (self.tokens_per_s, self.left_bytes, *priced)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was searched, and what came of it."""

    best: tuple[Found, ...]
    """The Pareto set, in the order of the goal."""
    tried: int
    too_large: int
    """Configurations whose memory does not fit."""
    refused: int = 0
    """Those that a network or a host cannot have."""
    first_refusal: str = ""
    break_even: dict[str, BreakEven] = field(default_factory=dict)
    """Of systems for which tokens decide what hides what, by the fastest of each."""
    beyond_budget: int = 0
    """Configurations that fit, on machines that cost too much."""
    device_counts: tuple[int, ...] = ()
    """That were tried."""
    goal: str = "tokens_per_s"


@dataclass(slots=True)
class _Search:
    """What was seen so far."""

    spending: Spending
    tried: int = 0
    too_large: int = 0
    least_bytes: float = float("inf")
    refusals: list[str] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    def look_at(self, question: Question) -> None:
        """One configuration. Raises ConfigError for a cost that is not known."""
        self.tried += 1
        has, needs = question.job.device.memory_bytes, sum(memory_bytes(question).values())
        self.least_bytes = min(self.least_bytes, needs)
        if needs > has:
            self.too_large += 1
            return
        if self.spending.is_beyond(self.spending.known_of(question)):
            return
        try:
            step = question.answer()
        except ConfigError as exc:
            self.refusals.append(str(exc))
            return
        spent = self.spending.of(question)
        if self.spending.is_beyond(spent):
            return
        self.found.append(
            Found(question=question, step=step, left_bytes=has - needs, expense=spent)
        )


def plan(table: Mapping[str, Any], catalogue: Catalogue, *, played: int = PLAYED_MAX) -> Plan:
    """Search, and play the best. Raises ConfigError: for a table that means nothing, or where
    nothing fits."""
    check_table(table)
    choices, costs = topologies(table), costs_by_system(table, catalogue, systems_of(table))
    wish = make_wish(table, costs)
    search = _Search(Spending(wish.budget))
    for devices in wish.device_counts:
        batch = batch_of(table, devices)
        for one in configurations({**table, "devices": devices, "batch": batch}, catalogue):
            question = make_training_question(one, catalogue, costs=costs.get(one["system"]))
            for choice in choices:
                search.look_at(replace(question, topology=choice))
    _check(search)
    best = pareto(search.found, few_devices=wish.counts_devices(costs))
    best = _played(sorted(best, key=lambda each: _order(each, wish.goal)), played)
    return Plan(
        tuple(best), search.tried, search.too_large, len(search.refusals),
        search.refusals[0] if search.refusals else "", _break_even(search.found),
        search.spending.beyond_count, wish.device_counts, wish.goal,
    )  # fmt: skip


def _order(found: Found, goal: str) -> float:
    value = found.dollars_per_million_tokens if goal.startswith("dollars") else -found.tokens_per_s
    return order_by(goal, value, found.expense)


def _played(best: list[Found], count: int) -> list[Found]:
    """The first so many by the event core, as long as it has tasks left."""
    left, shown = TASKS_MAX, []
    for each in best[:count]:
        again = replay(each.question, tasks_max=left)
        left -= 0 if again.step_s is None else again.tasks
        shown.append(replace(each, replay=again))
    return shown + best[count:]


def _check(search: _Search) -> None:
    if not search.tried:
        raise ConfigError(
            "batch: no degrees share it evenly among the devices; a multiple of them fits"
        )
    if search.found:
        return
    if search.refusals:
        others = " or beyond the budget" if search.spending.beyond_count else ""
        raise ConfigError(
            f"{search.refusals[0]}; so it is with {len(search.refusals)} of {search.tried} "
            f"configurations, and the others are too large for a device{others}"
        )
    if search.spending.beyond_count:
        raise ConfigError(search.spending.beyond_text)
    raise ConfigError(
        f"devices: none of {search.tried} configurations fits their memory; the least needs "
        f"{search.least_bytes / 1e9:.0f} GB each; take more devices"
    )


def pareto(found: list[Found], *, few_devices: bool = False) -> list[Found]:
    """Those that nothing beats in all goals, fastest first; of equal ones the first.

    `few_devices` is a goal where nothing else says that many of them cost more.
    """

    def goals(each: Found) -> tuple[float, ...]:
        return each.goals + ((-float(each.question.job.devices),) if few_devices else ())

    return undominated(found, goals)


def _break_even(found: list[Found]) -> dict[str, BreakEven]:
    told = {}
    for system in _BREAK_EVEN:
        own = [each for each in found if each.question.system == system]
        if own:
            on = max(own, key=lambda each: each.tokens_per_s).question.as_on_topology()
            told[system] = break_even(on.job, on.nodes)
    return told

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
bought, also in few devices. The order of search is fixed, and of two equal ones the first counts,
so two searches are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import memory_bytes
from luwu.predict.ask.question_cost import Expense
from luwu.predict.ask.question_training import Question, make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import StepTime
from luwu.predict.plan.planner_budget import (
    Spending,
    batch_of,
    make_wish,
    order_by,
    price_of,
    priced_goals,
)
from luwu.predict.plan.planner_space import (
    check_table,
    configurations,
    costs_by_system,
    systems_of,
    topologies,
)
from luwu.predict.plan.search import OfSystem, Plan, Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Free memory of a device."""
    expense: Expense | None = None

    @property
    def devices(self) -> int:
        """All of them."""
        return self.question.job.devices

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all devices."""
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


def plan(table: Mapping[str, Any], catalogue: Catalogue) -> Plan[Found]:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    check_table(table)
    choices, costs = topologies(table), costs_by_system(table, catalogue, systems_of(table))
    wish = make_wish(table, costs)
    search, needs = Search[Found](Spending(wish.budget)), dict[str, float]()
    for devices in wish.device_counts:
        batch = batch_of(table, devices)
        for one in configurations({**table, "devices": devices, "batch": batch}, catalogue):
            question = make_training_question(one, catalogue, costs=costs.get(one["system"]))
            for choice in choices:
                own = _look_at(search, replace(question, topology=choice))
                needs[question.system] = min(own, needs.get(question.system, math.inf))
    _check(search, min(needs.values(), default=math.inf))
    best = search.plan(wish, costs, lambda each: order_by(wish.goal, each))
    systems = tuple(
        _of_system(name, table, search.found, best, needs.get(name))
        for name in systems_of(table)
    )  # fmt: skip
    return replace(best, systems=systems)


def _of_system(
    system: str, table: Mapping[str, Any], found: list[Found], best: Plan[Found],
    needs: float | None,
) -> OfSystem[Found]:  # fmt: skip
    """What became of a system; `needs`: the bytes of a device that its smallest needs, None if
    there was nothing to try."""
    own = [each for each in found if each.question.system == system]
    if own:
        first = min(own, key=lambda each: order_by(best.goal, each))
        if any(each.question.system == system for each in best.best):
            return OfSystem(system, first, "")
        winner = next(
            each for each in best.best
            if all(a >= b for a, b in zip(each.goals, first.goals, strict=True))
        )  # fmt: skip
        return OfSystem(system, first, f"beaten by {winner.question.system}")
    if needs is None:
        counts = " or ".join(f"{count:,}" for count in best.device_counts)
        batch = table.get("batch")
        what = f"batch {batch} is no multiple of {counts}" if batch else "no batch fits"
        return OfSystem(system, None, f"no configuration: {what}")
    return OfSystem(
        system, None,
        f"no configuration: the least needs {needs / 1e9:,.0f} GB of a device, or a host or a "
        "network cannot have it",
    )  # fmt: skip


def _look_at(search: Search[Found], question: Question) -> float:
    """One configuration; the bytes that it needs of a device. Raises ConfigError for a cost that
    is not known."""
    search.tried += 1
    has, needs = question.job.device.memory_bytes, sum(memory_bytes(question).values())
    if needs > has:
        search.too_large += 1
    elif not search.spending.is_beyond(search.spending.known_of(question)):

        def found(step: StepTime, spent: Expense | None) -> Found:
            return Found(question=question, step=step, left_bytes=has - needs, expense=spent)

        search.score(question, found)
    return needs


def _check(search: Search[Found], least_bytes: float) -> None:
    if not search.tried:
        raise ConfigError(
            "batch: no degrees share it evenly among the devices; a multiple of them fits"
        )
    if search.found:
        return
    others = " or beyond the budget" if search.spending.beyond_count else ""
    search.check(f"are too large for a device{others}")
    if search.spending.beyond_count:
        raise ConfigError(search.spending.beyond_text)
    raise ConfigError(
        f"devices: none of {search.tried} configurations fits their memory; the least needs "
        f"{least_bytes / 1e9:.0f} GB each; take more devices"
    )

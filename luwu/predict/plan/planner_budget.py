"""The budget of a plan, its number of devices, and the goal that orders the list.

    devices = [8, 16, 32]          or one number; left out, what a budget buys
    batch_per_device = 2           instead of batch, where the number of devices varies
    budget = "2 MUSD"              to buy hosts and network; needs [cost]
    budget_per_hour = "500 USD/h"  of what is bought or rented
    goal = "capex"                 or tokens_per_s, dollars_per_million_tokens, watts

Where a budget is told and devices are not, hosts are 2^k or 3 x 2^k, as long as they alone, without
network, cards and drives, are within it. Goals order what is shown; which configurations nothing
beats does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.ask.question import AnyQuestion
from luwu.predict.ask.question_cost import HOUR_S, Costs, Expense, expense
from luwu.predict.hardware import units
from luwu.predict.hardware.keys import whole_of
from luwu.predict.hardware.units import Dimension
from luwu.predict.networks.choice import TopologyChoice
from luwu.predict.networks.cost import (
    Hosts,
    dollars_per_million_tokens,
    owned_dollars_per_s,
    rented_dollars_per_s,
)

KEYS: Final = ("devices", "batch", "batch_per_device", "budget", "budget_per_hour", "goal")
GOALS: Final = ("tokens_per_s", "dollars_per_million_tokens", "capex", "watts")
_OF_WHAT_IS_BOUGHT: Final = ("capex", "watts", "budget")
HOSTS_MAX: Final = 1 << 20
"""Tried of a budget; more are a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of spending; None: no limit."""

    capex: float | None = None
    """Dollars."""
    dollars_per_s: float | None = None

    def holds(self, spent: Expense) -> bool:
        """True if so much is within it."""
        if self.dollars_per_s is not None and spent.dollars_per_s > self.dollars_per_s:
            return False
        return self.capex is None or spent.bill is None or spent.bill.capex <= self.capex


class Spending:
    """Costs of configurations: computed once for all with the same number of machines on a
    network.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[tuple[str, TopologyChoice | None, int], Expense] = {}
        self.beyond_count = 0
        """Configurations that were beyond the budget."""

    def known_of(self, question: AnyQuestion) -> Expense | None:
        """Without reckoning: None where no costs are told, or such machines are new."""
        return self._known.get(self._machines(question))

    def of(self, question: AnyQuestion) -> Expense | None:
        """None where no costs are told. Raises ConfigError for a price that is not known."""
        if question.costs is None:
            return None
        key = self._machines(question)
        if key not in self._known:
            self._known[key] = expense(question.costs, question.place, question.build())
        return self._known[key]

    def is_beyond(self, spent: Expense | None) -> bool:
        """True if so much is beyond the budget; counts it then."""
        is_beyond = spent is not None and not self._budget.holds(spent)
        self.beyond_count += is_beyond
        return is_beyond

    @property
    def beyond_text(self) -> str:
        """That all is beyond the budget, and what would be within."""
        return _beyond_text(self._budget, self.beyond_count, self._known.values())

    @staticmethod
    def _machines(question: AnyQuestion) -> tuple[str, TopologyChoice | None, int]:
        return question.system, question.topology, question.place.ranks


def price_of(tokens_per_s: float, spent: Expense | None) -> float | None:
    """Dollars for a million tokens; None where no costs are told."""
    return None if spent is None else dollars_per_million_tokens(tokens_per_s, spent.dollars_per_s)


def priced_goals(tokens_per_s: float, spent: Expense | None) -> list[float]:
    """Price of tokens, to buy, and power, as far as they are told; all to be large."""
    price = price_of(tokens_per_s, spent)
    if spent is None or price is None:
        return []
    return [-price, *([-spent.bill.capex, -spent.bill.watts] if spent.bill is not None else [])]


def _beyond_text(budget: Budget, beyond: int, spent: Collection[Expense]) -> str:
    """That all is beyond the budget, and what would be within."""
    least, key, what = (
        min(each.dollars_per_s for each in spent) * HOUR_S,
        "budget_per_hour",
        "an hour",
    )
    capex = [each.bill.capex for each in spent if each.bill is not None]
    if budget.capex is not None and min(capex) > budget.capex:
        least, key, what = min(capex), "budget", "to buy"
    return (
        f"{key}: all {beyond} configurations that fit are beyond it; the least takes "
        f"{least:,.0f} USD {what}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Goals and output of a plan."""

    device_counts: tuple[int, ...]
    """To be tried."""
    budget: Budget
    goal: str

    def counts_devices(self, costs: Mapping[str, Costs]) -> bool:
        """True if few devices are a goal: there are several numbers, and no price says it."""
        return len(self.device_counts) > 1 and not any(each.tariff for each in costs.values())


def make_wish(
    table: Mapping[str, Any], costs: Mapping[str, Costs], goals: tuple[str, ...] = GOALS
) -> Wish:
    """The wish of a plan's table, and the costs of each system. Raises ConfigError, which names the
    key.
    """
    budget = _budget(table, costs)
    goal = table.get("goal", goals[0])
    if goal not in goals:
        raise ConfigError(
            f"goal: {goal!r} is not one of {', '.join(goals)}{suggestion(str(goal), goals)}"
        )
    if goal in GOALS[1:]:
        _check_costs("goal", goal, costs)
    if "devices" in table:
        counts = _counts(table["devices"])
    elif budget != Budget():
        counts = _affordable(budget, costs)
    else:
        raise ConfigError("devices is missing: a number, a list of them, or a budget for them")
    return Wish(device_counts=counts, budget=budget, goal=goal)


def _counts(value: Any) -> tuple[int, ...]:
    """Counts of devices."""
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ConfigError("devices: an empty list; a number or more of them fit")
    counts = tuple(whole_of("", {"devices": each}, "devices") for each in found)
    if len(set(counts)) < len(counts):
        raise ConfigError(f"devices: {found} has one of them twice; each once fits")
    return counts


def batch_of(table: Mapping[str, Any], devices: int) -> int:
    """Sequences of a step of so many devices. Raises ConfigError."""
    if "batch_per_device" not in table:
        if "batch" not in table:
            raise ConfigError("batch is missing; give the sequences per step, or batch_per_device")
        return whole_of("", table, "batch")
    if "batch" in table:
        raise ConfigError("batch_per_device: batch is set too; omit one of them")
    return devices * whole_of("", table, "batch_per_device")


# ---------------------------------------------------------------------- budgets


def _budget(table: Mapping[str, Any], costs: Mapping[str, Costs]) -> Budget:
    capex = per_s = None
    if "budget" in table:
        _check_costs("budget", "budget", costs)
        capex = units.parse("budget", table["budget"], Dimension.DOLLARS)
    if "budget_per_hour" in table:
        _check_costs("budget_per_hour", "budget_per_hour", costs)
        per_s = units.parse("budget_per_hour", table["budget_per_hour"], Dimension.DOLLARS_PER_S)
    return Budget(capex=capex, dollars_per_s=per_s)


def _check_costs(key: str, value: str, costs: Mapping[str, Costs]) -> None:
    """That what the key is about is known."""
    if not costs:
        raise ConfigError(f"{key}: [cost] is missing, which says what is bought or rented")
    if value in _OF_WHAT_IS_BOUGHT and any(each.tariff is None for each in costs.values()):
        fits = "budget_per_hour" if key == "budget" else ", ".join(GOALS[:2])
        raise ConfigError(f"{key}: what is rented has no price and no power; {fits} would fit")


def _affordable(budget: Budget, costs: Mapping[str, Costs]) -> tuple[int, ...]:
    """Devices of 2^k and 3 x 2^k hosts, as long as these are within a budget of some system."""
    each = {int(one.server.devices_count) for one in costs.values()}
    if len(each) > 1 or 0 in each:
        raise ConfigError(
            f"devices is missing: hosts of [cost] have {', '.join(map(str, sorted(each)))} of "
            "them, so what a budget buys is not one number; write devices = [8, 16] or such"
        )
    found, host_count = [], 1
    while any(budget.holds(_of_hosts(one, host_count)) for one in costs.values()):
        if host_count > HOSTS_MAX:
            raise ConfigError(f"budget: buys more than {HOSTS_MAX:,} hosts; give devices")
        found.append(host_count * min(each))
        host_count = _next(host_count)
    if not found:
        names = ", ".join(sorted({one.server.name for one in costs.values()}))
        raise ConfigError(f"budget: one host, {names}, is beyond it; more, or a smaller host, fits")
    return tuple(found)


def _next(count: int) -> int:
    """1, 2, 3, 4, 6, 8, 12 and so on."""
    if count < 3:
        return count + 1
    return count // 3 * 4 if count % 3 == 0 else count // 2 * 3


def _of_hosts(costs: Costs, count: int) -> Expense:
    """Costs of hosts without additions and without network."""
    hosts = Hosts(server=costs.server, count=count)
    if costs.tariff is None:
        return Expense(dollars_per_s=rented_dollars_per_s([hosts]), bill=None)
    return Expense(dollars_per_s=owned_dollars_per_s(hosts.bill, costs.tariff), bill=hosts.bill)


def order_by(goal: str, found: Any) -> float:
    """The place of a configuration by a goal: the least are the best."""
    if goal == "tokens_per_s":
        return float(-found.tokens_per_s)
    return float(getattr(found if goal not in ("capex", "watts") else found.expense.bill, goal))


Configuration = TypeVar("Configuration")


def undominated(
    found: Iterable[Configuration], goals: Callable[[Configuration], tuple[float, ...]]
) -> list[Configuration]:
    """Those that nothing beats in all goals, the best of the first goal first; of equal ones the
    first. Goals are to be large."""
    best: list[Configuration] = []
    shown: list[tuple[float, ...]] = []
    ordered = [(goals(each), rank, each) for rank, each in enumerate(found)]
    ordered.sort(key=lambda one: (*(-goal for goal in one[0]), one[1]))
    for own, _, each in ordered:  # who beats another stands before it
        if not any(all(a >= b for a, b in zip(other, own, strict=True)) for other in shown):
            best.append(each)
            shown.append(own)
    return best

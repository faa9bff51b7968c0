"""Looks at the configurations of a plan, of training or of inference, and counts what is left out.

A configuration is refused where its network or host cannot have it, left out where it costs more
than the budget, and counted as too slow where it is beyond a limit of time. Those that remain are
in `Search.found`; of these a plan keeps the ones that no other beats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs, Expense
from luwu.predict.plan.planner_budget import Spending, Wish, undominated


class Scored(Protocol):
    """A configuration that runs, with what it is judged by."""

    @property
    def goals(self) -> tuple[float, ...]:
        """All to be large."""

    @property
    def devices(self) -> int:
        """All of them, or sockets."""


Each = TypeVar("Each", bound=Scored)


@dataclass(frozen=True, slots=True)
class OfSystem(Generic[Each]):
    """A system that was asked for, and what became of it."""

    system: str
    best: Each | None
    """Its best configuration by the goal; None: it has none."""
    why: str
    """Why it is not among the best of all; empty if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[Each]):
    """The searched space, and the results."""

    best: tuple[Each, ...]
    """The Pareto set, in the order of the goal."""
    tried: int
    too_large: int
    """Configurations whose memory does not fit."""
    refused: int
    """Those that a network or a host cannot have."""
    first_refusal: str
    beyond_budget: int
    """Configurations that fit, on machines that cost too much."""
    beyond_limits: dict[str, int]
    """Configurations that are too slow, by the first limit that they exceed."""
    device_counts: tuple[int, ...]
    """That were tried."""
    goal: str
    systems: tuple[OfSystem[Each], ...] = ()
    """One of each system that was asked for."""


@dataclass(slots=True)
class Search(Generic[Each]):
    """State of a search."""

    spending: Spending
    limits: dict[str, float] = field(default_factory=dict)
    """Seconds at most, by the name of the attribute that they limit."""
    tried: int = 0
    too_large: int = 0
    too_slow: dict[str, int] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    """The fastest of those that are too slow, by limit."""
    refusals: list[str] = field(default_factory=list)
    found: list[Each] = field(default_factory=list)

    def score(self, question: Any, make: Callable[[Any, Expense | None], Each]) -> None:
        """Answer a question, and keep what `make` makes of the answer unless it costs too much or
        takes too long. Raises ConfigError for a cost or a peak that is not known."""
        try:
            answer = question.answer()
        except ConfigError as exc:
            self.refusals.append(str(exc))
            return
        spent = self.spending.of(question)
        if self.spending.is_beyond(spent):
            return
        found = make(answer, spent)
        for key, most in self.limits.items():
            value: float = getattr(found, key)
            if value > most:
                self.too_slow[key] = self.too_slow.get(key, 0) + 1
                self.least[key] = min(self.least.get(key, value), value)
                return
        self.found.append(found)

    def plan(
        self, wish: Wish, costs: Mapping[str, Costs], order: Callable[[Each], float]
    ) -> Plan[Each]:
        """The configurations that no other beats, in this order, and what was counted."""
        best = pareto(self.found, few_devices=wish.counts_devices(costs))
        return Plan(
            best=tuple(sorted(best, key=order)), tried=self.tried, too_large=self.too_large,
            refused=len(self.refusals), first_refusal=self.refusals[0] if self.refusals else "",
            beyond_budget=self.spending.beyond_count, beyond_limits=self.too_slow,
            device_counts=wish.device_counts, goal=wish.goal,
        )  # fmt: skip

    def check(self, others: str) -> None:
        """Raises ConfigError if nothing is left but refusals; `others`: what became of the rest."""
        if self.refusals and not self.found:
            raise ConfigError(
                f"{self.refusals[0]}; so it is with {len(self.refusals)} of {self.tried} "
                f"configurations, and the others {others}"
            )


def pareto(found: list[Each], *, few_devices: bool = False) -> list[Each]:
    """Those that nothing beats in all goals, in their order; of equal ones the first.

    `few_devices` is a goal where nothing else counts that many of them cost more.
    """

    def goals(each: Each) -> tuple[float, ...]:
        return each.goals + ((-float(each.devices),) if few_devices else ())

    return undominated(found, goals)

"""The best configuration of inference, on devices or on sockets.

    systems = ["inference"]         or "inference-sockets", or both
    model = "Llama3-405B"           as in a question, without what is searched
    device = "H200-141"             of sockets, processor and memory_bytes
    network = "ib-ndr"
    devices = 16                    or sockets; several, or a budget, as `planner_budget.py` says
    input_tokens = 2048
    output_tokens = 128
    precision = ["fp8", "bf16"]     one, or several to choose from; so kv_precision and batching,
                                    or {inference = "fp8", inference-sockets = "int8"}
    token_s_max = "50 ms"           between tokens of a sequence, no longer
    first_token_s_max = "2 s"
    goal = "token_s"                or tokens_per_s, first_token_s, and those with [cost]

Tensor ranks are searched, within a domain, stages, copies of the model, and batches: powers of two
below the largest that memory holds, and that one. All devices are used. A configuration that is
slower than a limit is counted and not shown. The Pareto set are those that no other beats in tokens
a second, time to the first token, time between tokens, and with [cost] in dollars per million
tokens, price and power. What a precision does to answers is not a goal: choose from those that will
do. `[topology]` and `[cost]` are those of a plan of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer_inference import first_token_parts
from luwu.predict.ask.question_cost import Costs, Expense
from luwu.predict.ask.question_inference import Served
from luwu.predict.ask.question_sockets import ServedBySockets
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.networks.choice import TopologyChoice
from luwu.predict.plan.planner_budget import (
    GOALS,
    Spending,
    make_wish,
    order_by,
    price_of,
    priced_goals,
    undominated,
)
from luwu.predict.plan.planner_inference_space import (
    LIMITS,
    AnyQuestion,
    configurations,
    limits_of,
    questions_by_batch,
    systems_of,
)
from luwu.predict.plan.planner_space import costs_by_system, topologies

OWN_GOALS: Final = ("tokens_per_s", *LIMITS, *GOALS[1:])
AnyServed: TypeAlias = Served | ServedBySockets


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInference:
    """A configuration that answers."""

    question: AnyQuestion
    devices: int
    """Or sockets, of all copies."""
    tokens_per_s: float
    """That come out of all of them."""
    first_token_s: float
    token_s: float
    """Between two of a sequence."""
    binding: str
    """Of a round of decode."""
    expense: Expense | None = None

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """None where no costs are told."""
        return price_of(self.tokens_per_s, self.expense)

    @property
    def goals(self) -> tuple[float, ...]:
        """All to be large."""
        priced = priced_goals(self.tokens_per_s, self.expense)
        return (self.tokens_per_s, -self.first_token_s, -self.token_s, *priced)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePlan:
    """What was searched, and what came of it."""

    best: tuple[FoundInference, ...]
    """The Pareto set, in the order of the goal."""
    tried: int
    too_large: int
    refused: int
    first_refusal: str
    beyond_budget: int
    beyond_limits: dict[str, int]
    """Configurations that are too slow, by the first limit that says so."""
    device_counts: tuple[int, ...]
    goal: str


@dataclass(slots=True)
class _Search:
    """What was seen so far."""

    spending: Spending
    limits: dict[str, float]
    tried: int = 0
    too_large: int = 0
    too_slow: dict[str, int] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    """Of those that are too slow, the fastest by each limit."""
    refusals: list[str] = field(default_factory=list)
    found: list[FoundInference] = field(default_factory=list)

    def look_at(self, question: AnyQuestion) -> None:
        """One configuration. Raises ConfigError for a cost or a peak that is not known."""
        self.tried += 1
        try:
            served = question.answer()
        except ConfigError as exc:
            self.refusals.append(str(exc))
            return
        spent = self.spending.of(question)
        if self.spending.is_beyond(spent):
            return
        found = _found(question, served, spent)
        for key, most in self.limits.items():
            value: float = getattr(found, key)
            if value > most:
                self.too_slow[key] = self.too_slow.get(key, 0) + 1
                self.least[key] = min(self.least.get(key, value), value)
                return
        self.found.append(found)


def plan_inference(table: Mapping[str, Any], catalogue: Catalogue) -> InferencePlan:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    systems, choices = systems_of(table), topologies(table)
    costs = costs_by_system(table, catalogue, systems)
    wish = make_wish(table, costs, OWN_GOALS)
    search = _Search(Spending(wish.budget), limits_of(table))
    for devices in wish.device_counts:
        for one in configurations({**table, "devices": devices}, catalogue):
            _look_at_batches(search, one, catalogue, choices, costs.get(one["system"]))
    _check(search)
    few_devices = wish.counts_devices(costs)
    best = undominated(
        search.found,
        lambda each: each.goals + ((-float(each.devices),) if few_devices else ()),
    )
    best.sort(key=lambda each: _order(each, wish.goal))
    return InferencePlan(
        best=tuple(best), tried=search.tried, too_large=search.too_large,
        refused=len(search.refusals), first_refusal=search.refusals[0] if search.refusals else "",
        beyond_budget=search.spending.beyond_count, beyond_limits=search.too_slow,
        device_counts=wish.device_counts, goal=wish.goal,
    )  # fmt: skip


def _look_at_batches(
    search: _Search, table: dict[str, Any], catalogue: Catalogue,
    choices: list[TopologyChoice | None], costs: Costs | None,
) -> None:  # fmt: skip
    """All that fit, on all networks. Raises ConfigError for what no plan can have."""
    found = questions_by_batch(table, catalogue, costs)
    if not found:
        search.tried += len(choices)
        search.too_large += len(choices)
    for own in found:
        for choice in choices:
            search.look_at(replace(own, topology=choice))


def _found(question: AnyQuestion, served: AnyServed, spent: Expense | None) -> FoundInference:
    """As the answer to the question has it."""
    if isinstance(served, Served):
        first_s, parts = sum(first_token_parts(served).values()), served.inference.decode.parts
        token_s, devices = served.inference.token_s, served.job.devices * served.replicas
    else:
        assert served.prefill is not None  # questions_by_batch saw to it
        first_s, parts = served.prefill.seconds, served.token.parts
        token_s, devices = served.token.seconds, served.job.sockets * served.replicas
    assert served.tokens_per_s is not None
    return FoundInference(
        question=question, devices=devices, tokens_per_s=served.tokens_per_s,
        first_token_s=first_s, token_s=token_s, expense=spent,
        binding=max(parts, key=lambda name: parts[name]),
    )  # fmt: skip


def _order(found: FoundInference, goal: str) -> float:
    if goal == "tokens_per_s":
        return -found.tokens_per_s
    return order_by(goal, getattr(found, goal, None), found.expense)


def _check(search: _Search) -> None:
    """Raises ConfigError where nothing is left."""
    if search.found:
        return
    if search.refusals:
        raise ConfigError(
            f"{search.refusals[0]}; so it is with {len(search.refusals)} of {search.tried} "
            "configurations, and the others do not fit, or are too slow or beyond the budget"
        )
    if search.too_slow:
        key = max(search.too_slow, key=lambda name: search.too_slow[name])
        raise ConfigError(
            f"{key}_max: {search.too_slow[key]} of {search.tried} configurations take longer, and "
            f"no other is left; the fastest of them takes {search.least[key] * 1e3:,.3g} ms"
        )
    if search.spending.beyond_count:
        raise ConfigError(search.spending.beyond_text)
    if search.too_large:
        raise ConfigError(
            f"devices: none of {search.tried} configurations fits their memory; more of them, or a "
            "smaller precision, may"
        )
    raise ConfigError("devices: no number of tensor ranks and stages shares them and the heads")

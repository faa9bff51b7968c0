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
from dataclasses import dataclass, replace
from functools import partial
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
from luwu.predict.plan.search import Plan, Search

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
    """Bottleneck of a round of decode."""
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


def plan_inference(table: Mapping[str, Any], catalogue: Catalogue) -> Plan[FoundInference]:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    systems, choices = systems_of(table), topologies(table)
    costs = costs_by_system(table, catalogue, systems)
    wish = make_wish(table, costs, OWN_GOALS)
    search = Search[FoundInference](Spending(wish.budget), limits_of(table))
    for devices in wish.device_counts:
        for one in configurations({**table, "devices": devices}, catalogue):
            _look_at_batches(search, one, catalogue, choices, costs.get(one["system"]))
    _check(search)
    return search.plan(wish, costs, lambda each: order_by(wish.goal, each))


def _look_at_batches(
    search: Search[FoundInference], table: dict[str, Any], catalogue: Catalogue,
    choices: list[TopologyChoice | None], costs: Costs | None,
) -> None:  # fmt: skip
    """All that fit, on all networks. Raises ConfigError for what no plan can have."""
    found = questions_by_batch(table, catalogue, costs)
    if not found:
        search.tried += len(choices)
        search.too_large += len(choices)
    for own in found:
        for choice in choices:
            question = replace(own, topology=choice)
            search.tried += 1
            search.score(question, partial(_found, question))


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


def _check(search: Search[FoundInference]) -> None:
    """Raises ConfigError where nothing is left."""
    if search.found:
        return
    search.check("do not fit, or are too slow or beyond the budget")
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

"""Plans of a budget: how many devices, of which price, and what orders the list."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.plan.plan_text import plan_document, plan_text
from luwu.predict.plan.planner import Plan, plan

MINE = """
[server.eight]
devices_count = 8
price = "200 kUSD"
power = "6 kW"
[server.four]
devices_count = 4
price = "100 kUSD"
power = "3 kW"
[tariff.ours]
life_s = "4 year"
pue = 1.2
energy_price = "0.1 USD/kWh"
"""
TABLE: dict[str, Any] = {
    "model": "GPT-13B", "device": "H100-80", "network": "ib-hdr", "software": "nemo-2024",
    "sequence": 2048, "batch": 256, "systems": ["3d", "zero3"],
}  # fmt: skip
BOUGHT: dict[str, Any] = {
    **TABLE, "topology": {"kind": "clos", "radix": 64},
    "cost": {"server": "eight", "switch": "QM9700", "link": "400G", "tariff": "ours"},
}  # fmt: skip
RENTED: dict[str, Any] = {**TABLE, "cost": {"server": "H100x8", "rented": True}}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    file: Path = tmp_path_factory.mktemp("budget") / "mine.toml"
    file.write_text(MINE)
    return load(file)


SEVERAL: dict[str, Any] = {**BOUGHT, "devices": [8, 16, 32, 64, 128]}


@pytest.fixture(scope="module")
def free(mine: Catalogue) -> Plan:
    """Without a budget."""
    return plan(SEVERAL, mine)


def devices_of(found: Plan) -> set[int]:
    """That the best have."""
    return {each.question.job.devices for each in found.best}


def test_predict_laws_a_list_of_one_number_is_that_number(mine: Catalogue) -> None:
    """Goal: the same plan; and what is tried of a list is what is tried of each alone."""
    alone = {count: plan({**TABLE, "devices": count}, mine) for count in (8, 16)}
    one = plan({**TABLE, "devices": [8]}, mine)
    assert one == alone[8]
    both = plan({**TABLE, "devices": [8, 16]}, mine)
    assert both.tried == sum(each.tried for each in alone.values())
    assert both.too_large == sum(each.too_large for each in alone.values())
    assert (
        both.best[0].step == max(alone.values(), key=lambda e: e.best[0].tokens_per_s).best[0].step
    )
    assert devices_of(both) == {8, 16}  # fewer devices are a goal where none has a price


def test_predict_laws_a_batch_grows_with_devices(mine: Catalogue) -> None:
    """Goal: batch_per_device is the batch of as many devices."""
    found = plan({**_without(TABLE, "batch"), "devices": [8, 32], "batch_per_device": 4}, mine)
    assert {(e.question.job.devices, e.question.job.batch) for e in found.best} == {
        (8, 32),
        (32, 128),
    }
    same = plan({**TABLE, "devices": 32, "batch": 128}, mine)
    assert found.best[0].step == same.best[0].step


def _without(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


@pytest.mark.parametrize(
    "budget",
    [
        "250 kUSD",
        pytest.param("500 kUSD", marks=pytest.mark.slow),
        "1.2 MUSD",
        pytest.param("3 MUSD", marks=pytest.mark.slow),
    ],
)
def test_predict_laws_what_is_shown_is_within_the_budget(
    mine: Catalogue, free: Plan, budget: str
) -> None:
    """Goal: of a list of numbers, those that cost more are counted and never shown, and the others
    are as without a budget; a larger budget is never slower."""
    found = plan({**SEVERAL, "budget": budget}, mine)
    number, unit = budget.split()
    dollars = float(number) * {"kUSD": 1e3, "MUSD": 1e6}[unit]
    assert free.beyond_budget == 0
    assert found.tried == free.tried
    assert found.beyond_budget > 0
    assert all(e.expense and e.expense.bill and e.expense.bill.capex <= dollars for e in found.best)
    within = [
        e for e in free.best if e.expense and e.expense.bill and e.expense.bill.capex <= dollars
    ]
    assert set(map(id_of, within)) == set(map(id_of, found.best))
    assert found.best[0].tokens_per_s <= free.best[0].tokens_per_s
    assert f"{found.beyond_budget} beyond the budget" in plan_text(found)


def id_of(each: Any) -> tuple[Any, ...]:
    """What tells one configuration from another."""
    return each.question.system, each.question.job, each.question.topology


def test_predict_laws_a_budget_says_how_many_devices(mine: Catalogue) -> None:
    """Goal: without devices, hosts are 1, 2, 3, 4, 6 and so on, as many as the budget buys without
    a network; with it, some of these are beyond it."""
    found = plan({**BOUGHT, "budget": "1.6 MUSD"}, mine)
    assert found.device_counts == (8, 16, 24, 32, 48, 64)
    assert max(devices_of(found)) < 64
    assert found.beyond_budget
    rented = plan({**RENTED, "budget_per_hour": "100 USD/h"}, mine)
    assert rented.device_counts == (8, 16, 24, 32, 48)  # of 2.06 USD an hour each
    assert rented.beyond_budget == 0
    owned = plan({**BOUGHT, "budget_per_hour": "30 USD/h"}, mine)
    assert all(e.expense and e.expense.dollars_per_s * 3600 <= 30 for e in owned.best)


def test_predict_laws_goals_order_the_same_set(mine: Catalogue) -> None:
    """Goal: each goal has its own order, of the same configurations."""
    table = {**BOUGHT, "devices": [8, 16, 32]}
    plain = plan(table, mine)
    for goal in ("dollars_per_million_tokens", "capex", "watts"):
        found = plan({**table, "goal": goal}, mine)
        assert sorted(map(repr, found.best)) == sorted(map(repr, plain.best))
        document = plan_document(found)
        values = [each[goal] for each in document["best"]]
        assert values == sorted(values)
        assert document["goal"] == goal
    text = plan_text(found)
    assert "that no other beats, least power first:" in text
    assert re.search(r"^ +tokens/s .* devices ", text, re.MULTILINE)
    json.dumps(document)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE, "devices is missing: a number, a list of them, or a budget"),
        ({**TABLE, "devices": []}, "devices: an empty list"),
        ({**TABLE, "devices": [8, 8]}, r"devices: \[8, 8\] has one of them twice"),
        ({**TABLE, "devices": [8, "16"]}, "devices: '16' is not a whole number above zero"),
        ({**TABLE, "devices": 8, "batch_per_device": 2}, "batch_per_device: batch is set too"),
        ({**_without(TABLE, "batch"), "devices": 8}, "batch is missing; .* or batch_per_device"),
        ({**TABLE, "devices": 8, "budget": "2 MUSD"}, r"budget: \[cost\] is missing"),
        ({**TABLE, "devices": 8, "goal": "capex"}, r"goal: \[cost\] is missing"),
        ({**BOUGHT, "goal": "capx", "devices": 8}, "goal: 'capx' is not one of .* mean capex"),
        ({**RENTED, "devices": 8, "goal": "watts"}, "goal: what is rented has no price and no pow"),
        ({**RENTED, "budget": "2 MUSD"}, "budget: what is rented .*; budget_per_hour would fit"),
        ({**BOUGHT, "budget": "2 MEUR"}, "budget: the unit 'MEUR' is unknown"),
        ({**BOUGHT, "budget": 2000000}, "budget: 2000000 is not a number with a unit"),
        ({**BOUGHT, "budget_per_hour": "5 USD"}, "budget_per_hour: the unit 'USD' is one of dol"),
        ({**BOUGHT, "budget": "20 kUSD"}, "budget: one host, eight, is beyond it"),
        (
            {**BOUGHT, "budget": "150 kUSD", "devices": [8, 16]},
            r"budget: all \d+ configurations that fit are beyond it; the least takes 2.*USD to buy",
        ),
        (
            {**RENTED, "budget_per_hour": "10 USD/h", "devices": 8},
            r"budget_per_hour: all \d+ config.* the least takes 16 USD an hour",
        ),
        (
            {**BOUGHT, "systems": ["3d", "ddp"], "budget": "2 MUSD",
             "cost": {**BOUGHT["cost"], "ddp": {"server": "four"}}},
            r"devices is missing: hosts of \[cost\] have 4, 8 of them",
        ),
        (
            {**RENTED, "devices": 8, "cost": {"server": "eight", "tariff": "ours",
             "zero3": {"server": "H100x8"}, "3d": {"rented": True}}},
            "cost.tariff: what is rented has none",
        ),
    ],
)  # fmt: skip
def test_bad_prediction_budgets(mine: Catalogue, table: dict[str, Any], said: str) -> None:
    """Goal: what cannot be spent, ordered or counted is refused by name."""
    with pytest.raises(ConfigError, match=said):
        plan(table, mine)


def test_bad_prediction_some_rented_some_bought(mine: Catalogue) -> None:
    """Goal: goals of one plan are the same of all systems."""
    cost = {"server": "H100x8", "3d": {"rented": True}, "zero3": {"tariff": "ours"}}
    with pytest.raises(ConfigError, match=r"cost.rented: of some systems and not of others"):
        plan({**TABLE, "devices": 8, "cost": cost}, mine)

"""Plans of inference: the search is whole, limits hold, and numbers are those of the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.ask.answer import answer
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.plan.plan_text import plan_document, plan_text
from luwu.predict.plan.planner_inference import plan_inference
from tests.schemas import check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "predict.md"
MINE = """
[processor.mine]
like = "Xeon-8575C"
bf16 = "100 TFLOP/s"
[server.sockets]
devices_count = 0
price = "20 kUSD"
power = "1 kW"
[server.eight]
devices_count = 8
price = "200 kUSD"
power = "6 kW"
[tariff.ours]
life_s = "4 year"
pue = 1.2
energy_price = "0.1 USD/kWh"
"""
TABLE: dict[str, Any] = {
    "systems": ["inference"], "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "devices": 8, "input_tokens": 2048, "output_tokens": 128, "precision": ["bf16", "fp8"],
    "kv_precision": ["bf16", "fp8"], "batching": ["static", "continuous"],
}  # fmt: skip
SOCKETS: dict[str, Any] = {
    "model": "Qwen-72B", "processor": "mine", "network": "roce-100g", "memory_bytes": "256 GiB",
    "devices": 8, "input_tokens": 128, "output_tokens": 128, "precision": ["bf16", "int8"],
}  # fmt: skip
COST: dict[str, Any] = {"switch": "QM9700", "link": "400G", "tariff": "ours", "server": "eight"}
BOUGHT: dict[str, Any] = {**TABLE, "topology": {"kind": "clos", "radix": 64}, "cost": COST}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return load(_mine(tmp_path_factory.mktemp("inference")))


def _mine(directory: Path) -> Path:
    file = directory / "mine.toml"
    file.write_text(MINE)
    return file


@pytest.mark.parametrize("table", [TABLE, SOCKETS, BOUGHT], ids=["devices", "sockets", "bought"])
def test_predict_laws_plans_of_inference(mine: Catalogue, table: dict[str, Any]) -> None:
    """Goal: all devices are used, none of the set beats another, numbers are those of the answer to
    the same question, the first has most tokens a second, and two searches are the same."""
    found = plan_inference(table, mine)
    goals = [each.goals for each in found.best]
    for own in goals:
        assert [o for o in goals if all(a >= b for a, b in zip(o, own, strict=True))] == [own]
    rates = [each.tokens_per_s for each in found.best]
    assert rates == sorted(rates, reverse=True)
    for each in found.best[::7]:
        said = answer(each.question, mine)
        assert each.devices == said["asked"]["devices"] == 8
        assert each.tokens_per_s == pytest.approx(said["tokens_per_s"], rel=1e-12)
        assert each.first_token_s == pytest.approx(said["first_token_s"], rel=1e-12)
        assert each.token_s == pytest.approx(said["token_s"], rel=1e-12)
        assert each.binding == said["binding"]
        if each.expense is not None:
            cost = said["cost"]["dollars_per_million_tokens"]
            assert each.dollars_per_million_tokens == pytest.approx(cost, rel=1e-12)
    assert plan_inference(table, mine) == found


def test_predict_laws_batches_go_up_to_the_largest(mine: Catalogue) -> None:
    """Goal: of one way to share a model, batches are powers of two and that which memory holds;
    whole models on one device are counted where they do not fit."""
    table = {**TABLE, "devices": 1, "precision": "fp8", "kv_precision": "bf16",
             "batching": "static"}  # fmt: skip
    found = plan_inference(table, mine)
    batches = sorted({each.question.job.batch for each in found.best})
    largest = batches.pop()
    assert batches == [1 << k for k in range(len(batches))]
    with pytest.raises(ConfigError, match=f"a batch of {largest} fits"):
        plan_question(table, mine, batch=largest + 1)
    assert found.tried == len(batches) + 1
    both = plan_inference({**table, "precision": ["bf16", "fp8"]}, mine)
    assert both.too_large == 1
    assert both.tried == found.tried + 1


def plan_question(table: dict[str, Any], catalogue: Catalogue, **more: Any) -> Any:
    """The question that a plan of one device asks."""
    own = {key: value for key, value in table.items() if key not in ("systems", "devices")}
    return make_question({**own, "system": "inference", **more}, catalogue)


@pytest.mark.parametrize("key", ["token_s", "first_token_s"])
def test_predict_laws_limits_of_inference_hold(mine: Catalogue, key: str) -> None:
    """Goal: what is slower than a limit is counted and not shown, the others are as without it, and
    a tighter limit never has more tokens a second."""
    free = plan_inference(TABLE, mine)
    values = sorted(getattr(each, key) for each in free.best)
    rates = [free.best[0].tokens_per_s]
    for most in (values[-1], values[len(values) // 2], values[0]):
        found = plan_inference({**TABLE, f"{key}_max": f"{most * 1e3 + 1e-6:.9f} ms"}, mine)
        assert found.tried == free.tried
        within = [each for each in free.best if getattr(each, key) <= most * (1 + 1e-9)]
        assert [e.question for e in found.best] == [e.question for e in within]
        rates.append(found.best[0].tokens_per_s)
    assert found.beyond_limits[key] > 0
    assert f"{found.beyond_limits[key]} beyond {key}_max" in plan_text(found)
    assert rates == sorted(rates, reverse=True)


def test_predict_laws_goals_of_inference_order_the_same_set(mine: Catalogue) -> None:
    """Goal: each goal has its own order, of the same configurations; a budget holds."""
    table = {**BOUGHT, "devices": [8, 16]}
    plain = plan_inference(table, mine)
    for goal in ("token_s", "first_token_s", "dollars_per_million_tokens", "capex", "watts"):
        found = plan_inference({**table, "goal": goal}, mine)
        assert {repr(each) for each in found.best} == {repr(each) for each in plain.best}
        document = plan_document(found)
        values = [each[goal] for each in document["best"]]
        assert values == sorted(values)
    within = plan_inference({**table, "budget": "300 kUSD"}, mine)
    assert within.beyond_budget > 0
    assert {each.devices for each in within.best} == {8}
    head = plan_text(found).splitlines()
    assert "least power first:" in head[0]
    for name in ("tokens/s", "first token", "between", "devices", "USD/Mtoken", "kW", "network"):
        assert name in head[1]


def test_predict_laws_devices_and_sockets_in_one_plan(mine: Catalogue) -> None:
    """Goal: each system has its own keys and costs; what is tried is what each alone tries."""
    keys = {"processor": "mine", "memory_bytes": "256 GiB", "host_sockets": 2,
            "systems": ["inference", "inference-sockets"],
            "precision": {"inference": ["fp8"], "inference-sockets": ["bf16", "int8"]},
            "kv_precision": "bf16"}  # fmt: skip
    both = {**BOUGHT, **keys, "cost": {**COST, "inference-sockets": {"server": "sockets"}}}
    found = plan_inference(both, mine)
    systems = {each.question.system for each in found.best}
    assert systems == {"inference", "inference-sockets"}  # sockets cost less to buy
    alone = plan_inference({**BOUGHT, "precision": "fp8", "kv_precision": "bf16"}, mine)
    assert found.tried > alone.tried
    json.dumps(plan_document(found))
    text = plan_text(found, len(found.best))
    assert " s8 r1, " in text
    assert " t8 p1 r1, " in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"systems": ["inference", "zero3"]}, "systems: 'zero3' is not one of inference, inf"),
        ({"systems": "inference"}, "systems: 'inference' is not a list of names"),
        ({"device": 8}, "device: 8 is not a name"),
        ({"tensor": 8}, "tensor: is what a plan searches"),
        ({"batch": 8}, "batch: is what a plan searches"),
        ({"device": None}, "device is missing: inference runs on one"),
        ({"model": None}, "model is missing"),
        ({"output_tokens": None}, "output_tokens is missing"),
        ({"devices": None}, "devices is missing"),
        ({"precision": ["fp9"]}, "precision: 'fp9' is not one of"),
        ({"precision": []}, "precision: an empty list"),
        ({"precision": {"sockets": "fp8"}}, "precision.inference is missing"),
        ({"device": "A100-80", "precision": "fp8"}, "precision: a A100-80 has no fp8; it has bf16"),
        ({"token_s_max": 50}, "token_s_max: 50 is not a number with a unit"),
        ({"token_s_max": "1 us"}, r"token_s_max: \d+ of \d+ configurations take longer.* ms"),
        ({"goal": "tokens_s"}, "goal: 'tokens_s' is not one of .* mean token"),
        ({"goal": "capex"}, r"goal: \[cost\] is missing"),
        ({"devices": 1, "model": "Llama3-405B"}, r"devices: none of \d+ configurations fits"),
        ({"kv_heads": 4}, "kv_heads is unknown here"),
        ({"processor": "mine"}, "processor is unknown here"),
    ],
)  # fmt: skip
def test_bad_prediction_plans_of_inference(
    mine: Catalogue, change: dict[str, Any], said: str
) -> None:
    """Goal: what cannot be searched is refused by name."""
    table = {key: value for key, value in {**TABLE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        plan_inference(table, mine)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"processor": "Xeon-8575C"}, "processor.Xeon-8575C.bf16 is not known"),
        ({"memory_bytes": None}, "memory_bytes is missing: of a socket"),
        ({"host_sockets": "2"}, "host_sockets: '2' is not a whole number"),
        ({"sockets": 4}, "sockets: is what a plan searches"),
        ({"batching": "static"}, "batching is unknown here"),
    ],
)
def test_bad_prediction_plans_of_sockets(
    mine: Catalogue, change: dict[str, Any], said: str
) -> None:
    """Goal: the same of sockets."""
    table = {key: value for key, value in {**SOCKETS, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        plan_inference(table, mine)


def test_the_command_plans_inference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a file that asks for tokens is a plan of inference, for people and as JSON."""
    file = tmp_path / "plan.toml"
    file.write_text(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in SOCKETS.items()) + "\n"
    )
    command = ["plan", str(file), "--catalogue", str(_mine(tmp_path))]
    assert main(command) == 0
    assert "that no other beats" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"][0]["system"] == "inference-sockets"


def test_the_page_has_a_plan_of_inference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the example of docs/predict.md runs, and keeps its limit."""
    blocks = PAGE.read_text().split("```toml\n")[1:]
    text = next(each for each in blocks if each.startswith("# plan of inference"))
    file = tmp_path / "plan.toml"
    file.write_text(text.partition("```")[0])
    assert main(["plan", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check("plan", found)
    assert found["beyond_limits"]["token_s"] > 0
    assert all(each["token_s"] <= 0.05 for each in found["best"])

"""`luwu plan`: the search is whole, what it shows is the best, and two searches are the same; its
degrees are all that the rules of configurations.py say, and no others."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands import plan as plan_command
from luwu.commands.main import main
from luwu.predict.ask.answer import answer
from luwu.predict.ask.configurations import configurations
from luwu.predict.ask.question import make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.job import TrainingJob
from luwu.predict.plan import Plan, plan, plan_document, plan_text
from tests.helpers.schemas import check
from tests.predict.tables import NODE, RENTED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "predict.md"
TABLE: dict[str, Any] = {
    "model": "GPT-22B", "device": "A100-80", "network": "ib-hdr", "software": "megatron-2023",
    "devices": 64, "sequence": 2048, "batch": 256, "systems": ["3d", "zero3", "ddp"],
}  # fmt: skip


def test_predict_laws_plans(catalogue: Catalogue) -> None:
    """Goal: each of the set fits, none beats another in both, the first is the fastest; a whole
    model of 22 B fits no device; and two searches are the same."""
    found = plan(TABLE, catalogue)
    assert found.tried > 300
    assert 0 < found.too_large < found.tried
    rates = [each.tokens_per_s for each in found.best]
    left = [each.left_bytes for each in found.best]
    assert rates == sorted(rates, reverse=True)
    assert left == sorted(left)
    assert len(set(left)) == len(left)
    for each in found.best:
        needs = each.question.needed_bytes
        assert each.left_bytes == each.question.job.device.memory_bytes - needs >= 0
        assert each.step.seconds == each.question.answer().seconds
    assert "ddp" not in {each.question.system for each in found.best}
    assert plan(TABLE, catalogue) == found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensor": 8}, r"tensor: is what a plan searches; leave it out"),
        ({"systems": "3d"}, r"systems: '3d' is not a list of names; one such as \['3d'\] fits"),
        ({"systems": ["3d", "3d"]}, r"systems: '3d' is there twice"),
        ({"model": 3}, r"model: 3 is not a name"),
        ({"systems": ["3dd"]}, r"systems: '3dd' is not one of"),
        ({"systems": ["zero-offload"]}, r"\[host\] is missing: zero-offload"),
        ({"model": None}, r"model is missing"),
        ({"tokens": "1K"}, r"tokens: '1K' of the whole training are less than a step's"),
        ({"topology": 3}, r"topology: 3 is not a section; write \[topology\]"),
        ({"topology": {"kind": "clo"}}, r"topology.kind: 'clo' is not one of .* mean clos"),
        ({"cost": {**RENTED, "luwu": {}}}, r"cost.luwu: none of the sys"),
        ({"cost": {"node_rental": "2 USD/h"}}, r"cost.device_rental is missing"),
        (
            {"topology": {"kind": "clos", "radix": 64, "endpoints": 8}},
            r"topology.endpoints: .*; so it is with \d+ of",
        ),
        ({"devices": 1, "batch": 1, "model": "GPT-1T"}, r"none of \d+ configurations fits"),
        ({"batch": 7}, r"batch: no degrees share it"),
        ({"devices": [8, 16]}, r"devices: \[8, 16\] is not a whole number"),
        ({"devices": None}, r"devices is missing"),
    ],
)
def test_bad_prediction_plans(catalogue: Catalogue, change: dict[str, Any], said: str) -> None:
    """Goal: what cannot be searched is refused by name."""
    table = {key: value for key, value in {**TABLE, **change}.items() if value is not None}
    if change.get("batch") == 7:
        table["systems"] = ["zero3"]
    with pytest.raises(ConfigError, match=said):
        plan(table, catalogue)


def test_predict_laws_plans_on_a_network_with_rents(catalogue: Catalogue) -> None:
    """Goal: configurations that the network cannot have are counted with the reason, and none of
    what is left out beats what is shown in all goals; a system has the rents of its own
    section."""
    table = {
        **TABLE, "systems": ["3d", "zero3", "luwu"], "node": NODE, "batch": 512,
        "topology": {"kind": "clos", "radix": 16, "taper": 3},
        "cost": {"device_rental": "2 USD/h", "zero3": {"device_rental": "1 USD/h"},
                 "luwu": {"node_rental": "2 USD/h"}},
    }  # fmt: skip
    found = plan(table, catalogue)
    assert found.refused > 0
    assert "push needs switches that sum" in found.first_refusal
    goals = [each.goals for each in found.best]
    assert {len(each) for each in goals} == {3}
    for own in goals:
        beats = [o for o in goals if all(a >= b for a, b in zip(o, own, strict=True))]
        assert beats == [own]
    rents = {each.question.system: each.question.dollars_per_s for each in found.found}
    assert rents == {"3d": pytest.approx(64 * 2 / 3600), "zero3": pytest.approx(64 / 3600)}


def test_the_page_has_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the examples of docs/predict.md run, for people and as JSON. A search takes seconds:
    what the first command found, the second shows as JSON."""
    searched: dict[str, Plan] = {}

    def once(table: dict[str, Any], catalogue: Catalogue) -> Plan:
        key = json.dumps(table, sort_keys=True)
        if key not in searched:
            searched[key] = plan(table, catalogue)
        return searched[key]

    monkeypatch.setattr(plan_command, "plan", once)
    blocks = [block.partition("```")[0] for block in PAGE.read_text().split("```toml\n")[1:]]
    plans = [block for block in blocks if block.startswith("systems")]
    assert len(plans) == 2
    for text, best in zip(plans, ("3d", "luwu"), strict=True):
        file = tmp_path / "plan.toml"
        file.write_text(text)
        command = ["plan", str(file)]
        assert main(command) == 0
        assert "that no other beats" in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        check("plan", found)
        assert best in {each["system"] for each in found["best"]}
    assert len(searched) == len(plans)
    assert found["best"][0]["dollars_per_million_tokens"] > 0
    assert main(["plan"]) == 2
    assert main(["plan", str(tmp_path / "none.toml")]) == 2


def test_every_system_that_was_asked_for_has_a_line(catalogue: Catalogue) -> None:
    """Goal: of each its best, and whether it is shown, what beats it, or why it has nothing."""
    found = plan({**TABLE, "systems": ["3d", "zero3", "ddp"]}, catalogue)
    told = {each.system: each for each in found.systems}
    assert list(told) == ["3d", "zero3", "ddp"]
    assert told["3d"].why == ""
    assert told["ddp"].best is None
    assert told["ddp"].why.startswith("no configuration: the least needs ")
    shown = {each.question.system for each in found.best}
    assert told["zero3"].best is not None
    assert (told["zero3"].why == "") == ("zero3" in shown)
    odd = plan({**TABLE, "systems": ["3d", "zero3"], "batch": 127}, catalogue)
    assert odd.systems[1].why == "no configuration: batch 127 is no multiple of 64"
    lines = plan_text(odd).splitlines()
    assert lines[1] == "zero3         no configuration: batch 127 is no multiple of 64"
    assert plan_document(odd)["systems"][1]["tokens_per_s"] is None


def test_a_plan_of_one_line_has_days_and_dollars(
    catalogue: Catalogue, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: flags that leave out software, batch and node are the file with what is assumed; each
    row has the days and dollars of its own question, and LuWu's those of its node."""
    words = ["plan", "--model", "llama3-8b", "--devices", "16xh100-80", "--network", "roce-100g",
             "--tokens", "1T", "--cost.device-rental", "3 USD/h", "--cost.node-rental", "2 USD/h",
             "--systems", "luwu,FSDP,3d", "--node.nodes", "1,2"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check("plan", found)
    assumed = found["assumed"]
    assert assumed["software"] == {
        "luwu": "torchtitan-2024", "zero3": "torchtitan-2024", "3d": "nemo-2024",
    }  # fmt: skip
    assert (assumed["batch"], assumed["node"]["network"]) == (32, "roce-100g")
    whole = plan({
        "model": "Llama3-8B", "device": "H100-80", "devices": 16, "network": "roce-100g",
        "tokens": "1T", "systems": ["luwu", "zero3", "3d"], **assumed,
        "node": {**assumed["node"], "nodes": [1, 2]},
        "cost": {"device_rental": "3 USD/h", "node_rental": "2 USD/h"},
    }, catalogue)  # fmt: skip
    assert plan_document(whole) == {**found, "assumed": {}}
    rents = [each.best and each.best.question.dollars_per_s for each in whole.systems]
    assert [rent and rent * 3600 for rent in rents] == [
        pytest.approx(16 * 3.0 + rent) for rent in (2 * 2.0, 0.0, 0.0)
    ]  # fmt: skip
    for row, each in zip(found["best"], whole.best, strict=True):
        assert row["whole_training"] == answer(each.question)["whole_training"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("assumed           sequence 8192, batch 32, node.processor Xeon-5320")
    days, dollars = (found["best"][0]["whole_training"][key] for key in ("days", "dollars"))
    assert f" tokens/s at best, {days:,.1f} days, {dollars:,.0f} USD, shown below" in said
    assert " USD, beaten by 3d: t1 p1 v1 d16, 2, none; bottleneck: " in said
    assert f"{days:9,.1f}  {dollars:13,.0f}" in said


def test_predict_laws_plans_choose_the_number_of_nodes(catalogue: Catalogue) -> None:
    """Goal: where [node] lists values each is tried, and a row has its own."""
    lists = {**NODE, "nodes": [1, 4], "per_host": ["none", "pull-and-push"]}
    table = {**TABLE, "systems": ["luwu"], "node": lists, "nics_per_host": 1}
    found = plan(table, catalogue)
    single = [
        plan({**table, "node": {**NODE, "nodes": nodes, "per_host": once}}, catalogue)
        for nodes in (1, 4) for once in ("none", "pull-and-push")
    ]  # fmt: skip
    assert found.tried == sum(each.tried for each in single)
    assert found.best[0].step.seconds == min(each.best[0].step.seconds for each in single)
    assert plan_document(found)["best"][0]["asked"]["nodes"] == 4
    assert "; nodes 4, per_host pull-and-push" in plan_text(found)


# ---------------------------------------------------------------------- degrees


DENSE: dict[str, Any] = {
    "model": "Llama3-405B", "device": "H100-80", "network": "ib-ndr", "software": "nemo-2024",
    "devices": 512, "sequence": 8192, "batch": 256, "systems": ["3d"],
}  # fmt: skip
EXPERTS: dict[str, Any] = {**DENSE, "model": "Mixtral-8x7B", "devices": 16, "batch": 32}


@pytest.mark.parametrize("sequence", [4096, 8192, 65536])
def test_predict_laws_degrees_are_all_that_the_rules_say(
    catalogue: Catalogue, sequence: int
) -> None:
    """Goal: the search is what is left of all degrees, tried one by one, when those are left out
    that cannot be and that the rules leave out; none is tried twice."""
    table = {**EXPERTS, "sequence": sequence}
    found = [make_training_question(e, catalogue).job for e in configurations(table, catalogue)]
    base = replace(found[0], micro_batch=1, recompute="none")
    expected = []
    for t, p, v, c, e, ends in itertools.product(
        (1, 2, 4, 8), range(1, 17), range(1, 35), (1, 2, 4, 8), (1, 2, 4, 8), (False, True)
    ):
        layers = 32 + 2 * ends
        if layers % (p * v) or (v > 1 and p == 1) or (ends and 32 % (p * v) == 0):
            continue
        if c > 1 and sequence / c < 4096:
            continue
        for width in {t, 1} if e > 1 else {t}:
            own = {"tensor": t, "pipeline": p, "virtual": v, "context": c, "expert": e,
                   "expert_tensor": None if width == t else width, "ends_as_layers": ends,
                   "sequence_parallel": t > 1}  # fmt: skip
            expected += _possible(base, own)
    alone = [job for job in found if job.micro_batch == 1 and job.recompute == "none"]
    assert len(set(map(repr, found))) == len(found)
    assert sorted(map(repr, alone)) == sorted(map(repr, expected))


def _possible(base: TrainingJob, own: dict[str, Any]) -> list[TrainingJob]:
    try:
        return [replace(base, **own)]
    except ConfigError:
        return []


def test_predict_laws_long_sequences_need_ranks_that_share_them(catalogue: Catalogue) -> None:
    """Goal: of 131,072 tokens, none of what fits does without context parallel ranks; stages of
    128 layers' places are found, as 126 layers have too few divisors."""
    found = plan({**DENSE, "sequence": 131_072, "batch": 64}, catalogue)
    assert all(each.question.job.context > 1 for each in found.best)
    assert all(each.question.job.ends_as_layers for each in found.best)
    text = plan_text(found)
    assert " c8 ends, 1, full" in text
    asked = plan_document(found)["best"][0]["asked"]
    assert asked["context"] == 8
    assert asked["ends_as_layers"] is True

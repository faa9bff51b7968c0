"""`[topology]` and `[cost]` of a question."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.systems.training import predict_step
from tests.predict.tables import DEVICES, LUWU, NODE, RENTED, THREE_D, TREE, ZERO3, asked

# ---------------------------------------------------------------------- topologies


@pytest.mark.parametrize(
    "table", [THREE_D, {**ZERO3, "devices": 64, "batch": 256}], ids=lambda table: table["system"]
)
def test_predict_laws_full_bisection_slows_by_hops_alone(
    catalogue: Catalogue, table: dict[str, Any]
) -> None:
    """S12. Goal: with ports enough for all, a step is that without a topology but for the switches
    on the way; a taper is never faster, and more of it is never faster than less."""
    plain = asked(table, catalogue)
    full = {"kind": "clos", "radix": 64}
    seconds = [plain.answer().seconds, asked(table, catalogue, topology=full).answer().seconds]
    assert seconds[0] < seconds[1] < 1.001 * seconds[0]
    no_hops = replace(plain.job.network, hop_s=0.0)
    hopless = asked(table, catalogue, topology=full)
    hopless = replace(hopless, job=replace(hopless.job, network=no_hops))
    assert hopless.answer().seconds == pytest.approx(seconds[0], rel=1e-12)
    for taper in (3, 7, 15):
        tapered = {"kind": "clos", "radix": 16, "taper": taper}
        seconds.append(asked(table, catalogue, topology=tapered).answer().seconds)
    assert sorted(seconds) == seconds
    assert seconds[-1] > seconds[1]


def test_predict_laws_every_exchange_has_its_own_group(catalogue: Catalogue) -> None:
    """S11. Goal: what slows pipelines alone changes their part alone; parts still add up, and one
    network for all is never faster than each its own."""
    shown = {**THREE_D, "software": "megatron-2023"}  # in the open
    question = asked(shown, catalogue, topology={"kind": "clos", "radix": 16, "taper": 7})
    plain, step = asked(shown, catalogue).answer(), question.answer()
    changed = {name for name in step.parts if step.parts[name] != plain.parts[name]}
    assert changed == {"pipeline exchange", "data exchange"}
    worst = predict_step(question.as_on_topology().job)
    assert plain.seconds < step.seconds <= worst.seconds
    assert set(question.exchanges()) == {"pipeline", "data"}
    data = question.exchanges()["data"]
    assert (data.group.size, data.group.stride) == (8, 8)
    assert question.exchanges()["pipeline"].group.stride == 64


def test_predict_laws_bytes_are_conserved(catalogue: Catalogue) -> None:
    """S13 to S16. Goal: in a tree every link carries the gradient once, however many are below;
    what all ports of rings send is what all ranks must get from others."""
    question = asked(LUWU, catalogue, topology=TREE, nics_per_host=8)
    psi, found = question.job.model.parameters, answer(question)["topology"]
    gradient = question.job.software.gradient_bytes
    assert found["exchanges"]["push"]["bytes_of_the_busiest_link"] == gradient * psi
    assert found["exchanges"]["pull"]["bytes_of_the_busiest_link"] == 2 * 2 * psi
    assert found["tiers"] == 2
    rings = asked(ZERO3, catalogue).exchanges()["states"]
    flat = asked(ZERO3, catalogue, software="deepspeed-2021").exchanges()["states"]
    assert flat.group.size == 16
    assert (rings.group.size, rings.group.stride) == (2, 8)
    received = (2 * 2 + gradient) * psi * 15 / 16
    assert rings.port_bytes * rings.group.stride == pytest.approx(received)
    assert asked(ZERO3, catalogue, devices=8).exchanges() == {}
    twice = asked(LUWU, catalogue, micro_batch=2).exchanges()
    once = asked(LUWU, catalogue).exchanges()
    assert all(twice[name].port_bytes == 2 * once[name].port_bytes for name in once)


def test_predict_laws_tiers_of_a_tree_add_latency_alone(catalogue: Catalogue) -> None:
    """Goal: a deeper tree is slower by its hops in the tail, and by nothing else."""
    steps = [
        asked(LUWU, catalogue, topology={**TREE, "fan_in": fan_in}).answer()
        for fan_in in (16, 4, 2)
    ]
    network = catalogue.network("roce-100g")
    for step, tiers in zip(steps, (1, 2, 4), strict=True):
        more_s = (tiers - 1) * 2 * network.hop_s
        assert step.parts["tail"] - steps[0].parts["tail"] == pytest.approx(more_s, abs=1e-12)


def test_predict_laws_experts_on_a_topology(catalogue: Catalogue) -> None:
    """J2, S14. Goal: what ranks of experts send each other leaves hosts and has the taper's share;
    a port sends what is for other hosts, in each of a step's all-to-alls."""
    table = {
        **THREE_D, "model": "Mixtral-8x7B", "devices": 128, "batch": 256, "tensor": 2,
        "pipeline": 4, "virtual": 1, "expert": 8,
    }  # fmt: skip
    question = asked(table, catalogue, topology={"kind": "clos", "radix": 16, "taper": 7})
    (exchange,) = (each for name, each in question.exchanges().items() if name == "expert")
    job = question.job
    tokens = job.micro_batch * job.sequence / job.tensor * job.model.experts_used
    rounds = 4 * job.micro_batches * job.model.layers / job.pipeline
    assert exchange.port_bytes == pytest.approx(2 * tokens * job.model.hidden * rounds / 2)
    plain = predict_step(job).parts["expert exchange"]
    assert question.answer().parts["expert exchange"] > 1.5 * plain
    assert answer(question)["topology"]["exchanges"]["expert"]["port_share"] < 1


@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "clos", "radix": 1024},
        {"kind": "clos", "radix": 64, "taper": [2.0], "endpoints": 1024},
        {"kind": "rail-optimised", "radix": 64, "rails": 8},
        {"kind": "aggregation-tree", "fan_in": 16},
    ],
    ids=lambda topology: topology["kind"],
)
def test_every_kind_of_network_is_answered(catalogue: Catalogue, topology: dict[str, Any]) -> None:
    """Goal: each kind is built, slows nothing down below a port, and is told with its parts."""
    question = asked(THREE_D, catalogue, topology=topology)
    found = answer(question)
    assert found["step_s"] >= asked(THREE_D, catalogue).answer().seconds
    assert found["topology"]["endpoints"] >= 512
    for each in found["topology"]["exchanges"].values():
        assert 0 < each["port_share"] <= 1
        assert each["bytes_of_the_busiest_link"] >= each["bytes_of_a_port"] > 0
    assert f"{topology['kind']}: " in text(found)
    json.dumps(found)


# ---------------------------------------------------------------------- costs


def test_rented_machines_cost_their_rents(catalogue: Catalogue) -> None:
    """B1, B2. Goal: what [cost] gives of each device, of nodes too; tokens a dollar times dollars a
    million tokens is a million."""
    train = answer(asked(THREE_D, catalogue, cost=RENTED))
    serve = answer(make_question({**DEVICES, "cost": RENTED}, catalogue))
    assert train["cost"]["dollars_per_h"] == pytest.approx(512 * 2.06)
    assert serve["cost"]["dollars_per_h"] == pytest.approx(16 * 2.06)
    said = train["cost"]
    assert said["tokens_per_dollar"] == pytest.approx(train["tokens_per_s"] * 3600 / 512 / 2.06)
    assert said["tokens_per_dollar"] * said["dollars_per_million_tokens"] == pytest.approx(1e6)
    assert "rented: 1,054.72 USD per hour" in text(train)
    luwu = {**LUWU, "node": {**NODE, "nodes": 2}}
    rents = {"device_rental": "5 USD/h", "node_rental": "3 USD/h"}
    own = answer(asked(luwu, catalogue, cost=rents))
    assert own["cost"]["dollars_per_h"] == pytest.approx(5 * own["asked"]["devices"] + 2 * 3)

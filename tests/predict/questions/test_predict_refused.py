"""Questions that are refused: what is wrong is named by its key, with what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue
from tests.predict.tables import DEVICES, LUWU, NODE, RAILS, RENTED, SOCKETS, THREE_D, TREE, ZERO3

MOE = {
    **THREE_D, "model": "Mixtral-8x7B", "devices": 128, "batch": 256, "tensor": 2, "pipeline": 4,
    "virtual": 1, "expert": 8,
}  # fmt: skip
CONTEXT = {
    **THREE_D, "context": 12, "tensor": 1, "pipeline": 1, "virtual": 1, "devices": 96, "batch": 8,
}  # fmt: skip
BARE = {"processor": "Xeon-5320", "memory_bytes": "512 GB"}
OFFLOAD = {**ZERO3, "system": "zero-infinity", "host": NODE}
SERVING = {**DEVICES, "batching": "continuous"}
LARGEST = {"batch": "largest", "memory_bytes": None}


def node(**changes: Any) -> dict[str, Any]:
    return {"node": {**NODE, **changes}}


def host(system: str, **changes: Any) -> dict[str, Any]:
    return {"system": system, "host": {**NODE, "devices": 1, **changes}}


def network(kind: str, **settings: Any) -> dict[str, Any]:
    return {"topology": {"kind": kind, **settings}}


def cost(**rents: Any) -> dict[str, Any]:
    return {"cost": rents}


def arrivals(**settings: Any) -> dict[str, Any]:
    return {"arrivals": settings}


CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (THREE_D, {"system": "zero4"}, r"system: 'zero4' is not one of luwu, .*did you mean zero3"),
    (THREE_D, {"batc": 3}, r"^batc is unknown here; did you mean batch"),
    (THREE_D, {"node": {}}, r"^node is unknown here"),
    (THREE_D, {"tensor": 0}, r"^tensor: 0 is not a whole number above zero"),
    (THREE_D, {"tensor": 4.0}, r"^tensor: 4.0 is not a whole number"),
    (THREE_D, {"pipeline": 128, "virtual": 1}, r"pipeline: 128 stages, but GPT-175B has 96"),
    (THREE_D, {"model": "GPT-175"}, r"model: no model 'GPT-175' .* did you mean GPT"),
    (THREE_D, {"virtual": 5}, r"virtual: 8 stages of 5 parts do not share 96 layers; take two"),
    (THREE_D, {"recompute": "some"}, r"recompute: 'some' is not one of none, selective, half, f"),
    (THREE_D, {"devices": 500}, r"devices: 500 are not a multiple of tensor x .* context = 32"),
    (THREE_D, {"batch": 1000}, r"batch: 1000 sequences cannot be shared by 16 .* of 16 fits"),
    (THREE_D, {"tensor": 128, "devices": 1024}, r"tensor: 128 ranks, but GPT-175B has 96"),
    (THREE_D, {"software": "megatron"}, r"software: 'megatron' is unknown; did you mean mega"),
    (THREE_D, {"device": "B200-180", "precision": "fp4"}, r"training in fp4 was not measured; bf1"),
    (LUWU, {"precision": "fp8"}, r"precision: a A100-40 has no fp8; it has bf16"),
    (MOE, {"expert": 3, "devices": 96, "batch": 240}, r"expert: 3 ranks do not .*1, 2, 4, 8 fits"),
    (MOE, {"devices": 32}, r"expert: 8 groups of 2 ranks do not divide the 8 of a"),
    (MOE, {"expert_tensor": 4}, r"expert_tensor: 4 ranks of an expert do not divide the 2"),
    (MOE, {"sequence_parallel": False}, r"sequence_parallel: must be true where tensor parallel"),
    *(
        (THREE_D, {key: 2}, rf"{key}: GPT-175B has no experts; leave it out")
        for key in ("expert", "expert_tensor")
    ),
    (THREE_D, {"device": 3}, r"device: 3 is not a name"),
    (THREE_D, {"sequence_parallel": 1}, r"sequence_parallel: 1 is neither true nor false"),
    (LUWU, {"tensor": 2}, r"tensor: luwu has data parallel ranks alone"),
    (LUWU, {"node": None}, r"\[node\] is missing"),
    (LUWU, node(cashed=1), r"node.cashed is unknown .* mean cached"),
    (LUWU, {"node": {"processor": "Xeon-5320"}}, r"node.memory_bytes is missing"),
    (LUWU, node(memory_bytes=512), r"node.memory_bytes: 512 is not"),
    (LUWU, node(disk="P5510-4T"), r"node.disk: no disk 'P5510-4T' .* did you"),
    (LUWU, node(cached=2), r"cached: 2.0 is not a share"),
    (LUWU, node(pulls=3), r"pulls: 3 of a unit in a step; 1 or 2 fit"),
    (LUWU, {"node": BARE}, r"there is no disk"),
    (LUWU, {"node": {**BARE, "disks": 12}}, r"disks: 12 of them, but no disk is named"),
    (OFFLOAD, {}, r"host.devices is missing"),
    (OFFLOAD, host(memory_bytes="5 GB", system="zero-offload"), r"has 5 GB, and 11 GB .*take 3"),
    (THREE_D, {"tokens": "1 GB"}, r"tokens: the unit 'GB' is one of bytes, but .*: tokens, K, M"),
    (THREE_D, {"tokens": "1K"}, r"tokens: '1K' of the whole training are less than a step's 2,0"),
    (THREE_D, {"tokens": "many"}, r"tokens: 'many' is not a number with a unit"),
    (LUWU, {"nics_per_host": 3}, r"nics_per_host: 3 NICs .* 1, 2, 4, 8 fits"),
    (LUWU, {"nics_per_host": 16}, r"nics_per_host: 16 NICs .* 1, 2, 4, 8 fits"),
    (LUWU, {"nics_per_host": 1, "topology": TREE}, r"nics_per_host: 8 devices share a NIC"),
    (LUWU, {**node(per_host="pull"), "topology": TREE}, r"node.per_host: \[topology\]"),
    (LUWU, node(per_host="pul"), r"per_host: 'pul' .*did you mean pull"),
    # inference
    (DEVICES, {"system": "inferense"}, r"'inferense' is not one of .*did you mean inference"),
    (DEVICES, {"micro_batch": 1}, r"^micro_batch is unknown here; "),
    (DEVICES, {"output_token": 1}, r"^output_token is unknown .*mean output_tokens"),
    (DEVICES, {"input_tokens": None}, r"^input_tokens is missing"),
    (DEVICES, {"batch": "larges"}, r"batch: 'larges' is neither a whole number nor 'largest'"),
    (DEVICES, {"batch": 0}, r"batch: 0 is not a whole number above zero"),
    (DEVICES, {"precision": 8}, r"precision: 8 is not a name"),
    (DEVICES, {"device": "H100"}, r"device: no device 'H100' is known"),
    (SOCKETS, {"device": "H100-80"}, r"^device is unknown here"),
    (SOCKETS, {"memory_bytes": "64 Gbit/s"}, r"memory_bytes: the unit 'Gbit/s' is one of"),
    (SOCKETS, LARGEST, r"memory_bytes is missing: the larg"),
    (SOCKETS, {"inside": "upj"}, r"inside: no network 'upj' is known; did you mean upi"),
    (DEVICES, {"tensor": 6}, r"tensor: 6 ranks cannot share 64 heads, 8 of .*; 1, 2, 4, 8, 16, 3"),
    (DEVICES, {"pipeline": 81}, r"pipeline: 81 stages, but Llama3-70B has 80 layers"),
    (DEVICES, {"precision": "fp4"}, r"precision: a H100-80 has no fp4; it has bf16, w8, fp8"),
    (DEVICES, {"precision": "fp16"}, r"precision: 'fp16' is not one of bf16, w8, fp8, fp4; did"),
    (DEVICES, {"kv_precision": "int4"}, r"kv_precision: 'int4' is not one of bf16, fp8, int8; did"),
    (DEVICES, {"batching": "statik"}, r"batching: 'statik' is not one of .*did you mean static"),
    (DEVICES, {"model": "Llama3-405B", "tensor": 1}, r"tensor: 2 of H100-80 do not .*missing"),
    (DEVICES, {"batch": 10**6}, r"batch: 1000000 sequences of 1536 tokens .*GB are missing on ea"),
    (SOCKETS, {"sockets": 3}, r"sockets: 3 ranks cannot share 64 heads"),
    (SOCKETS, {"host_sockets": 3}, r"sockets: 4 are not a multiple of host_sockets = 3"),
    (SOCKETS, {"precision": "fp8"}, r"precision: 'fp8' is not one of bf16, int8"),
    (SOCKETS, {"memory_bytes": "1 GB"}, r"batch: 1 sequences .* has 1 GB; more sockets would fit"),
    (SOCKETS, {"memory_bytes": "40 GB", "batch": 999}, r"batch: 999 .* GB; a batch of \d+ fits"),
    (SERVING, {"arrivals": 3}, r"^arrivals: 3 is not a section; write \[arrivals\]"),
    (SERVING, arrivals(), r"^\[arrivals\]: give per_second or concurrent, one of the two"),
    (SERVING, arrivals(concurrent=40, requests=60), r"^arrivals.requests: 60 of 40 .*80 or"),
    (SERVING, arrivals(per_secnd=1), r"^arrivals.per_secnd is unknown .*mean per_second"),
    (SERVING, arrivals(per_second=0), r"^arrivals.per_second: 0; a number above 0 fits"),
    (SERVING, arrivals(per_second=True), r"^arrivals.per_second: True; a number"),
    (SERVING, arrivals(per_second=1, seed=0.5), r"^arrivals.seed: 0.5 is not a whole"),
    (SERVING, arrivals(per_second=1, requests=0), r"^arrivals.requests: 0 is not a whole"),
    (DEVICES, arrivals(per_second=1), r"^\[arrivals\] with batching 'static', .*continuous"),
    (ZERO3, arrivals(per_second=1), r"^arrivals is unknown here"),
    # [topology]
    (THREE_D, {"topology": {}}, r"topology.kind: None is not one of clos, rail-optimised"),
    (THREE_D, network("cloz"), r"topology.kind: 'cloz' is not one of .* did you mean clos"),
    (THREE_D, network("clos"), r"topology.radix is missing"),
    (THREE_D, network("clos", radix=64, tapr=2), r"topology.tapr is .* mean taper"),
    (THREE_D, network("clos", radix=64.0), r"topology.radix: 64.0 is not a whole number"),
    (THREE_D, network("clos", radix=64, taper="2"), r"topology.taper: '2' is not a num"),
    (THREE_D, network("clos", radix=64, taper=0.5), r"tapers: 0.5 does not fit"),
    (THREE_D, network("clos", radix=64, endpoints=500), r"topology.endpoints: .* 512 o"),
    (THREE_D, network("clos", radix=1), r"topology.radix: 1 is not a count; a whole number from 2"),
    (THREE_D, network("clos", radix=2), r"radix: 2 ports cannot connect 512 .*; at least 4 can"),
    (THREE_D, network("clos", radix=64, taper=float("nan")), r"tapers: nan does not fit"),
    (THREE_D, network("clos", radix=512, taper=2), r"tapers: 1 are given, but 512 .* 1 tiers: at"),
    (THREE_D, network("rail-optimised", radix=64, endpoints=514), r"rails: 8 do not divide 514"),
    (THREE_D, {"tensor": 12, "devices": 768, "topology": RAILS}, r"group.stride: 6 neither"),
    (CONTEXT, {"topology": RAILS}, r"group.size: 12 ranks, .* do not fill domains of 8; a mul"),
    (DEVICES, {"topology": RAILS}, r"^topology is unknown here"),
    (LUWU, network("aggregation-tree", fan_in=1), r"topology.fan_in: 1 is not a count"),
    (LUWU, network("clos", radix=64), r"push needs switches that sum"),
    (THREE_D, {"topology": 3}, r"topology: 3 is not a section"),
    # [cost]: nothing is taken to be free
    (THREE_D, cost(), r"cost.device_rental is missing"),
    (THREE_D, cost(device_rent="3 USD/h"), r"cost.device_rent is unknown .* mean device_rental"),
    (THREE_D, cost(device_rental=3), r"cost.device_rental: 3 is not a number with a unit"),
    (THREE_D, {"cost": {**RENTED, "node_rental": "3 USD/h"}}, r"cost.node_rental: nothing here"),
    (ZERO3, cost(device_rental="0 USD/h"), r"cost.device_rental: all is free"),
    (LUWU, cost(device_rental="3 USD/h"), r"cost.node_rental is missing: 1 optimizer nodes"),
]


@pytest.mark.parametrize(("table", "change", "said"), CASES, ids=[said for *_, said in CASES])
def test_bad_prediction_questions(
    catalogue: Catalogue, table: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    changed = {key: value for key, value in {**table, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        answer(make_question(changed, catalogue))

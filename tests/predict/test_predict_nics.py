"""NICs that devices share, what a host has once, and the step by other software."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.question import make_question
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.placement import placed, ring_path, step_path
from luwu.predict.systems.in_network import PER_HOST, node_resources
from tests.predict.tables import asked
from tests.predictions import quick_playing

SMALL: dict[str, Any] = {
    "model": "Llama3-8B", "device": "H100-80", "network": "roce-100g", "devices": 64,
    "software": "torchtitan-2024", "sequence": 4096, "batch": 128, "recompute": "full",
}  # fmt: skip
NODE = {"processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "PM9A3", "disks": 8}
LUWU = {**SMALL, "system": "luwu", "node": NODE}
THREE_D = {
    **SMALL, "system": "3d", "software": "nemo-2024", "tensor": 2, "pipeline": 2, "context": 2,
    "micro_batch": 1,
}  # fmt: skip
ALL = [LUWU, THREE_D] + [{**SMALL, "system": name} for name in ("zero3", "ddp", "atp")]


@pytest.mark.feature("NICs that the devices of a host share")
@pytest.mark.parametrize("table", ALL, ids=lambda table: table["system"])
def test_predict_laws_fewer_nics_are_never_faster(
    catalogue: Catalogue, table: dict[str, Any]
) -> None:
    """N16, G5. Goal: as many NICs as devices are what is assumed; with each half of them a step is
    no shorter, and with one of eight at a tenth of the rate longer."""
    slow = replace(catalogue, entries={**catalogue.entries, "network": {
        **catalogue.entries["network"],
        "roce-100g": replace(catalogue.network("roce-100g"), rate=1.25e9),
    }})  # fmt: skip
    steps = [asked(table, slow, nics_per_host=n).answer().seconds for n in (8, 4, 2, 1)]
    assert steps[0] == asked(table, slow).answer().seconds
    assert all(more <= fewer for more, fewer in pairwise(steps))
    assert steps[0] < steps[-1]


def test_predict_laws_what_is_shared_of_a_port(catalogue: Catalogue) -> None:
    """G5. Goal: all devices that send have a part of a NIC, one that sends alone has all of it, and
    a host with one NIC sends through it as through all of its devices' parts."""
    job = asked(THREE_D, catalogue, nics_per_host=1).job
    nic = catalogue.network("roce-100g").port_rate
    whole = placed(job, 64, 1)
    assert job.network.port_rate == nic / 8
    assert ring_path(job, whole).rate == nic
    flat = replace(job, software=replace(job.software, ring="flat"))
    before = asked(THREE_D, catalogue).job
    alone = replace(before, software=flat.software)
    assert ring_path(flat, whole).rate == ring_path(alone, whole).rate
    assert step_path(job, placed(job, 32, 2)).rate == nic / 2  # two groups leave the host


@pytest.mark.feature("a pull per host instead of one per device")
def test_predict_laws_a_host_pulls_once(catalogue: Catalogue) -> None:
    """L8. Goal: what is sent once per host is an eighth of the bytes and, through one NIC, of the
    time; the node still sends each byte once."""
    by_key = {
        name: asked({**LUWU, "node": {**NODE, "per_host": name}}, catalogue, nics_per_host=1)
        for name in PER_HOST
    }
    busy = {}
    for name, question in by_key.items():
        assert question.nodes is not None
        busy[name] = node_resources(question.job, question.nodes, question.job.model.parameters)
    assert busy["pull"]["pull"] == pytest.approx(busy["none"]["pull"] / 8)
    assert busy["pull"]["push"] == busy["none"]["push"]
    assert busy["pull-and-push"]["push"] == pytest.approx(busy["none"]["push"] / 8)
    assert by_key["pull"].answer().seconds < by_key["none"].answer().seconds


@pytest.mark.parametrize(
    ("change", "node", "port"),
    [
        ({"nics_per_host": 1}, {}, "each worker"),
        ({}, {"network": "virtio-10g"}, "the node"),
        ({"nics_per_host": 1}, {"per_host": "pull-and-push", "network": "virtio-10g"}, "the node"),
        ({"network": "virtio-10g"}, {"aggregate_rate": "0.1 GB/s"}, "the switch"),
        ({"network": "virtio-10g"}, {}, ""),
    ],
)  # fmt: skip
def test_the_bottleneck_has_the_port_that_limits_it(
    catalogue: Catalogue, change: dict[str, Any], node: dict[str, Any], port: str
) -> None:
    """Goal: it is the slowest of all that take part, and none where two are as slow."""
    document = answer(asked({**LUWU, **change, "node": {**NODE, **node}}, catalogue))
    assert document["binding"] in ("pull", "push")
    assert document["binding_port"] == (port or None)
    said = f", by the port of {port}" if port else ""
    assert f"bottleneck        {document['binding']}{said}\n" in text(document)


def test_predict_laws_a_domain_link_carries_both(catalogue: Catalogue) -> None:
    """L8. Goal: where what devices of a host pass on takes longest, it limits the step: pulls and
    pushes together, seven eighths of each; the play is no shorter."""
    device = replace(catalogue.device("H100-80"), domain_rate=1e9, all_reduce=None)
    slow = replace(catalogue, entries={**catalogue.entries, "device": {"H100-80": device}})
    question = asked({**LUWU, "node": {**NODE, "per_host": "pull-and-push", "nodes": 8}}, slow)
    psi, m = question.job.model.parameters, question.job.micro_batches
    found = question.answer()
    assert found.binding == "domain link"
    assert found.seconds == pytest.approx(m * (4 + 2) * psi * 7 / 8 / 1e9)
    assert question.nodes is not None
    how = quick_playing(question.job)
    played_s = play_driven_steps(question.job, question.nodes, **how)
    assert played_s >= found.seconds


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (SMALL | {"system": "zero3"}, "8 per host of 8 devices (assumed): 92 Gbit/s per device"),
        (THREE_D | {"nics_per_host": 1}, "1 per host of 8 devices: 11.5 Gbit/s per device"),
        (SMALL | {"system": "zero3", "software": "deepspeed-2023"},
         "1 per host of one device (assumed): 92 Gbit/s per device"),
        ({"system": "inference", "model": "Llama3-8B", "device": "H100-80", "network": "roce-100g",
          "nics_per_host": 2, "tensor": 4, "input_tokens": 10, "output_tokens": 10},
         "2 per host of 4 devices: 46 Gbit/s per device"),
        ({**LUWU, "device": "GB300", "devices": 32, "nics_per_host": 2},
         "2 per host of 32 devices: 5.75 Gbit/s per device"),
        ({**LUWU, "devices": 32, "devices_per_host": 4, "nics_per_host": 2},
         "2 per host of 4 devices: 46 Gbit/s per device"),
        ({"system": "inference-sockets", "model": "Llama3-8B", "processor": "Xeon-8575C",
          "network": "roce-100g", "input_tokens": 10, "output_tokens": 10},
         "1 per host of 2 devices (assumed): 46 Gbit/s per device"),
    ],
    ids=["assumed", "given", "one device", "inference", "fewer", "of four", "sockets"],
)  # fmt: skip
def test_the_answer_always_has_its_nics(
    catalogue: Catalogue, table: dict[str, Any], line: str
) -> None:
    assert f"NICs              {line}" in text(answer(make_question(table, catalogue)))

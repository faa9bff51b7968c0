"""LuWu and the systems that offload, predicted: laws that hold whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.hardware import Host, Processor
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems.in_network import OptimizerNodes, predict_in_network_step


@pytest.fixture
def job(catalogue: Catalogue) -> TrainingJob:
    """Eight workers with one device each, at 100 Gbit/s."""
    return TrainingJob(
        model=catalogue.model("GPT-175B"), device=catalogue.device("A100-40"),
        network=catalogue.network("roce-100g"),
        software=replace(software("composer-2023"), host_devices=1), devices=8, sequence=2048,
        batch=16, micro_batch=2, recompute="full",
    )  # fmt: skip


@pytest.fixture
def host(catalogue: Catalogue) -> Host:
    processor = Processor(name="some", cores_count=26, memory_rate=188e9)
    disk = catalogue.find("disk", "P5510-3.84T")
    return Host(processor=processor, memory_bytes=512e9, disk=disk, disks=12)


@pytest.fixture
def nodes(host: Host, job: TrainingJob) -> OptimizerNodes:
    return OptimizerNodes(host=host, network=job.network)


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"memory": 188e9}, "node memory"), ({"memory": 1e12}, "pull"),
     ({"memory": 188e9, "disks": 1}, "disk write")],
)  # fmt: skip
def test_predict_laws_the_slowest_binds(
    job: TrainingJob, nodes: OptimizerNodes, change: dict[str, Any], expected: str
) -> None:
    """Goal: the slowest resource is named and waited for; no step is shorter than any resource is
    busy, or than compute and what is waited for."""
    processor = replace(nodes.host.processor, memory_rate=change["memory"])
    host = replace(nodes.host, processor=processor, disks=change.get("disks", 48))
    step = predict_in_network_step(job, replace(nodes, host=host))
    assert step.binding == expected
    assert step.parts[f"waiting for {expected}"] > 0
    assert step.seconds >= max(step.resources.values())
    much = predict_in_network_step(replace(job, batch=1024, micro_batch=128), nodes)
    assert much.binding == "compute"


def test_predict_laws_pulls_ahead_hide_behind_all_compute(
    job: TrainingJob, nodes: OptimizerNodes
) -> None:
    """L6. Goal: pulled ahead, a step is compute or all pulls, whichever is longer, and its tail;
    never longer than with a window; and as the cores have a window, it is not played."""
    ahead = replace(nodes, pulls_ahead=True)
    for micro_batch in (1, 4, 32):
        one = replace(job, micro_batch=micro_batch, batch=8 * micro_batch)
        step, window = (predict_in_network_step(one, each) for each in (ahead, nodes))
        assert step.seconds <= window.seconds
        least = max(step.resources.values())
        assert least <= step.seconds
        if step.bound_by in ("compute", "pull"):
            assert step.seconds == pytest.approx(least + step.parts["tail"])
    with pytest.raises(ConfigError, match=r"node.pulls_ahead: .* not played; leave it out"):
        play_driven_steps(job, ahead)

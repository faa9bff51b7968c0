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
from luwu.predict.systems.data_parallel import (
    Offload,
    predict_offload_step,
    predict_replicated_step,
    predict_sharded_step,
    predict_switch_summed_step,
)
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


def test_predict_laws_the_node_does_not_feel_the_workers(
    job: TrainingJob, nodes: OptimizerNodes
) -> None:
    """Goal: bytes and seconds of each resource of the node are the same for 1 and for 1,000
    workers, and so is the step."""
    found = [
        predict_in_network_step(replace(job, devices=n, batch=2 * n), nodes) for n in (1, 8, 1000)
    ]
    assert found[0].resources == found[1].resources == found[2].resources
    steps = [step.seconds for step in found]
    assert steps[0] == pytest.approx(steps[1]) == pytest.approx(steps[2])


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


def test_predict_laws_updates_wait_for_the_last_micro_batch(
    job: TrainingJob, nodes: OptimizerNodes
) -> None:
    """Goal: two micro-batches pull and push twice and update once."""
    one, two = (predict_in_network_step(replace(job, batch=16 * m), nodes) for m in (1, 2))
    for name, times in (("pull", 2), ("push", 2), ("disk read", 1), ("disk write", 1)):
        assert two.resources[name] == pytest.approx(times * one.resources[name])


def test_predict_laws_replicated(job: TrainingJob) -> None:
    """Goal: one device reduces nothing; a switch that sums sends each byte once up and once down,
    whatever the number of devices; more bandwidth is never slower."""
    one = replace(job, devices=1, batch=2)
    assert predict_replicated_step(one).parts["exchange"] == 0
    assert predict_switch_summed_step(one).parts["exchange"] == 0
    two, many = (
        predict_switch_summed_step(replace(job, devices=n, batch=2 * n)) for n in (2, 1000)
    )
    assert two.parts["exchange"] == many.parts["exchange"]
    faster = replace(job, network=replace(job.network, rate=2 * job.network.rate))
    for predict in (predict_replicated_step, predict_switch_summed_step):
        assert predict(faster).seconds < predict(job).seconds


def test_predict_laws_offload(job: TrainingJob, host: Host) -> None:
    """Goal: its step is never shorter than that of ZeRO-3 without the optimizer; drives are never
    faster than memory; more of them are never slower."""
    memory = Offload(host=replace(host, memory_bytes=1e13), devices=1)
    drives = replace(memory, to_disk=True, pipelined=True)
    sharded = predict_sharded_step(job)
    in_memory, on_drives = (predict_offload_step(job, each) for each in (memory, drives))
    assert sharded.seconds - sharded.parts["optimizer"] <= in_memory.seconds <= on_drives.seconds
    few = replace(drives, host=replace(host, disks=1))
    assert on_drives.seconds < predict_offload_step(job, few).seconds
    assert predict_offload_step(job, few).parts["optimizer stage"] == pytest.approx(
        few.host.write(12 * job.model.parameters / 8)
    )


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

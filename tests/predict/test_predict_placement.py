"""Where ranks sit, and what context parallel ranks exchange: laws, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import WIRE_BYTES
from luwu.predict.model.placement import group_of, placed
from luwu.predict.model.traffic import block_bytes, sent_bytes


@pytest.fixture
def job(catalogue: Catalogue) -> TrainingJob:
    return TrainingJob(
        model=catalogue.model("Llama3-70B"), device=catalogue.device("H100-80"),
        network=catalogue.network("ib-ndr"), software=software("megatron-2023"), devices=512,
        sequence=8192, batch=64, tensor=4, pipeline=4, context=2, sequence_parallel=True,
    )  # fmt: skip


# ---------------------------------------------------------------------- placement


@pytest.mark.parametrize(
    ("size", "stride", "inside"),
    [(8, 1, 8), (4, 1, 4), (16, 1, 8), (2, 4, 2), (4, 4, 2), (3, 4, 1), (32, 8, 1), (12, 1, 6),
     (1, 64, 1), (16, 16, 1)],
)  # fmt: skip
def test_predict_laws_groups_in_domains_of_eight(
    job: TrainingJob, size: int, stride: int, inside: int
) -> None:
    """G2. Goal: a domain holds as many ranks of a group as its stride leaves, in equal parts."""
    group = placed(job, size, stride)
    assert group.inside == inside
    assert group.domains * group.inside == size
    assert group.inside == 1 or group.inside * stride <= job.device.domain_count


def test_ranks_of_an_nvl72_share_its_domain(catalogue: Catalogue, job: TrainingJob) -> None:
    """G1. Goal: of 128 devices as 4 x 2 x 2 x 8, four stages fit a domain of 72 and everything
    inside of a stage; of those of hosts of eight, tensor and context ranks alone."""
    large = replace(job, devices=128, pipeline=8, batch=64)
    for device, insides in (("GB200", (4, 2, 4, 4)), ("B200-180", (4, 2, 2, 1))):
        one = replace(large, device=catalogue.device(device))
        groups = [group_of(one, each) for each in ("tensor", "context", "gradient", "pipeline")]
        assert tuple(group.inside for group in groups) == insides, device


# ---------------------------------------------------------------------- context


@pytest.mark.parametrize("context", [1, 2, 4, 8])
def test_predict_laws_context_bytes_are_conserved(job: TrainingJob, context: int) -> None:
    """X1 to X3. Goal: all ranks together send keys and values of the whole sequence c - 1 times,
    each of which lacks its own part alone, and backward twice as much."""
    one = replace(job, context=context)
    forward, backward = sent_bytes(one)
    whole = WIRE_BYTES * 2 * one.sequence * one.model.kv_heads * one.model.head_width
    assert context * one.tensor * block_bytes(one) == whole
    assert one.tensor * forward == pytest.approx(whole * (context - 1) / context)
    assert backward == 2 * forward

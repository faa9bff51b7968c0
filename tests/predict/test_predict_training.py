"""Models, and steps of 3-D training: laws that hold whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.placement import placed
from luwu.predict.systems.training import predict_step


@pytest.fixture
def job(catalogue: Catalogue) -> TrainingJob:
    return TrainingJob(
        model=catalogue.model("GPT-175B"), device=catalogue.device("A100-80"),
        network=catalogue.network("ib-hdr"), software=software("megatron-2022"), devices=512,
        sequence=2048, batch=512, tensor=8, pipeline=8, sequence_parallel=True,
        recompute="selective",
    )  # fmt: skip


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "billions"),
    [("GPT-22B", 22.1), ("GPT-175B", 174.6), ("GPT-530B", 529.6), ("GPT-1T", 1008.0),
     ("Llama3-8B", 8.03), ("Llama3-70B", 70.6), ("Llama3-405B", 405.9), ("Llama2-70B", 69.0)],
)  # fmt: skip
def test_models_have_their_parameters(catalogue: Catalogue, name: str, billions: float) -> None:
    """Goal: shapes give the numbers of parameters that are known of these models."""
    assert catalogue.model(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_operations_are_those_of_the_literature(catalogue: Catalogue) -> None:
    """Goal: 2.2e15 operations for a sequence of GPT-3, 1.01e16 for one of Nemotron 340B (NVIDIA's
    own numbers; the second counts as many heads of keys as of queries), and SC'21's formula."""
    gpt = catalogue.model("GPT-175B")
    assert gpt.step_operations(2048, 2048) == pytest.approx(2.205e15, rel=0.005)
    nemotron = replace(catalogue.model("Nemotron-340B"), kv_heads=96)
    assert nemotron.step_operations(4096, 4096) == pytest.approx(1.009e16, rel=0.005)
    h, layers, s, vocab = gpt.hidden, gpt.layers, 2048, gpt.vocab
    formula = 72 * s * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert gpt.step_operations(s, s) == pytest.approx(formula, rel=1e-9)


# ---------------------------------------------------------------------- steps


def test_predict_laws_sizes_of_one(job: TrainingJob) -> None:
    """Goal: one device, one stage, one sequence: no exchange, no bubble."""
    one = replace(job, devices=1, batch=1, tensor=1, pipeline=1, virtual=1, sequence_parallel=False)
    parts = predict_step(one).parts
    gone = ("bubble", "tensor exchange", "pipeline exchange", "data exchange", "straggling")
    assert [parts[name] for name in gone] == [0, 0, 0, 0, 0]


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

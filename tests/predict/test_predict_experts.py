"""Experts: parameters, operations, ranks that share them, and what these exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import (
    expert_exchange,
    gathered_tokens,
    mlp_products,
    operators_of,
    own_parameters,
)
from luwu.predict.model.placement import group_of
from luwu.predict.systems.training import predict_step


@pytest.fixture
def job(catalogue: Catalogue) -> TrainingJob:
    return TrainingJob(
        model=catalogue.model("Mixtral-8x7B"), device=catalogue.device("H100-80"),
        network=catalogue.network("ib-ndr"), software=software("nemo-2024"), devices=128,
        sequence=4096, batch=256, tensor=2, pipeline=4, expert=8, sequence_parallel=True,
    )  # fmt: skip


# ---------------------------------------------------------------------- the model


def test_a_model_of_experts_has_its_parameters(catalogue: Catalogue) -> None:
    """Goal: 46.7 billion, of which a token passes 12.9; the latter counts the embedding too, which
    is looked up."""
    model = catalogue.model("Mixtral-8x7B")
    assert model.parameters / 1e9 == pytest.approx(46.7, rel=0.001)
    assert (model.active_parameters + model.embedding_parameters) / 1e9 == pytest.approx(
        12.9, rel=0.005
    )


# ---------------------------------------------------------------------- laws of sizes


def test_predict_laws_one_expert_is_the_dense_model(job: TrainingJob) -> None:
    """J1 to J6. Goal: one expert on as many ranks as share a layer is the dense model, exactly, in
    time, memory and parameters."""
    dense = replace(job, model=replace(job.model, experts=1, experts_used=1), expert=1)
    n = 4096.0
    operators = operators_of(dense)
    inner, h = dense.model.ffn / dense.tensor, dense.model.hidden
    assert mlp_products(dense, operators, n) == (
        operators.matmul(n, h, inner * 2) + operators.matmul(n, inner, h)
    )
    assert gathered_tokens(dense, n) == n
    assert own_parameters(dense) == (dense.model.parameters / 8, 0)
    parts = predict_step(dense).parts
    assert parts["expert exchange"] == 0
    assert predict_step(replace(job, model=dense.model, expert=1)).parts == parts


@pytest.mark.parametrize(
    "degrees",
    [{"expert": 1}, {"expert": 2}, {"expert": 8}, {"expert": 8, "expert_tensor": 1},
     {"expert": 4, "tensor": 4, "expert_tensor": 2}, {"expert": 8, "context": 2}],
    ids=str,
)  # fmt: skip
def test_predict_laws_parameters_are_conserved(job: TrainingJob, degrees: dict[str, Any]) -> None:
    """Goal: the ranks of one copy have the whole model, and each part has the copies that it is
    reduced over."""
    one = replace(job, **degrees)
    own, stage = own_parameters(one), one.tensor * one.context * one.data
    assert stage * one.pipeline == one.devices
    shared = own.shared * one.tensor * one.pipeline
    experts = own.experts * one.expert * one.expert_width * one.pipeline
    assert shared + experts == pytest.approx(one.model.parameters)
    assert one.expert_copies * one.expert * one.expert_width == stage
    layers = one.model.layers * one.model.layer_parameters
    own = own_parameters(one, embeddings=False)
    assert (
        own.shared * one.tensor + own.experts * one.expert * one.expert_width
    ) * one.pipeline == pytest.approx(layers)


# ---------------------------------------------------------------------- exchange


def test_predict_laws_experts_of_one_domain_exchange_fast(job: TrainingJob) -> None:
    """G2, J3. Goal: experts of a tensor parallel width of 2 span two hosts of 8 at 8 ranks; on
    whole experts they fit one; a domain of 72 has all, and a faster network is never slower."""
    assert group_of(job, "expert").inside == 4
    alone = replace(job, expert_tensor=1)
    assert group_of(alone, "expert").domains == 1
    wide = replace(job, device=replace(job.device, domain_count=72.0))
    assert group_of(wide, "expert").domains == 1
    assert expert_exchange(alone) == expert_exchange(wide) < expert_exchange(job)
    faster = replace(job, network=replace(job.network, rate=2 * job.network.rate))
    assert expert_exchange(faster) < expert_exchange(job)

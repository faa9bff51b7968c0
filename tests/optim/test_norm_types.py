"""Clipping by another norm than the 2-norm: taken on the node, from its sums."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import RemoteProtocolError
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description, parse_description
from luwu.wire.norms import encode_squares, norm_of, parse_squares
from switch_emu.node.statistics import block_norms
from tests.helpers.fake_nic import FakeNetwork, FakeNic
from tests.helpers.real_training import in_cluster, seeded
from tests.helpers.small_models import Stack, batch, shard, square_loss
from tests.helpers.training_harness import one_thread, worker  # noqa: F401 - for every test here

STEPS = 3
MAX_NORM = {1.0: 2.0, 2.0: 0.05, math.inf: 0.005}
"""By norm: less than the norms of these steps."""


def plain(norm_type: float) -> tuple[dict[str, Tensor], list[float]]:
    """The mean over two ranks, clipped by torch."""
    model: Any = seeded(Stack)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(square_loss(model, step, rank, 0) for rank in range(2)) / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM[norm_type], norm_type)
        norms.append(float(norm))
        optimizer.step()
    return model.state_dict(), norms


@pytest.mark.feature("clipping by the global norm: 1, 2 or infinity")
@pytest.mark.parametrize("norm_type", MAX_NORM)
@pytest.mark.parametrize("how", ["call", "argument"])
def test_clipping_by_a_norm_equals_torch(norm_type: float, how: str, tmp_path: Path) -> None:
    """I4. Goal: norms and weights are torch's, up to the rounding of its sum in float32."""

    def work(rank: int) -> tuple[dict[str, Tensor], list[float]]:
        model: Any = seeded(Stack)
        shard(model)
        limit = MAX_NORM[norm_type]
        chosen = {"max_grad_norm": limit} if how == "argument" else {}
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1, norm_type=norm_type, **chosen)
        norms = []
        for step in range(STEPS):
            square_loss(model, step, rank, 0).backward()
            if how == "call":
                luwu.clip_grad_norm_(model.parameters(), limit, norm_type)
            norms.append(optimizer.step().grad_norm)
        return luwu.get_model_state_dict(model), norms

    expected, plain_norms = plain(norm_type)
    assert min(plain_norms) > MAX_NORM[norm_type], "the test does not clip"
    results = in_cluster(tmp_path, work, world_size=2).results
    weights, _ = results[0]
    for _, norms in results:
        torch.testing.assert_close(torch.tensor(norms), torch.tensor(plain_norms))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.feature("clipping by the global norm: 1, 2 or infinity")
def test_a_sum_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    """I4. Goal: a NaN is found by any norm, and the step is left out."""

    def work(rank: int) -> list[bool]:
        model: Any = seeded(Stack)
        shard(model)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1, norm_type=math.inf)
        applied = []
        for factor in (1.0, math.nan, 1.0):
            (square_loss(model, 0, rank, 0) * factor).backward()
            applied.append(optimizer.step().applied)
        return applied

    assert in_cluster(tmp_path, work).results == [[True, False, True]]


def test_norms_that_the_node_does_not_take_are_refused() -> None:
    """Goal: each with what to do instead."""
    with worker(FakeNetwork(1)):
        model = seeded(Stack)
        shard(model)
        parameters = list(model.parameters())
        with pytest.raises(luwu.ConfigError, match=r"norm_type=3: .* 1, 2 or infinity"):
            luwu.optim.SGD(parameters, norm_type=3)
        with pytest.raises(luwu.ConfigError, match="no gradient is clipped there"):
            luwu.optim.SGD(parameters, norm_type=1, update="streaming")
        luwu.optim.SGD(parameters)
        model(batch(0, 0, 0)).sum().backward()
        with pytest.raises(luwu.ConfigError, match=r"norm_type=3: .* 1, 2 or infinity"):
            luwu.clip_grad_norm_(parameters, 1.0, norm_type=3)


def test_the_name_is_taken_in_what_scripts_agree_on() -> None:
    network = FakeNetwork(1)
    nic = FakeNic(network, 0)
    try:
        with pytest.raises(luwu.ConfigError, match=r"'norm_type' is agreed on by luwu"):
            luwu.init(nic=nic, device="cpu", agree={"norm_type": "1"})
    finally:
        nic.close()


@pytest.mark.parametrize("norm_type", MAX_NORM)
@pytest.mark.parametrize("seed", range(5))
def test_nodes_find_the_norm_that_one_would(norm_type: float, seed: int) -> None:
    """I3. Goal: to the last bit, however the blocks are shared out among nodes."""
    rng = random.Random(seed)
    values = [rng.random() * 10.0 ** rng.randint(-30, 30) for _ in range(60)]
    for nodes in (2, 3):
        shares = [values[node::nodes] for node in range(nodes)]
        said = [parse_squares(encode_squares({(norm_type, 0.5): share})) for share in [*shares, []]]
        whole = {(norm_type, 0.5): values}
        assert norm_of(said, norm_type) == norm_of([whole], norm_type), f"seed {seed}"


@pytest.mark.parametrize("elems", [1, 4096, 4097, 10_000])
def test_numbers_of_blocks(elems: int) -> None:
    """Goal: a block is 4,096 elements, the last one what is left."""
    total = np.random.default_rng(elems).standard_normal(elems).astype(np.float32)
    blocks = [total[start : start + 4096] for start in range(0, elems, 4096)]
    assert block_norms(total, math.inf) == tuple(float(np.abs(each).max()) for each in blocks)
    sums = [math.fsum(np.abs(each).tolist()) for each in blocks]
    assert block_norms(total, 1.0) == pytest.approx(sums, rel=1e-12)


def test_a_description_asks_for_a_norm_that_there_is() -> None:
    layout = Layout(
        parameters=(Parameter(name="w", shape=(4,)),),
        units=(Unit(name="root", parameters=(0,)),),
        chunk_bytes=16384,
    )
    for said, norm_type in ((None, 2.0), ("1", 1.0), ("inf", math.inf)):
        agreement = {} if said is None else {"norm_type": said}
        described = Description(layout=layout, optimizer="sgd", agreement=agreement)
        assert parse_description(described.to_bytes()).norm_type == norm_type
    odd = Description(layout=layout, optimizer="sgd", agreement={"norm_type": "0"})
    with pytest.raises(RemoteProtocolError, match="asks for norm_type='0'"):
        parse_description(odd.to_bytes())

"""Clips of a step by any norm: each acts on what the one before left, as in torch."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import CLIPS_MAX
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description, parse_description
from switch_emu.node.pipeline import block_norms
from tests.helpers.fake_nic import FakeNetwork, FakeNic
from tests.helpers.real_training import Trained, in_cluster, seeded, sharded
from tests.helpers.small_models import Stack, batch, square_loss
from tests.helpers.training_harness import reference, worker

STEPS = 8
LIMITS = {1.0: 2.0, 2.0: 0.05, math.inf: 0.005}
"""By norm: about what the gradients of these steps have."""
Call = tuple[float, float]
"""(limit, norm type) of a call of `clip_grad_norm_`."""


class Script(NamedTuple):
    """What a script does to its gradients."""

    calls: list[list[Call]]
    """Of each step."""
    own: float | None = None
    """The optimizer's `max_grad_norm`, ..."""
    norm_type: float = 2.0
    """... and its norm."""
    update: str = "at_step"


def drawn(seed: int) -> Script:
    """Any norms, limits and measures, in any order; a step may have none, or as many as it can."""
    rng = random.Random(seed)

    def call() -> Call:
        norm_type = rng.choice(list(LIMITS))
        is_measure = rng.random() < 0.3
        return math.inf if is_measure else LIMITS[norm_type] * 10 ** rng.uniform(-1, 1), norm_type

    own, norm_type = call()
    counts = [rng.choice((0, 1, 2, 3, 5)) for _ in range(STEPS)]
    counts[-1] = CLIPS_MAX
    calls = [[call() for _ in range(count)] for count in counts]
    return Script(calls, None if rng.random() < 0.5 else own, norm_type)


def by_torch(script: Script) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and norms of a plain loop over the mean of two ranks; the optimizer's own clip is the
    last."""
    norms = []

    def clip(model: nn.Module, optimizer: Any, step: int) -> None:
        for call in script.calls[step]:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), *call)))
        if script.own is not None:
            nn.utils.clip_grad_norm_(model.parameters(), script.own, script.norm_type)

    weights = reference(
        lambda: seeded(Stack), lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        square_loss, world_size=2, steps=STEPS, before_step=clip,
    )  # fmt: skip
    return dict(weights), norms


def by_luwu(
    tmp_path: Path, script: Script, **cluster: Any
) -> tuple[dict[str, Tensor], list[list[float]]]:
    """Weights, and the norms that each rank reads; through a real switch and nodes."""
    results = trained(tmp_path, script, **cluster).results
    return results[0][0], [norms for _, norms in results]


def trained(tmp_path: Path, script: Script, **cluster: Any) -> Trained:
    """(weights, norms) of each rank; without calls of the script, the norms of its steps."""

    def work(rank: int) -> tuple[dict[str, Tensor], list[float]]:
        model = sharded()
        optimizer = luwu.optim.SGD(
            model.parameters(), lr=0.1, max_grad_norm=script.own, norm_type=script.norm_type,
            update=script.update,
        )  # fmt: skip
        norms: list[Any] = []
        for step, calls in enumerate(script.calls):
            square_loss(model, step, rank, 0).backward()
            norms += [luwu.clip_grad_norm_(model.parameters(), *call) for call in calls]
            result = optimizer.step()
            if calls and calls[0][1] == script.norm_type:
                assert float(norms[-len(calls)]) == result.grad_norm
            norms += [] if any(script.calls) else [result.grad_norm]
        return luwu.get_model_state_dict(model), [float(norm) for norm in norms]

    return in_cluster(tmp_path, work, world_size=2, **cluster)


@pytest.mark.feature("several clips in one step")
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))]
)
def test_any_sequence_of_clips_equals_torch(seed: int, tmp_path: Path) -> None:
    """I3, I4. Goal: torch's weights, and each call its own norm; the same bits from two nodes.

    Bound: torch multiplies the gradient by each factor, rounded to float32, and takes each norm of
    the result in float32; the node multiplies once, by the product, in float64. So per call there
    are a few roundings of 6e-8 between the two: 1e-5 after 8 steps of up to 17 calls.
    """
    script = drawn(seed)
    expected, plain_norms = by_torch(script)
    weights, norms = by_luwu(tmp_path / "one", script)
    others, norms_of_two = by_luwu(tmp_path / "two", script, optimizer_nodes=2, has_switch=True)
    for found in norms:
        assert found == pytest.approx(plain_norms, rel=1e-5), f"seed {seed}"
    assert norms_of_two == norms, f"seed {seed}"
    for name, value in expected.items():
        torch.testing.assert_close(
            weights[name], value, rtol=1e-5, atol=1e-6, msg=lambda text: f"seed {seed}: {text}"
        )
        assert torch.equal(others[name], weights[name]), f"seed {seed}: {name}"


@pytest.mark.feature("several clips in one step")
@pytest.mark.parametrize("norm_type", LIMITS)
def test_what_does_not_clip_changes_no_bit(norm_type: float, tmp_path: Path) -> None:
    """I3, I4. Goal: measures, and limits above the norm, leave the bits of one clip; and it does
    not matter whether the script clips last, or its optimizer."""
    limit = LIMITS[norm_type] / 2
    measures = [(math.inf, each) for each in LIMITS]
    loose = (1e9, 1.0)
    scripts = [
        Script([[(limit, norm_type)]] * STEPS),
        Script([[*measures, loose, (limit, norm_type), loose, *measures]] * STEPS),
        Script([[]] * STEPS, limit, norm_type),
        Script([[*measures, loose]] * STEPS, limit, norm_type),
    ]
    weights = [by_luwu(tmp_path / str(number), script)[0] for number, script in enumerate(scripts)]
    for other in weights[1:]:
        for name, value in weights[0].items():
            assert torch.equal(other[name], value), name


@pytest.mark.feature("clipping by the global norm: 1, 2 or infinity")
@pytest.mark.parametrize(
    ("norm_type", "cluster"),
    [
        (2.0, {"transport": "shm"}),
        (1.0, {"transport": "tcp", "has_switch": False, "state": "state"}),
        (math.inf, {"optimizer_nodes": 3, "replicas": 2, "has_switch": True}),
    ],
    ids=["shm", "disk", "nodes"],
)
def test_streaming_clips_by_the_exact_norm(
    norm_type: float, cluster: dict[str, Any], tmp_path: Path
) -> None:
    """I3, I4. Goal: where some steps are clipped and others are not, the bits of `at_step`, which
    waits for the norm. Method: the limit is the median of the norms, and some steps are updated
    twice; shared memory must not keep the weights of the first time."""
    limit = LIMITS[norm_type]
    for _ in range(2):  # clipping moves the norms that follow
        plain = trained(tmp_path / "plain", Script([[]] * STEPS, limit, norm_type))
        limit = statistics.median(plain.results[0][1])
    if "state" in cluster:
        cluster = cluster | {"state": tmp_path / "state"}
    script = Script([[]] * STEPS, limit, norm_type)
    weights, norms = by_luwu(tmp_path / "at-step", script)
    found = trained(tmp_path / "streaming", script._replace(update="streaming"), **cluster)
    clipped = sum(norm > limit for norm in norms[0])
    assert 0 < found.counts["redone_count"] <= clipped < STEPS
    assert [norms_there for _, norms_there in found.results] == norms
    for name, value in weights.items():
        assert torch.equal(found.results[0][0][name], value), name


@pytest.mark.feature("clipping by the global norm: 1, 2 or infinity")
@pytest.mark.parametrize("norm_type", LIMITS)
def test_a_norm_that_must_be_finite_is_an_error_of_step(norm_type: float, tmp_path: Path) -> None:
    """I4. Goal: `step()` raises as torch's clip does, on all ranks, with the weights as they were;
    training goes on. Without the argument the step is left out silently, as `applied` says."""

    def work(rank: int) -> tuple[list[str], list[float], bool]:
        model = sharded()
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        errors, norms = [], []
        for step, factor in enumerate((1.0, math.nan, math.inf, 1.0)):
            (square_loss(model, step, rank, 0) * (factor if rank else 1.0)).backward()
            luwu.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
            is_error = step != 2
            norm = luwu.clip_grad_norm_(model.parameters(), 1.0, norm_type, is_error, True)
            try:
                applied = optimizer.step().applied
            except RuntimeError as error:
                errors.append(str(error))
            norms.append(float(norm))
        return errors, norms, applied

    for errors, norms, applied in in_cluster(tmp_path, work, world_size=2).results:
        (error,) = errors
        assert f"the {norm_type:g}-norm of the gradient of step 1 is " in error
        assert [math.isfinite(norm) for norm in norms] == [True, False, False, True]
        assert applied


def test_calls_that_torch_would_understand_otherwise_are_refused() -> None:
    """I6. Goal: a clip that cannot act where it stands raises there, with what to do."""
    with worker(FakeNetwork(1)):
        model = sharded()
        parameters = list(model.parameters())
        optimizer = luwu.optim.SGD(parameters, lr=0.1)

        def loss() -> Tensor:
            return model(batch(0, 0, 0)).sum()

        with pytest.raises(luwu.StepOrderError, match="in step 0 before its backward: "):
            luwu.clip_grad_norm_(parameters, 1.0)
        loss().backward()
        norms = [luwu.clip_grad_norm_(parameters, 1.0) for _ in range(CLIPS_MAX)]
        with pytest.raises(luwu.ConfigError, match=f"{CLIPS_MAX} times in step 0, which is the li"):
            luwu.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        assert [float(norm) for norm in norms] == sorted(map(float, norms), reverse=True)
        with pytest.raises(luwu.StepOrderError, match="in step 1 before its backward"):
            luwu.clip_grad_norm_(parameters, math.inf)
        loss().backward()
        luwu.clip_grad_norm_(parameters, 1.0)
        with pytest.raises(luwu.StepOrderError, match="backward after clip_grad_norm_ in step 1"):
            loss().backward()


def test_a_clip_between_two_optimizers_is_refused() -> None:
    """I6. Goal: in torch it acts on the gradient of the second alone."""
    with worker(FakeNetwork(1)):
        model = sharded()
        parameters = list(model.parameters())
        first, second = (luwu.optim.SGD(part, lr=0.1) for part in (parameters[:2], parameters[2:]))
        model(batch(0, 0, 0)).sum().backward()
        first.step()
        with pytest.raises(luwu.StepOrderError, match="in step 0 after an optimizer has stepped"):
            luwu.clip_grad_norm_(parameters, 1.0)
        second.step()


def test_only_the_norm_of_a_dropped_step_says_that_it_was_dropped() -> None:
    """I6. Goal: before `step()` each says when it is known; of a step that was dropped, that."""
    with worker(FakeNetwork(1)):
        model = sharded()
        parameters = list(model.parameters())
        optimizer = luwu.optim.SGD(parameters, lr=0.1)
        model(batch(0, 0, 0)).sum().backward()
        norms = [luwu.clip_grad_norm_(parameters, limit) for limit in (0.1, math.inf)]
        for norm in norms:
            assert "known after step()" in repr(norm)
            with pytest.raises(luwu.StepOrderError, match="is known after step"):
                norm.item()
        with pytest.raises(luwu.StepAborted):
            optimizer.zero_grad()
            model(batch(0, 0, 0))
        for norm in norms:
            with pytest.raises(
                luwu.StepOrderError, match="will never be known: the step was dropped"
            ):
                norm.item()
        model(batch(0, 0, 0)).sum().backward()
        norm = luwu.clip_grad_norm_(parameters, 0.1)
        result = optimizer.step()
        assert f"{norm:.3f}" == f"{result.grad_norm:.3f}"
        assert luwu.session().clipping.clips == ()  # of the coming step


def test_clips_that_the_node_does_not_take_are_refused() -> None:
    """Goal: each with what to do instead."""
    with worker(FakeNetwork(1)):
        model = sharded()
        parameters = list(model.parameters())
        with pytest.raises(luwu.ConfigError, match=r"norm_type=3: .* 1, 2 or infinity"):
            luwu.optim.SGD(parameters, norm_type=3)
        luwu.optim.SGD(parameters)
        model(batch(0, 0, 0)).sum().backward()
        for refused, limit, norm_type, why in (
            (parameters, 1.0, 3, r"norm_type=3: .* 1, 2 or infinity"),
            (parameters, math.nan, 2, "max_norm must be above 0"),
            (parameters[0], 1.0, 2, r"without parameter .*first\.bias"),
            (nn.Linear(2, 2).parameters(), 1.0, 2, r"torch\.nn\.utils"),
        ):
            with pytest.raises(luwu.ConfigError, match=why):
                luwu.clip_grad_norm_(refused, limit, norm_type)


def test_the_name_is_taken_in_what_scripts_agree_on() -> None:
    network = FakeNetwork(1)
    nic = FakeNic(network, 0)
    try:
        with pytest.raises(luwu.ConfigError, match=r"'norm_type' is agreed on by luwu"):
            luwu.init(nic=nic, device="cpu", agree={"norm_type": "1"})
    finally:
        nic.close()


@pytest.mark.parametrize("elems", [1, 4096, 4097, 10_000])
def test_numbers_of_blocks(elems: int) -> None:
    """Goal: a block is 4,096 elements, the last one what is left; a NaN shows in its own."""
    total = np.random.default_rng(elems).standard_normal(elems).astype(np.float32)
    blocks = [total[start : start + 4096] for start in range(0, elems, 4096)]
    assert block_norms(total, math.inf) == tuple(float(np.abs(each).max()) for each in blocks)
    sums = [math.fsum(np.abs(each).tolist()) for each in blocks]
    assert block_norms(total, 1.0) == pytest.approx(sums, rel=1e-12)
    total[0] = math.nan
    for norm_type in (1.0, math.inf):
        found = block_norms(total, norm_type)
        assert [math.isnan(each) for each in found] == [True] + [False] * (len(blocks) - 1)


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

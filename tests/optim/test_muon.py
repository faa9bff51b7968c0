"""Muon: a matrix is updated as a whole, with one order of sums, and AdamW beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.import_state import import_state
from luwu.checkpoint.source import RestingState
from switch_emu.native import fold
from switch_emu.native.build import build
from switch_emu.native.fold import Product, portable_product
from switch_emu.node.kernels.portable import BLOCK_ELEMS, Muon, _norm
from tests.helpers import kernel_jobs
from tests.helpers.real_training import digests, in_cluster, sharded, train_steps
from tests.helpers.small_models import Stack, batch

cache = kernel_jobs.cache  # a fixture of this module

KIB = 1024
HYPER: dict[str, Any] = {
    "lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "ns_a": 3.4445,
    "ns_b": -4.775, "ns_c": 2.0315, "eps": 1e-7, "ns_steps": 5, "match_rms_adamw": False,
}  # fmt: skip


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim == 2]},
        {"params": [p for p in parameters if p.ndim != 2], "use_muon": False, "lr": 1e-3},
    ]


def cluster(directory: Path, work: Callable[[int], Any], **changes: Any) -> Any:
    """A job whose chunks have room for the largest matrix, 128 x 64."""
    return in_cluster(directory, work, **{"chunk_bytes": 32 * KIB} | changes)


def work_with(steps: int, blocks: int = 4, **arguments: Any) -> Callable[[int], tuple[str, str]]:
    """A rank of a job with Muon and AdamW."""

    def work(rank: int) -> tuple[str, str]:
        model = sharded(lambda: Stack(blocks=blocks))
        optimizer = luwu.optim.Muon(groups_of(model), lr=0.02, **arguments)
        train_steps(model, optimizer, 0, steps, rank)
        return digests(model, optimizer)

    return work


def in_float32(matrix: Tensor) -> Tensor:
    """torch's Newton-Schulz iteration without its rounding to bfloat16."""
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


@pytest.mark.feature("Muon")
@pytest.mark.parametrize("shape", [(64, 64), (48, 160), (160, 48)])
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_an_update_is_that_of_torch(
    shape: tuple[int, int], adjust: str | None, cache: Path
) -> None:
    """I4. Goal: over 50 steps each update differs from torch's algorithm in float32 by less than
    1e-5 of its norm, and from torch's Muon, whose products are bfloat16, by less than 2e-2."""
    generator = torch.Generator().manual_seed(3)
    step = Muon(Product(build(cache).library))
    hyper = HYPER | {"match_rms_adamw": adjust is not None}
    weights, m = torch.randn(shape, generator=generator), torch.zeros(shape)
    theirs = nn.Parameter(weights.clone())
    optimizer = torch.optim.Muon([theirs], lr=0.02, adjust_lr_fn=adjust)
    mean = torch.zeros(shape)
    rows, columns = shape
    ratio = 0.2 * math.sqrt(max(shape)) if adjust else math.sqrt(max(1, rows / columns))
    for _ in range(50):
        grad = torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator)
        before = weights.clone()
        step(weights, grad.clone(), (m,), 0, hyper)
        mean.lerp_(grad, 0.05)
        expected = before * (1 - 0.02 * 0.1) - 0.02 * ratio * in_float32(grad.lerp(mean, 0.95))
        length = (expected - before).norm()
        assert (weights - expected).norm() < 1e-5 * length
        with torch.no_grad():
            theirs.copy_(before)
        theirs.grad = grad.clone()
        optimizer.step()
        assert (weights - theirs).norm() < 2e-2 * length


@pytest.mark.parametrize("cores", [1, 5])
def test_products_have_one_order_of_sums(
    cache: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: the library and the portable version have the bits of the definition: products and
    sums rounded one by one, from the first on; however many threads make them."""
    monkeypatch.setattr(fold, "_THREAD_PRODUCTS", 1)
    monkeypatch.setattr(fold.os, "sched_getaffinity", lambda _: range(cores))
    rng = np.random.default_rng(1)
    product = Product(build(cache).library)
    for rows, inner, columns in ((1, 1, 1), (7, 5, 3), (64, 100, 33), (70, 129, 96)):
        a = rng.standard_normal((rows, inner)).astype(np.float32)
        b = rng.standard_normal((inner, columns)).astype(np.float32)
        expected = np.zeros((rows, columns), np.float32)
        for k in range(inner):
            rounded = np.outer(a[:, k], b[k]).astype(np.float32)
            expected = (expected + rounded).astype(np.float32)
        for each in (product, portable_product):
            assert (each(a, b, transposed=False) == expected).all()
            assert (each(a, np.ascontiguousarray(b.T), transposed=True) == expected).all()
        square = product(a, a, transposed=True)
        assert (square == square.T).all()


def test_blocks_change_no_bit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3. Goal: an update has the bits of the formula, however many columns are made at a time; a
    norm those of one sum over all rows of lanes."""
    generator = torch.Generator().manual_seed(3)
    product = Product(build(cache).library)
    for shape in ((40, 130), (130, 40), (40, 40)):
        grad = torch.randn(shape, generator=generator)
        x = np.ascontiguousarray(grad.numpy().T if shape[0] > shape[1] else grad.numpy())
        x = x / np.float32(_norm(x))
        for _ in range(5):
            gram = product(x, x, transposed=True)
            gram = np.float32(-4.775) * gram + np.float32(2.0315) * product(
                gram, gram, transposed=False
            )
            x = np.float32(3.4445) * x + product(gram, x, transposed=False)
        expected = np.ascontiguousarray(x.T) if shape[0] > shape[1] else x
        for columns in (7, 64, 256):
            monkeypatch.setattr("switch_emu.node.kernels.portable.BLOCK_COLUMNS", columns)
            made = torch.zeros(shape)
            hyper = HYPER | {"lr": 1.0, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}
            hyper |= {"match_rms_adamw": True}
            Muon(product)(made, grad.clone(), (torch.zeros(shape),), 0, hyper)
            ratio = 0.2 * math.sqrt(max(shape))
            wanted = torch.zeros(shape).add_(torch.from_numpy(expected), alpha=-ratio)
            assert torch.equal(made, wanted)
    values = np.random.default_rng(1).standard_normal(BLOCK_ELEMS + 300).astype(np.float32)
    lanes = np.zeros(256)
    for row in values[: values.size // 256 * 256].reshape(-1, 256).astype(np.float64):
        lanes += row * row
    rest = values[values.size // 256 * 256 :].astype(np.float64)
    assert _norm(values) == math.sqrt(math.fsum(lanes) + math.fsum(rest * rest))


@pytest.mark.slow  # the digest over other budgets: test_large_matrices.py
@pytest.mark.feature("Muon")
def test_out_of_core_with_an_eighth_of_the_state(tmp_path: Path) -> None:
    """I3. Goal: with a budget of 1/8 of the state, on one node and on two, the same bits as in
    memory."""
    blocks = 160
    work = work_with(2, blocks=blocks)
    in_memory = cluster(tmp_path / "a", work, memory_budget_bytes=10**8)
    state_bytes = 8 * (2 * blocks * 128 * 64 + 2 * 64 * 64)
    for index, nodes in enumerate((1, 2)):
        found = cluster(
            tmp_path / f"{index}b", work, optimizer_nodes=nodes,
            state=tmp_path / f"{index}", memory_budget_bytes=state_bytes // 8,
        )  # fmt: skip
        assert found.results == in_memory.results


@pytest.mark.feature("Muon")
@pytest.mark.parametrize("mode", [{}, {"state_dtype": "int8", "master_dtype": "bfloat16"}])
def test_its_state_goes_through_files_and_dicts(mode: dict[str, Any], tmp_path: Path) -> None:
    """I4. Goal: an export has torch's names, and goes back into a state bit for bit; so does a
    state dict; a resumed job goes on with the bits of one that was not stopped."""
    seen: dict[str, Any] = {}
    quiet = cluster(tmp_path / "quiet", work_with(6, average=luwu.ema(0.9), **mode))
    state = tmp_path / "state"

    def make() -> tuple[Any, Any]:
        model = sharded()
        return model, luwu.optim.Muon(groups_of(model), lr=0.02, average=luwu.ema(0.9), **mode)

    def first(_: int) -> None:
        model, optimizer = make()
        train_steps(model, optimizer, 0, 3)
        seen["model"] = luwu.get_model_state_dict(model)
        seen["optimizer"] = luwu.get_optimizer_state_dict(model, optimizer)

    def rest(_: int) -> tuple[str, str]:
        model, optimizer = make()
        if optimizer.next_step == 0:
            luwu.set_model_state_dict(model, seen["model"])
            luwu.set_optimizer_state_dict(model, optimizer, seen["optimizer"])
        train_steps(model, optimizer, 3, 6)
        return digests(model, optimizer)

    cluster(tmp_path / "a", first, state=state)
    of = seen["optimizer"]["state"]
    assert set(of["first.weight"]) == {"momentum_buffer", "average"}
    assert set(of["first.bias"]) == {"step", "exp_avg", "exp_avg_sq", "average"}
    with RestingState(state) as source:
        export_state(source, tmp_path / "whole", ExportOptions())
    import_state(tmp_path / "whole", tmp_path / "again")
    for path in (state, tmp_path / "again"):
        assert cluster(tmp_path / "b", rest, state=path, resume=True).results == quiet.results
    if not mode:  # else draws belong to other versions
        assert cluster(tmp_path / "c", rest).results == quiet.results


@pytest.mark.feature("Muon")
def test_a_parameter_without_a_gradient_keeps_its_momentum(tmp_path: Path) -> None:
    """Goal: as in torch: nothing moves, no decay; and a skipped step changes nothing."""

    def work(_: int) -> None:
        model = sharded()
        optimizer = luwu.optim.Muon(groups_of(model), lr=0.02)
        train_steps(model, optimizer, 0, 2)
        before = luwu.get_model_state_dict(model)
        model.last.requires_grad_(False)
        train_steps(model, optimizer, 2, 3)
        model.last.requires_grad_(True)
        after = luwu.get_model_state_dict(model)
        assert torch.equal(before["last.weight"], after["last.weight"])
        assert not torch.equal(before["first.weight"], after["first.weight"])
        model(batch(9, 0, 0)).square().mean().backward()
        optimizer.skip_step()
        skipped = luwu.get_model_state_dict(model)
        assert all(torch.equal(after[name], skipped[name]) for name in after)

    cluster(tmp_path, work)


@pytest.mark.feature("Muon")
def test_what_cannot_be_updated_is_refused(tmp_path: Path) -> None:
    """Goal: in words, with what to do: no matrix, numbers out of range, a budget without room for
    the largest matrix."""

    def work(_: int) -> None:
        model = sharded()
        matrices = groups_of(model)[0]["params"]
        with pytest.raises(luwu.ConfigError, match=r"shape \(64,\); put it.*use_muon=False"):
            luwu.optim.Muon(model.parameters())
        for arguments, text in (
            ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
            ({"ns_steps": 0}, "ns_steps must be 1 to 99"),
            ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients must be three"),
            ({"adjust_lr_fn": "other"}, "adjust_lr_fn must be one of"),
            ({"lr": -1.0}, "lr must not be below 0"),
        ):
            with pytest.raises(luwu.ConfigError, match=text):
                luwu.optim.Muon(matrices, **arguments)
        train_steps(model, luwu.optim.Muon(groups_of(model)), 0, 1)

    cluster(tmp_path, work)

    def wide(_: int) -> None:
        torch.manual_seed(0)
        model = luwu.fully_shard(nn.Linear(512, 512, bias=False))
        optimizer = luwu.optim.Muon(model.parameters())
        model(torch.ones(1, 512)).sum().backward()
        optimizer.step().wait()

    for kib in (1024, 128):  # one chunk, and eight
        state = tmp_path / f"{kib}.state"
        given: dict[str, Any] = {"state": state, "chunk_bytes": kib * KIB}
        with pytest.raises(luwu.ConfigError, match=r"matrix as a whole takes 12.00 MiB") as no:
            cluster(tmp_path / "wide", wide, memory_budget_bytes=16 * 1024 * KIB, **given)
        assert not list(state.glob("CONFIG")), "a state was made"
        enough = re.search(r"give (\d+)KiB", str(no.value))
        assert enough
        cluster(tmp_path / "wide", wide, memory_budget_bytes=int(enough[1]) * KIB, **given)

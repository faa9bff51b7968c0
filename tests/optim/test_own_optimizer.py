"""An optimizer that another package brings: the example of docs/optimizers.md."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import ConfigError
from switch_emu.node.kernels import kernel_name
from tests.helpers.real_training import digest_of, in_cluster, seeded, sharded, train_steps
from tests.helpers.small_models import Stack, square_loss

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "optimizer"
STEPS = 4


def install(example: Path, site: Path, patch: pytest.MonkeyPatch) -> Any:
    """The module of an example of the documents, installed as far as entry points go."""
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    module = project["name"].replace("-", "_")
    folder = site / f"{module}-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    patch.syspath_prepend(str(site))
    patch.syspath_prepend(str(example))
    return importlib.import_module(module)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return install(EXAMPLE, tmp_path / "site", monkeypatch)


@pytest.mark.feature("a custom optimizer")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("chunk_kib", [16, 64])
def test_own_optimizer_trains(update: str, chunk_kib: int, example: Any, tmp_path: Path) -> None:
    """I4. Goal: the same weights as the function gives on whole parameters, with groups, a change
    by hand and any chunk size."""

    def groups(model: Any) -> list[dict[str, Any]]:
        return [
            {"params": list(model.blocks.parameters()), "lr": 0.02},
            {"params": [*model.first.parameters(), *model.last.parameters()], "weight_decay": 0.1},
        ]

    def work(rank: int) -> None:
        model = sharded(lambda: Stack(blocks=2))
        optimizer = example.Signum(groups(model), momentum=0.8, update=update)
        for step in range(STEPS):
            square_loss(model, step, 0, 0).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.5

    found = in_cluster(tmp_path, work, world_size=2, chunk_bytes=chunk_kib * 1024)
    model: Any = seeded(lambda: Stack(blocks=2))
    hyper = [
        {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.0},
        {"lr": 1e-3, "momentum": 0.8, "weight_decay": 0.1},
    ]
    moments = {p: torch.zeros_like(p) for p in model.parameters()}
    for step in range(STEPS):
        model.zero_grad()
        square_loss(model, step, 0, 0).backward()
        with torch.no_grad():
            for group, values in zip(groups(model), hyper, strict=True):
                for p in group["params"]:
                    example.update(p, p.grad, (moments[p],), step, values)
        hyper[0]["lr"] *= 0.5
    assert found.digest == digest_of(dict(model.named_parameters()))


@pytest.mark.feature("a custom optimizer")
@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("update", ["at_step", "streaming"])
def test_own_update_sees_whole_parameters(update: str, tmp_path: Path) -> None:
    """I4. Goal: an update that needs the norms of a layer has the bits it has on whole parameters,
    with moments in fewer bits it trains, too; whatever chunks, extents and nodes."""
    lamb = importlib.import_module("luwu_lamb")
    hyper = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}

    def work(state_dtype: str) -> Callable[[int], dict[str, torch.Tensor]]:
        def of_rank(rank: int) -> dict[str, torch.Tensor]:
            model = sharded(lambda: Stack(blocks=2))
            optimizer = lamb.Lamb(
                model.parameters(), **hyper, update=update, state_dtype=state_dtype
            )
            train_steps(model, optimizer, 0, STEPS)
            return luwu.get_model_state_dict(model)

        return of_rank

    model: Any = seeded(lambda: Stack(blocks=2))
    moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}
    sent = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
    for step in range(STEPS):
        model.zero_grad()
        square_loss(model, step, 0, 0).backward()
        with torch.no_grad():
            for p in model.parameters():
                lamb.update(p, p.grad, moments[p], step, sent)
    expected = digest_of(dict(model.named_parameters()))
    ways: list[dict[str, Any]] = [
        {"chunk_bytes": 32 * 1024}, {"chunk_bytes": 64 * 1024, "extent_chunks": 4},
        {"chunk_bytes": 32 * 1024, "optimizer_nodes": 2},
    ]  # fmt: skip
    for index, way in enumerate(ways):
        found = in_cluster(tmp_path / str(index), work("float32"), world_size=2, **way)
        assert digest_of(found.results[0]) == expected, way
    narrow = in_cluster(tmp_path / "narrow", work("int8"), chunk_bytes=32 * 1024).results[0]
    for name, values in model.state_dict().items():
        assert (narrow[name] - values).norm() < 0.05 * values.norm()


@pytest.mark.feature("a custom optimizer")
def test_an_update_that_a_node_cannot_call_is_named(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the node's host lacks the package, or cannot import it: the worker is told, before
    anything is trained."""

    class Unknown(luwu.optim.SGD):
        name = "unheard-of"

    def work(optimizer: Any) -> Callable[[int], object]:
        return lambda rank: optimizer(sharded(lambda: Stack(blocks=1)).parameters())

    with pytest.raises(ConfigError, match=r"'unheard-of'.*luwu\.updates"):
        in_cluster(tmp_path, work(Unknown))
    monkeypatch.setitem(sys.modules, "luwu_signum", None)
    with pytest.raises(ConfigError, match=r"'signum'.*luwu_signum:update cannot be imported"):
        in_cluster(tmp_path, work(example.Signum))


@pytest.mark.usefixtures("example")
def test_own_update_has_a_name_of_its_own() -> None:
    """Goal: what is written into a state is where the function is."""
    assert kernel_name("signum", ("m",)) == "luwu_signum:update"

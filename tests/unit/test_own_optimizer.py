"""An optimizer that another package brings: the example of docs/optimizers.md."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import ConfigError
from switch_emu.node.kernels import kernel_name
from tests.unit.real_training import digest_of, in_cluster, seeded
from tests.unit.small_models import Stack, shard, square_loss
from tests.unit.training_harness import one_thread  # noqa: F401 - for every test here

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "optimizer"
STEPS = 4


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module, installed as far as entry points go."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site" / f"luwu_signum-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("luwu_signum")


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
        model = seeded(lambda: Stack(blocks=2))
        shard(model)
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
def test_an_update_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """Goal: the node's host lacks the package: the worker is told, before anything is trained."""

    class Unknown(luwu.optim.SGD):
        name = "unheard-of"

    def work(rank: int) -> None:
        model = seeded(lambda: Stack(blocks=1))
        shard(model)
        Unknown(model.parameters())

    with pytest.raises(ConfigError, match=r"'unheard-of'.*luwu\.updates"):
        in_cluster(tmp_path, work)


def test_an_update_that_cannot_be_imported_is_refused(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the package is there and does not work: the worker is told, and no state is made."""

    def work(rank: int) -> None:
        model = seeded(lambda: Stack(blocks=1))
        shard(model)
        example.Signum(model.parameters())

    monkeypatch.setitem(sys.modules, "luwu_signum", None)
    with pytest.raises(ConfigError, match=r"'signum'.*luwu_signum:update cannot be imported"):
        in_cluster(tmp_path, work)


@pytest.mark.usefixtures("example")
def test_own_update_has_a_name_of_its_own() -> None:
    """Goal: what is written into a state is where the function is."""
    assert kernel_name("signum", ("m",)) == "luwu_signum:update"

"""Lightning Fabric over LuWu: loops of plain Fabric, that of docs/fabric.md, and what is rejected.

One worker is `luwu.init_local` in this process; two are those of `luwu run`. The weights of a model
have multiples of 64 elements, where torch's fused optimizer gives the same bits for a parameter
alone as for a part of a page (tests/training/test_training_equality.py).
"""

from __future__ import annotations

import copy
import doctest
import importlib.util
import json
import math
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import luwu
from luwu.base.errors import ConfigError, LuwuError, StepOrderError
from luwu.launch import local_cluster
from luwu.training.script import run
from tests.helpers.docstrings import doctest_of
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.training_harness import worker
from tests.integrations.hugging_face import Later
from tests.integrations.test_transformers_page import run as run_command

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning_fabric") is None,
    reason="lightning-fabric is not installed (the extra `fabric`)",
)
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "fabric.md").read_text(encoding="utf-8")
lightning_fabric = Later("lightning_fabric")
luwu_fabric = Later("luwu.integrations.fabric")

STEPS = 6
CLIPPED = 1e-6
"""Allowed difference of losses near 1: the norm is summed in another order than torch's."""
Loop = Callable[[Any, Any, Any], list[float]]
"""(fabric, model, optimizer) -> what a test compares"""


@pytest.fixture(autouse=True)
def end_of_the_job() -> Iterator[None]:
    """End a job that a test left: it can end well with an optimizer only."""
    yield
    if run.is_running():
        session = run.session()
        left = [p for unit in session.model.added for m in unit.modules for p in m.parameters()]
        if left and not session.is_final:
            luwu.optim.SGD(dict.fromkeys(left), lr=0.1)
        luwu.finish()
    local_cluster.close()


class Net(nn.Sequential):
    """Two layers, and a parameter of the root that `training_step` alone uses."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64))
        self.scale = nn.Parameter(torch.full((64,), 0.5))

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self(x) * self.scale) - y).square().mean()


def make_model() -> Net:
    torch.manual_seed(0)
    return Net()


def batches(seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 16, generator=generator), torch.randn(8, 64, generator=generator))
        for _ in range(STEPS)
    ]


def start(precision: str = "32-true", state: Path | None = None, **arguments: Any) -> Any:
    """A Fabric over a job of this process."""
    luwu.init_local(state, memory_budget="64MiB", device="cpu")
    arguments = arguments or {"auto_wrap_policy": {nn.Linear}}
    strategy = luwu_fabric.LuwuStrategy(**arguments)
    fabric = lightning_fabric.Fabric(accelerator="cpu", strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def set_up(fabric: Any, **network: Any) -> tuple[Any, Any]:
    model = fabric.setup_module(make_model())
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, **network)
    return model, fabric.setup_optimizers(optimizer)


def started() -> tuple[Any, Any, Any]:
    fabric = start()
    return fabric, *set_up(fabric)


def plain(loop: Loop, precision: str = "32-true") -> tuple[list[float], dict[str, Tensor]]:
    """The loop in plain Fabric, over plain torch."""
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1, precision=precision)
    fabric.launch()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    found = loop(fabric, *fabric.setup(model, optimizer))
    return found, model.state_dict()


def ours(loop: Loop, precision: str = "32-true", **network: Any) -> tuple[list[float], Any]:
    """The same over LuWu."""
    fabric = start(precision)
    model, optimizer = set_up(fabric, **network)
    found = loop(fabric, model, optimizer)
    weights = luwu.get_model_state_dict(model.module)
    luwu.finish()
    return found, weights


def assert_same(
    loop: Loop, reference: Loop | None = None, precision: str = "32-true", **network: Any
) -> tuple[list[float], Any]:
    """Compare the losses and weights of a loop with those of plain Fabric, bit for bit."""
    expected, weights = plain(reference or loop, precision)
    found, pulled = ours(loop, precision, **network)
    assert found == expected
    assert_same_weights(pulled, weights)
    return found, pulled


def train(fabric: Any, model: Any, optimizer: Any) -> list[float]:
    losses = []
    for x, y in batches():
        loss = (model(x) - y).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def read(file: Path) -> dict[str, Any]:
    """A checkpoint, as plain Fabric reads it."""
    found: dict[str, Any] = lightning_fabric.Fabric(accelerator="cpu", devices=1).load(file)
    return found


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(found[name], weights), name


# ---------------------------------------------------------------------------- training


@pytest.mark.feature("Fabric: setup, training_step, mark_forward_method, backward, step")
def test_fabric_trains_with_the_bits_of_plain_fabric() -> None:
    """I4. Goal: losses and weights of plain Fabric, to the bit; a scheduler changes the rate."""

    def loop(fabric: Any, model: Any, optimizer: Any) -> list[float]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, STEPS, gamma=0.5)
        losses = []
        for _ in range(2):
            losses += train(fabric, model, optimizer)
            for _ in range(STEPS):
                scheduler.step()
        return [*losses, scheduler.get_last_lr()[0]]

    assert assert_same(loop)[0][-1] == 1e-2 / 4


@pytest.mark.feature("Fabric: setup, training_step, mark_forward_method, backward, step")
def test_fabric_sends_other_methods_through_forward() -> None:
    """I4. Goal: `training_step`, and a method that is marked, find the weights of their model."""

    def loop(fabric: Any, model: Any, optimizer: Any) -> list[float]:
        model.mark_forward_method("peek")
        losses = []
        for x, y in batches():
            loss = model.training_step(x, y) + model.peek(x)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def peek(self: Net, x: Tensor) -> Tensor:
        return (self[0](x).mean() * self.scale).sum() / 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Net, "peek", peek, raising=False)
        expected, weights = plain(loop)
        found, pulled = ours(loop)
    assert found == pytest.approx(expected, abs=1e-6)  # two calls of a unit: added in another order
    for name, each in weights.items():
        torch.testing.assert_close(pulled[name], each, rtol=0, atol=1e-6)


@pytest.mark.feature("Fabric: precision")
def test_fabric_autocast() -> None:
    """I4. Goal: bf16-mixed is autocast over weights in float32, as in plain Fabric."""
    assert assert_same(train, precision="bf16-mixed")[0] != plain(train)[0]


@pytest.mark.feature("Fabric: precision")
def test_fabric_in_bfloat16() -> None:
    """I4. Goal: with bf16-true forward and backward are those of plain Fabric, over a copy in
    bfloat16 of weights that are updated in float32. Method: such masters beside plain Fabric."""

    def loop(fabric: Any, model: Any, optimizer: Any) -> list[float]:
        masters = copy.deepcopy(model.module).float()
        updating = torch.optim.AdamW(masters.parameters(), lr=1e-2, fused=True)
        losses = []
        for x, y in batches():
            loss = (model(x) - y).square().mean()
            fabric.backward(loss)
            for seen, master in zip(model.parameters(), masters.parameters(), strict=True):
                master.grad = None if seen.grad is None else seen.grad.float()
            updating.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for seen, master in zip(model.parameters(), masters.parameters(), strict=True):
                    seen.copy_(master)
            losses.append(loss.item())
        return losses

    _, pulled = assert_same(train, loop, precision="bf16-true")
    assert pulled["0.weight"].dtype == torch.bfloat16


@pytest.mark.feature("Fabric: torch.compile")
def test_fabric_compiles_the_model_again() -> None:
    """I4. Goal: a compiled model is sharded, and compiled again, as Fabric does it."""
    fabric = start()
    model = fabric.setup_module(torch.compile(make_model(), backend="eager"))
    optimizer = fabric.setup_optimizers(luwu.optim.AdamW(model.parameters(), lr=1e-2))
    assert train(fabric, model, optimizer) == plain(train)[0]
    with fabric.no_backward_sync(model):
        assert model.module.luwu_unit.is_root


@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.feature("Fabric: no_backward_sync")
def test_fabric_accumulates(update: str) -> None:
    """I4. Goal: the bits of plain Fabric; a backward inside of no_backward_sync pushes nothing."""

    def loop(fabric: Any, model: Any, optimizer: Any) -> list[float]:
        losses = []
        for x, y in batches():
            for part in (0, 1):
                with fabric.no_backward_sync(model, enabled=part == 0):
                    loss = (model(x[part::2]) - y[part::2]).square().mean()
                    fabric.backward(loss / 2)
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return losses

    assert_same(loop, update=update)


@pytest.mark.feature("Fabric: clip_gradients")
def test_fabric_clips() -> None:
    """I4. Goal: losses and norms of plain Fabric, where some steps are clipped and others not."""

    def loop(fabric: Any, model: Any, optimizer: Any) -> list[float]:
        found = []
        for x, y in batches():
            loss = (model(x) * 4 - y).square().mean()
            fabric.backward(loss)
            norm = fabric.clip_gradients(model, optimizer, max_norm=2.0)
            optimizer.step()
            optimizer.zero_grad()
            found += [loss.item(), float(norm)]
        return found

    expected, _ = plain(loop)
    found, _ = ours(loop)
    assert found == pytest.approx(expected, abs=CLIPPED)
    assert min(expected[1::2]) < 2.0 < max(expected[1::2])


@pytest.mark.feature("Fabric: clip_gradients")
def test_fabric_gradients_that_are_not_finite() -> None:
    """Goal: clip_gradients raises for them by default, as in plain Fabric: here once the norm is
    known, and the weights have not changed. Otherwise the step is left out."""
    fabric, model, optimizer = started()
    x, _ = batches()[0]
    fabric.backward((model(x) * math.inf).sum())
    norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
    with pytest.raises(RuntimeError, match=r"gradient of step 0 is inf, .*no weight has changed"):
        optimizer.step()
    assert not math.isfinite(float(norm))
    fabric.backward((model(x) * math.inf).sum())
    fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
    assert not optimizer.step().applied
    assert_same_weights(luwu.get_model_state_dict(model.module), make_model().state_dict())
    fabric.backward(model(x).sum())
    assert optimizer.step().applied


@pytest.mark.feature("Fabric: init_module(empty_init=True)")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_fabric_model_on_meta(precision: str) -> None:
    """Goal: a model without memory is filled by its modules' reset_parameters(), and trains."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64))

    fabric = start(precision)
    with fabric.init_module(empty_init=True):
        made = make()
    assert {p.device.type for p in made.parameters()} == {"meta"}
    model = fabric.setup_module(made)
    optimizer = fabric.setup_optimizers(luwu.optim.SGD(model.parameters(), lr=0.1))
    losses = train(fabric, model, optimizer)
    assert all(map(math.isfinite, losses))
    weights = luwu.get_model_state_dict(model.module)["0.weight"]
    assert weights.dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float32)
    assert 0 < weights.float().std() < 1


@pytest.mark.feature("Fabric: setup, training_step, mark_forward_method, backward, step")
def test_fabric_takes_a_model_that_is_sharded_already() -> None:
    """Goal: without auto_wrap_policy the script's own units count; model and optimizer may be set
    up together, as the optimizer was made for the units."""
    fabric = start(reshard_after_forward=True)
    model = make_model()
    luwu.fully_shard(model[0])
    luwu.fully_shard(model)
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped, optimizer = fabric.setup(model, optimizer)
    assert train(fabric, wrapped, optimizer) == plain(train)[0]
    assert len(run.session().units) == 2


@pytest.mark.feature("Fabric: setup_dataloaders, all_reduce, broadcast, barrier")
def test_fabric_alone_keeps_the_order_of_data_and_collectives() -> None:
    """Goal: one worker has the order of plain Fabric's loader, and collectives of one."""
    data = TensorDataset(torch.arange(12))

    def order(fabric: Any) -> list[int]:
        torch.manual_seed(3)
        loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))
        return [number for (batch,) in loader for number in batch.tolist()]

    alone = lightning_fabric.Fabric(accelerator="cpu", devices=1)
    fabric = start()
    assert order(fabric) == order(alone) != list(range(12))
    assert fabric.all_reduce(torch.tensor(3.0)).item() == 3.0
    assert fabric.broadcast("text") == "text"
    fabric.barrier()
    assert (fabric.global_rank, fabric.world_size, fabric.is_global_zero) == (0, 1, True)


# ---------------------------------------------------------------------------- checkpoints


@pytest.mark.feature("Fabric: save, load")
def test_fabric_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """I4. Goal: weights, moments, rates and plain values go through one file, which plain Fabric
    reads too: a new run that loads it has the losses of one that was not stopped."""
    file = tmp_path / "model.ckpt"
    expected, weights = plain(lambda *parts: train(*parts) + train(*parts))
    fabric, model, optimizer = started()
    found = train(fabric, model, optimizer)
    fabric.save(file, {"model": model, "optimizer": optimizer, "epoch": 1})
    luwu.finish()

    reader = make_model()
    reader.load_state_dict(read(file)["model"])
    fabric, model, optimizer = started()
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    optimizer.param_groups[0]["lr"] = 7.0
    assert fabric.load(file, state) == {}
    assert (state["model"], state["optimizer"], state["epoch"]) == (model, optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == 1e-2
    assert_same_weights(luwu.get_model_state_dict(model.module), reader.state_dict())
    found += train(fabric, model, optimizer)
    assert found == expected
    assert_same_weights(luwu.get_model_state_dict(model.module), weights)


@pytest.mark.feature("Fabric: save, load")
def test_fabric_saves_what_a_filter_leaves_and_loads_raw_weights(tmp_path: Path) -> None:
    """Goal: a filter chooses weights; a file of weights alone is loaded by load_raw; a module that
    is not sharded goes the way of plain Fabric."""
    fabric = start()
    model, _ = set_up(fabric)
    other = nn.Linear(2, 2)
    torch.save(dict.fromkeys(["weight"], torch.ones(2, 2)), tmp_path / "other")
    fabric.load_raw(tmp_path / "other", other, strict=False)
    assert other.weight.tolist() == [[1, 1], [1, 1]]
    raw = {name: weights + 1 for name, weights in make_model().state_dict().items()}
    torch.save(raw, tmp_path / "raw")
    fabric.load_raw(tmp_path / "raw", model)
    is_bias = {"model": lambda name, _: name.endswith("bias")}
    fabric.save(tmp_path / "biases", {"model": model, "other": other}, filter=is_bias)
    saved = fabric.load(tmp_path / "biases")
    assert_same_weights(saved["model"], {n: w for n, w in raw.items() if n.endswith("bias")})
    assert_same_weights(saved["other"], other.state_dict())


@pytest.mark.feature("Fabric: save, load")
def test_fabric_load_in_the_middle_is_refused(tmp_path: Path) -> None:
    """Goal: after the first forward, or in a run that goes on from a state, nothing is loaded."""
    file = tmp_path / "model.ckpt"
    fabric = start(state=tmp_path / "state")
    model, optimizer = set_up(fabric)
    train(fabric, model, optimizer)
    fabric.save(file, {"model": model, "optimizer": optimizer})
    for name, part in {"model": model, "optimizer": optimizer}.items():
        with pytest.raises(StepOrderError, match=r"after the first forward.*start a new run"):
            fabric.load(file, {name: part})
    luwu.finish()

    fabric = start(state=tmp_path / "state")
    model, optimizer = set_up(fabric)
    for name, part in {"model": model, "optimizer": optimizer}.items():
        with pytest.raises(ConfigError, match=rf"at step {STEPS}.*luwu\.session\(\)\.is_resumed"):
            fabric.load(file, {name: part})
    luwu.finish()

    fabric = start(state=tmp_path / "state")
    model = fabric.setup_module(make_model())
    fabric.load(file, {"model": model})  # only the optimizer makes known that there is a state
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)
    with pytest.raises(ConfigError, match=rf"at step {STEPS}.*luwu\.session\(\)\.is_resumed"):
        fabric.setup_optimizers(optimizer)


@pytest.mark.feature("Fabric: save, load")
def test_fabric_load_of_numbered_moments_is_refused(tmp_path: Path) -> None:
    """Goal: state_dict() of a torch optimizer does not say whose moments it has."""
    fabric, model, optimizer = started()
    torch.save({"optimizer": torch.optim.AdamW(make_model().parameters()).state_dict()},
               tmp_path / "plain")  # fmt: skip
    with pytest.raises(ConfigError, match=r"numbers its parameters.*get_optimizer_state_dict"):
        fabric.load(tmp_path / "plain", {"optimizer": optimizer})
    with pytest.raises(LuwuError, match=r"luwu\.get_model_state_dict"):
        model.state_dict()


# ---------------------------------------------------------------------------- refusals


@pytest.mark.feature("Fabric: arguments and optimizers of FSDP, other devices")
def test_fabric_refuses_optimizers_of_torch() -> None:
    """Goal: they would update placeholders, or weights that nothing computes with."""
    fabric = start()
    message = r"got a SGD, which would update nothing.*setup_module.*luwu\.optim\.AdamW"
    model = make_model()
    with pytest.raises(ConfigError, match=message):
        fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sharded = fabric.setup_module(model)  # the call before has left the model as it was
    with pytest.raises(ConfigError, match=message):
        fabric.setup_optimizers(torch.optim.SGD(make_model().parameters(), lr=0.1))
    optimizer = fabric.setup_optimizers(luwu.optim.AdamW(sharded.parameters(), lr=1e-2))
    assert train(fabric, sharded, optimizer) == plain(train)[0]


@pytest.mark.feature("Fabric: clip_gradients")
def test_fabric_refuses_clipping_by_value() -> None:
    fabric, model, optimizer = started()
    with pytest.raises(ConfigError, match=r"clip_val=1\.0.*pass max_norm"):
        fabric.clip_gradients(model, optimizer, clip_val=1.0)
    with pytest.raises(ConfigError, match=r"norm_type=3: gradients are clipped by norm 1, 2"):
        fabric.clip_gradients(model, optimizer, max_norm=1.0, norm_type=3)


@pytest.mark.feature("Fabric: precision")
def test_fabric_refuses_precision() -> None:
    """Goal: the line that makes Fabric raises; so does a plugin for 16-mixed, which Fabric makes by
    itself for GPUs only."""
    kinds = importlib.import_module("lightning_fabric.plugins.precision")
    scaled = kinds.MixedPrecision("16-mixed", "cpu")
    for name, given in (
        ("16-true", {"precision": "16-true"}), ("64-true", {"precision": "64-true"}),
        ("16-mixed", {"plugins": [scaled]}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"{name}.*bf16-mixed.*loss_scale"):
            lightning_fabric.Fabric(accelerator="cpu", strategy=luwu_fabric.LuwuStrategy(), **given)


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "cpu_offload": ({"cpu_offload": True}, "nothing is left to offload"),
    "sharding_strategy": ({"sharding_strategy": "NO_SHARD"}, "reshard_after_forward=False"),
    "state_dict_type": ({"state_dict_type": "sharded"}, "luwu export"),
    "mixed_precision": ({"mixed_precision": object()}, "mp_policy="),
    "device_mesh": ({"device_mesh": (2, 2)}, "not on a mesh"),
    "checkpointing": ({"activation_checkpointing_policy": set()}, "apply_activation_checkpointing"),
    "unknown": ({"colour": "red"}, "no such argument"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.feature("Fabric: arguments and optimizers of FSDP, other devices")
def test_fabric_refuses_arguments(case: str) -> None:
    arguments, message = ARGUMENTS[case]
    (name,) = arguments
    with pytest.raises(TypeError, match=f"LuwuStrategy takes no {name}=: .*{message}"):
        luwu_fabric.LuwuStrategy(**arguments)


@pytest.mark.feature("Fabric: arguments and optimizers of FSDP, other devices")
def test_fabric_refuses_policies_that_are_not_sets_of_classes() -> None:
    for policy in (nn.Linear, lambda *_: True, {nn.Linear(2, 2)}):
        with pytest.raises(ConfigError, match=r"auto_wrap_policy.*set of classes.*fully_shard"):
            luwu_fabric.LuwuStrategy(policy)
    fabric = start()
    model = make_model()
    luwu.fully_shard(model[0])
    with pytest.raises(ConfigError, match=r"fully_shard was called on this model.*leave out one"):
        fabric.setup_module(model)


@pytest.mark.feature("Fabric: arguments and optimizers of FSDP, other devices")
def test_fabric_refuses_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a Fabric that has no job, or that would split data among other processes, raises
    where it is launched."""

    def launch(**arguments: Any) -> None:
        strategy = luwu_fabric.LuwuStrategy()
        lightning_fabric.Fabric(accelerator="cpu", strategy=strategy, **arguments).launch()

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"luwu run SCRIPT.*luwu\.init_local"):
        launch()
    luwu.init_local(memory_budget="64MiB", device="cpu")
    with pytest.raises(ConfigError, match=r"devices=4, num_nodes=1.*4 processes.*this run has 1"):
        launch(devices=4)
    with pytest.raises(ConfigError, match=r"num_nodes=2.*leave devices and num_nodes out"):
        launch(num_nodes=2)
    luwu.session().device = torch.device("cuda", 0)  # as init_local() has it where there is one
    with pytest.raises(ConfigError, match=r"computes on cpu, but the weights come to cuda:0"):
        launch()
    luwu.finish()
    with worker(FakeNetwork(2)):
        with pytest.raises(ConfigError, match=r"worker 0 of 2.*name 0 of 1.*luwu run or torchrun"):
            launch()
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match=r"MASTER_ADDR.*--on-worker-loss stop"):
            launch()


# ---------------------------------------------------------------------------- what is shown


def test_fabric_docstring_example() -> None:
    """Goal: the example of LuwuStrategy runs as it is written."""
    names = {"torch": torch, "luwu": luwu, "LuwuStrategy": luwu_fabric.LuwuStrategy}
    example = doctest_of("LuwuStrategy", luwu_fabric.LuwuStrategy, names)
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.feature("Fabric: setup, training_step, mark_forward_method, backward, step")
@pytest.mark.feature("Fabric: setup_dataloaders, all_reduce, broadcast, barrier")
def test_fabric_page_with_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4, I8. Goal: the page's script over two workers has the losses and the checkpoint of plain
    Fabric alone, with accumulation, clipping and collectives. 1e-4 of losses of order 60: gradients
    are added in another order."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["diff", "sh"]
    (_, diff), (_, command) = blocks
    losses, saved = [], []
    for mark in "-+":
        lines = [line[1:] for line in diff.splitlines() if line[:1] in ("", " ", mark)]
        directory = tmp_path / ("after" if mark == "+" else "before")
        directory.mkdir()
        script = directory / "train.py"
        script.write_text("\n".join(lines) + "\n")
        if mark == "-":
            monkeypatch.chdir(directory)
            runpy.run_path(str(script), run_name="__main__")
        else:
            run_command(directory, shlex.split(command))
        losses.append(json.loads((directory / "losses.json").read_text()))
        saved.append(read(directory / "model.ckpt"))
    assert len(losses[0]) == 40
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[0][-1] < losses[0][0] / 2
    assert saved[1]["steps"] == saved[0]["steps"] == 20
    for name, weights in saved[0]["model"].items():
        torch.testing.assert_close(saved[1]["model"][name], weights, rtol=0, atol=1e-4)

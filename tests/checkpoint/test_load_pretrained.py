"""luwu.load_pretrained: first weights from safetensors files, read on rank 0 unit by unit."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import luwu
from luwu.base.errors import StepAborted
from luwu.tensor_files.directory import TensorDirectory
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.training_harness import assert_same_bits, run_ranks, worker
from workers.gpt import GPT, GPTConfig, init_weights

CONFIG = GPTConfig(layers=3, width=64, heads=4, context=16, vocab=128, tied=True)


def seeded(module: nn.Module) -> None:
    init_weights(module, 3)


def files(directory: Path, tensors: dict[str, Tensor], shards: int = 3) -> Path:
    """A Hugging Face directory of some files."""
    directory.mkdir()
    names = {n: f"model-{i % shards:05}.safetensors" for i, n in enumerate(tensors)}
    for file in set(names.values()):
        save_file({n: tensors[n] for n in tensors if names[n] == file}, directory / file)
    index = {"metadata": {}, "weight_map": names}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def gpt_tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = GPT(CONFIG)
    return {name: torch.randn_like(p).to(dtype) for name, p in model.named_parameters()}


def prepare(
    network: FakeNetwork, make: Callable[[], nn.Module], call: Callable[[Any], object],
    *, device: str = "meta",
) -> list[nn.Module]:  # fmt: skip
    """Construct, shard, `call` and make the optimizer on every rank; the models."""

    def work(rank: int) -> nn.Module:
        with worker(network, rank):
            with torch.device(device):
                model = make()
            for block in getattr(model, "blocks", []):
                luwu.fully_shard(block)
            luwu.fully_shard(model)
            call(model)
            luwu.optim.AdamW(model.parameters())
            with contextlib.suppress(StepAborted):  # an abort may reach a rank only now
                luwu.finish()
        return model

    return run_ranks(network.world_size, work)


@pytest.mark.feature("luwu.load_pretrained")
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_first_weights_are_those_of_the_files(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whatever the device, the network gets the files' values, widened; rank 0 alone reads.
    Method: bfloat16 files under other names; the order and size of what is read at a time."""
    tensors = gpt_tensors(torch.bfloat16)
    directory = files(tmp_path / "hub", {f"model.{n}": t for n, t in tensors.items()})
    reads: list[str] = []
    real = TensorDirectory.read_float32

    def counted(self: TensorDirectory, name: str, *rest: Any) -> None:
        reads.append(name)
        real(self, name, *rest)

    monkeypatch.setattr(TensorDirectory, "read_float32", counted)
    network = FakeNetwork(2)
    call = lambda model: luwu.load_pretrained(model, directory, lambda name: f"model.{name}")  # noqa: E731
    prepare(network, lambda: GPT(CONFIG), call, device=device)

    assert_same_bits(network.masters(), {n: t.float() for n, t in tensors.items()})
    assert {rank for verb, rank, *_ in network.log if verb == "load"} == {0}
    assert sorted(reads) == sorted(f"model.{name}" for name in tensors)


@pytest.mark.feature("luwu.load_pretrained")
def test_what_rename_leaves_out_is_made_as_usual(tmp_path: Path) -> None:
    """Goal: parameters that are in no file are filled by init_weights; those of the files are not
    touched by it, in one module too."""
    tensors = gpt_tensors()
    made = [name for name in tensors if name.endswith("bias") or name.startswith("blocks.1")]
    directory = files(tmp_path / "hub", {n: t for n, t in tensors.items() if n not in made})
    network = FakeNetwork(2)

    def call(model: nn.Module) -> None:
        luwu.init_weights(model, seeded)
        luwu.load_pretrained(model, directory, lambda name: None if name in made else name)

    for device in ("meta", "cpu"):
        network = FakeNetwork(2)
        prepare(network, lambda: GPT(CONFIG), call, device=device)
        model = GPT(CONFIG)
        for module in model.modules():
            seeded(module)
        expected = {n: p.detach() if n in made else tensors[n] for n, p in model.named_parameters()}
        assert_same_bits(network.masters(), expected)


class Normed(nn.Module):
    """Buffers that a state_dict has, and one that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)
        self.norm = nn.BatchNorm1d(64)
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.linear(x))
        return y


@pytest.mark.feature("luwu.load_pretrained")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_buffers_are_read_on_every_rank(device: str, tmp_path: Path) -> None:
    """Goal: BatchNorm's statistics are the files' on every rank, in their own dtypes."""
    source = Normed()
    assert source.norm.running_mean is not None
    source.norm.running_mean.normal_()
    source.norm.num_batches_tracked.fill_(2**40 + 1)
    directory = files(tmp_path / "hub", dict(source.state_dict()), shards=2)

    def call(model: Any) -> None:
        luwu.load_pretrained(model, directory)
        luwu.init_weights(model, lambda module: [b.zero_() for b in module.buffers(recurse=False)])

    models: Any = prepare(FakeNetwork(2), Normed, call, device=device)
    for model in models:
        assert torch.equal(model.norm.running_mean, source.norm.running_mean)
        assert model.norm.num_batches_tracked.item() == 2**40 + 1


@pytest.mark.feature("luwu.load_pretrained")
def test_a_run_that_has_weights_reads_no_files(tmp_path: Path) -> None:
    """Goal: a run that continues ignores the files, which may be gone."""
    directory = files(tmp_path / "hub", gpt_tensors())
    network = FakeNetwork(1)
    call = lambda model: luwu.load_pretrained(model, directory)  # noqa: E731
    prepare(network, lambda: GPT(CONFIG), call)
    shutil.rmtree(directory)
    prepare(network, lambda: GPT(CONFIG), call)
    with pytest.raises(luwu.ConfigError, match="no such directory"):
        prepare(FakeNetwork(1), lambda: GPT(CONFIG), call)


@pytest.mark.feature("luwu.load_pretrained")
def test_wrong_files_are_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    """Goal: missing, left over and misshapen tensors in one message; nothing is loaded."""
    tensors = gpt_tensors()
    name = next(iter(tensors))
    del tensors[name]
    tensors["more"] = torch.zeros(2)
    tensors["norm.weight"] = torch.zeros(65)
    directory = files(tmp_path / "hub", tensors)
    network = FakeNetwork(1)
    with pytest.raises(luwu.ConfigError) as caught:
        prepare(network, lambda: GPT(CONFIG), lambda m: luwu.load_pretrained(m, directory))
    assert f"1 missing: {name}" in str(caught.value)
    assert "1 not in the model: more" in str(caught.value)
    assert "norm.weight [65], expected [64]" in str(caught.value)
    assert not [verb for verb, *_ in network.log if verb == "load"]

    def too_many(model: nn.Module) -> None:
        luwu.load_pretrained(model, directory, lambda name: "norm.weight")

    with pytest.raises(luwu.ConfigError, match="they cannot both be it"):
        prepare(FakeNetwork(1), lambda: GPT(CONFIG), too_many)


@pytest.mark.feature("luwu.load_pretrained")
def test_calls_at_the_wrong_time_are_refused(tmp_path: Path) -> None:
    """Goal: before fully_shard and after the optimizer there is a sentence."""
    with pytest.raises(luwu.ConfigError, match=r"call luwu\.fully_shard"):
        luwu.load_pretrained(nn.Linear(2, 2), tmp_path)
    with worker(FakeNetwork(1)):
        model = luwu.fully_shard(nn.Linear(64, 64))
        luwu.optim.AdamW(model.parameters())
        with pytest.raises(luwu.ConfigError, match="after the optimizer was made"):
            luwu.load_pretrained(model, tmp_path)

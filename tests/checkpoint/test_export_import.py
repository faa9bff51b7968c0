"""luwu export and import: a state goes out as safetensors and comes back bit for bit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import luwu
from luwu.commands.main import main
from tests.helpers.exports import (
    OptimizerJob,
    bring,
    export,
    first_weights,
    padding_of,
    train,
    values_of,
)
from tests.helpers.local_job import KIB, make_layout
from tests.helpers.real_training import in_cluster
from tests.helpers.small_models import gpt_config, gpt_loss, make_gpt, shard_gpt
from tests.helpers.training_harness import assert_same_bits, reference

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.feature("export and import")
@pytest.mark.parametrize(
    ("optimizer", "update", "wire_dtype", "chunk_kib"),
    [("adamw", "at_step", "float32", 16), ("adamw", "streaming", "bfloat16", 32),
     ("sgd", "streaming", "float32", 48), ("sgd", "at_step", "bfloat16", 16),
     ("lion", "at_step", "float32", 32), ("lion", "streaming", "float32", 16)],
)  # fmt: skip
def test_export_import_goes_on_with_fewer_workers(
    optimizer: str, update: str, wire_dtype: str, chunk_kib: int, tmp_path: Path
) -> None:
    """I3. Goal: train with 4 workers, export, import, go on with 2: at the border the state is
    equal bit for bit, and what follows equals going on from the original.
    Method: two groups, a frozen parameter and a scalar; other chunks in the imported state."""
    job = OptimizerJob(
        layout=make_layout(16, wire_dtype), world_size=4, update=update, optimizer=optimizer
    )
    border = train(job, tmp_path / "state", tmp_path, stop_at=2)
    train(job, tmp_path / "state", tmp_path, stop_at=2)  # no step: another attempt, that is all

    exported = export(tmp_path / "state", tmp_path / "out", shard_bytes=40 * KIB)
    imported = bring(tmp_path / "out", tmp_path / "new", chunk_kib=chunk_kib)

    assert exported.step == imported.step == 2
    assert exported.weights_digest == imported.weights_digest == border
    before, after = values_of(tmp_path / "state"), values_of(tmp_path / "new")
    assert before == after
    assert before.record.hyper
    assert after.attempt > after.record.attempt > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out", "state"]

    two = replace(job, world_size=2)
    expected = train(two, tmp_path / "state", tmp_path)
    there = replace(two, layout=make_layout(chunk_kib, wire_dtype))
    assert train(there, tmp_path / "new", tmp_path) == expected
    assert expected != border
    assert values_of(tmp_path / "new").fields == values_of(tmp_path / "state").fields


@pytest.mark.feature("export and import")
def test_export_import_of_a_skipped_step_and_of_first_weights(tmp_path: Path) -> None:
    """Goal: a state whose last step was skipped, and one without any step, come back as they are;
    an SGD that was never updated has no momentum buffers yet, as in torch."""
    job = OptimizerJob(steps=2, poison_step=1)
    train(job, tmp_path / "state", tmp_path)
    export(tmp_path / "state", tmp_path / "out")
    bring(tmp_path / "out", tmp_path / "new")
    assert values_of(tmp_path / "new") == values_of(tmp_path / "state")
    assert values_of(tmp_path / "new").record.applied is False

    first = OptimizerJob(optimizer="sgd")
    first_weights(first, tmp_path / "state0", tmp_path)
    export(tmp_path / "state0", tmp_path / "out0")
    assert not list((tmp_path / "out0").glob("optimizer*"))
    bring(tmp_path / "out0", tmp_path / "new0", chunk_kib=32)
    before, after = values_of(tmp_path / "state0"), values_of(tmp_path / "new0")
    assert (after, after.record.version) == (before, 0)


@pytest.mark.feature("export and import")
def test_export_import_with_the_least_budget(tmp_path: Path) -> None:
    """Goal: two buffers are enough; what a page held before is not left in the next one's
    padding."""
    train(OptimizerJob(steps=2), tmp_path / "state", tmp_path)
    out, new = (str(tmp_path / name) for name in ("out", "new"))
    assert main(["export", str(tmp_path / "state"), out, "--memory-budget", "1067KiB"]) == 0
    assert main(["import", out, "--state", new, "--memory-budget", "129KiB"]) == 0
    assert values_of(tmp_path / "new") == values_of(tmp_path / "state")
    assert not any(padding_of(tmp_path / "new"))


# ---------------------------------------------------------------------------- for other programs


CONFIG = gpt_config(layers=2, tied=True)
TRAINED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "adamw": (luwu.optim.AdamW, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "sgd": (luwu.optim.SGD, torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.2}),
}


def train_gpt(tmp_path: Path, state: Path, optimizer: str, *, steps: int, world_size: int) -> str:
    """A tied GPT with luwu's own modules, each rank in a thread; the digest of its weights."""
    kind, _, arguments = TRAINED[optimizer]

    def work(rank: int) -> None:
        model: Any = make_gpt(CONFIG)
        shard_gpt(model)
        mine = kind(model.parameters(), **arguments)
        for step in range(mine.next_step, steps):
            gpt_loss(model, step, rank, 0).backward()
            mine.step()

    given: dict[str, Any] = {"world_size": world_size, "state": state, "resume": state.exists()}
    return in_cluster(tmp_path, work, **given).digest


@pytest.mark.feature("export and import")
@pytest.mark.parametrize("optimizer", sorted(TRAINED))
def test_export_import_fills_a_torch_model_and_its_optimizer(
    optimizer: str, tmp_path: Path
) -> None:
    """I4. Goal: a plain torch model takes the weights with load_state_dict, a torch optimizer the
    state with set_optimizer_state_dict, and its next step gives the bits of the node's.
    Method: tied weights; sizes are multiples of 64, where torch's kernels round alike."""
    state, out = tmp_path / "state", tmp_path / "out"
    train_gpt(tmp_path, state, optimizer, steps=3, world_size=2)
    assert main(["export", str(state), str(out), "--shard-size", "64KiB"]) == 0

    model = make_gpt(CONFIG)
    weights = load_sharded(out, "model")
    assert list(weights) == [name for name, _ in model.named_parameters()]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["head.weight"], [])  # tied: torch's state dict has it twice

    theirs = TRAINED[optimizer][1](model.parameters(), **TRAINED[optimizer][2], fused=True)
    document = json.loads((out / "luwu.json").read_text())
    state_dict: dict[str, Any] = load_sharded(out, "optimizer")
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    theirs_first = get_optimizer_state_dict(model, theirs, options=flat)
    assert set(state_dict) == {key for key in theirs_first if key.startswith("state.")}
    said = document["optimizer"]["param_groups"][0]
    for name, _ in model.named_parameters():
        for key, value in theirs.param_groups[0].items():
            state_dict[f"param_groups.{name}.{key}"] = said.get(key, value)
    set_optimizer_state_dict(model, theirs, state_dict, options=flat)
    found = reference(
        lambda: model, lambda _: theirs, lambda model, step, *of: gpt_loss(model, 3, *of),
        world_size=2, steps=1,
    )  # fmt: skip

    train_gpt(tmp_path, state, optimizer, steps=4, world_size=2)
    export(state, tmp_path / "next")
    expected = load_file(tmp_path / "next" / "model.safetensors")
    assert_same_bits(expected, found)


def load_sharded(directory: Path, stem: str) -> dict[str, Any]:
    """All tensors, as the index of several files says."""
    index = json.loads((directory / f"{stem}.safetensors.index.json").read_text())
    files = {name: load_file(directory / name) for name in set(index["weight_map"].values())}
    assert len(files) > 1
    assert sum(len(tensors) for tensors in files.values()) == len(index["weight_map"])
    sizes = sum(t.nbytes for tensors in files.values() for t in tensors.values())
    assert index["metadata"]["total_size"] == sizes
    return {name: files[file][name] for name, file in index["weight_map"].items()}


@pytest.mark.feature("export and import")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_export_import_of_narrow_weights(dtype: str, tmp_path: Path) -> None:
    """Goal: narrow weights are those that torch rounds to, transformers may load them, and import
    says that they are not the state."""
    job = OptimizerJob(steps=2)
    train(job, tmp_path / "state", tmp_path)
    export(tmp_path / "state", tmp_path / "wide", has_optimizer=False)
    export(tmp_path / "state", tmp_path / "out", dtype=dtype)
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    narrow = load_file(tmp_path / "out" / "model.safetensors")
    for name, values in wide.items():
        assert torch.equal(narrow[name], values.to(getattr(torch, dtype))), name
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    for name, lacks in (("out", f"weights in {dtype}"), ("wide", "without the optimizer's")):
        with pytest.raises(luwu.ConfigError, match=f"{lacks}.*luwu.load_pretrained"):
            bring(tmp_path / name, tmp_path / "new")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_export_import_rounds_every_kind_of_value_as_torch(dtype: str) -> None:
    """Goal: torch's bits for ties, subnormals, zeros of both signs, infinities and NaN."""
    from luwu.checkpoint.export_state import _narrowed

    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 6e-8, 1e-40, 1.0])
    bits = np.random.default_rng(3).integers(0, 2**32, 3000, dtype=np.uint32)
    low = np.array([0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    ties = (bits[:500, None] & 0xFFFF0000 | low).ravel()
    values = np.concatenate(
        [edges.astype(np.float32), bits.view(np.float32), ties.view(np.float32)]
    )
    largest = 65000 if dtype == "float16" else 3e38
    values = values[~(np.isfinite(values) & (np.abs(values) > largest))]
    found = np.frombuffer(_narrowed(values, dtype, "p"), np.uint16)
    expected = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int16).numpy()
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found[number], expected.view(np.uint16)[number])
    assert torch.from_numpy(found.copy()).view(getattr(torch, dtype))[~number].isnan().all()


# ---------------------------------------------------------------------------- commands


@pytest.mark.feature("export and import")
def test_export_import_commands_say_what_they_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: both verbs, for people and as JSON, name step, digest, size and time."""
    digest = train(OptimizerJob(steps=2), tmp_path / "state", tmp_path)
    state, out, new = (str(tmp_path / name) for name in ("state", "out", "new"))
    assert main(["export", state, out]) == 0
    text = capsys.readouterr().out
    assert re.search(r"out: step 2, 2\d\d\.\d\d KiB in 2 files, \d+\.\d s", text)
    assert f"weights digest {digest}" in text
    assert main(["export", state, out + "2", "--json", "--no-optimizer"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], document["weights_digest"]) == (2, digest)
    assert list(document["files"]) == ["model.safetensors"]
    assert main(["import", out, "--state", new, "--memory-budget", "2MiB"]) == 0
    text = capsys.readouterr().out
    assert "step 2" in text
    assert f"luwu run --state {new} --resume" in text
    assert main(["import", out, "--state", new + "2", "--chunk", "64KiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["chunk_bytes"], document["weights_digest"]) == (64 * KIB, digest)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export STATE", "missing argument 'OUT'"),
        ("export STATE OUT MORE", "MORE' is too much"),
        ("export STATE OUT --dtype int8", "dtype: 'int8' is not one of float32, bfloat16, float16"),
        ("export STATE OUT --shard-size 0", "shard_size: must be above 0"),
        ("export STATE OUT --shard-size 4", "has no unit"),
        ("export STATE OUT --memory-budget 100KiB", "give at least 1067KiB"),
        ("export STATE OUT --step 3", "no flag --step"),
        ("export nowhere OUT", "nowhere holds no store"),
        ("export STATE STATE", "STATE exists; name a directory that does not"),
        ("import EXPORT", "missing option '--state'"),
        ("import EXPORT --state NEW --chunk 5KiB", "not a multiple of 16KiB"),
        ("import EXPORT --state NEW --memory-budget 1KiB", "give at least 129KiB"),
        ("import EXPORT --state STATE", "STATE exists; name a directory that does not"),
        ("import nowhere --state NEW", "was not written by luwu export"),
    ],
)
def test_export_import_refuse_a_wrong_command_line(
    line: str, said: str, small_export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: exit code 2, a sentence, and nothing made."""
    before = sorted(small_export.iterdir())
    words = [str(small_export / word) if word.isupper() else word for word in line.split()]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert sorted(small_export.iterdir()) == before


@pytest.fixture(scope="module")
def small_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a STATE after two steps, and its EXPORT."""
    directory = tmp_path_factory.mktemp("small")
    train(OptimizerJob(steps=2), directory / "STATE", directory)
    export(directory / "STATE", directory / "EXPORT")
    return directory

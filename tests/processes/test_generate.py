"""`workers/generate.py` and `luwu.read_from` beside a real run: what they read, and what they do
not disturb."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import luwu
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import StateError
from luwu.join.connection import join
from luwu.testing.cluster import SOURCE, Cluster
from tests.processes.jobs import Outside, text_file
from tests.unit.real_training import digest_of
from tests.unit.training_harness import one_thread  # noqa: F401 - the bits of one thread
from workers.data import Batches, load_corpus
from workers.generate import generate, main, mean_loss, parse_options
from workers.gpt import GPT, init_weights
from workers.options import Options

HELD, LAST, STEPS = 3, 19, 20
SEED, TOKENS = 3, 24
"""More tokens than the context of 16 has room for."""
SIZES = ("--layers", "3", "--width", "64", "--context", "16")
LIMIT_S = 60.0


@dataclass(frozen=True)
class Plain:
    """The same training in plain torch, undisturbed."""

    model: GPT
    """After `HELD` steps."""
    losses: list[float]
    digest: str
    """After all."""


@dataclass
class Generating:
    """`python -m workers.generate` in a process of its own."""

    process: subprocess.Popen[str]
    directory: Path

    @classmethod
    def start(cls, directory: Path, *arguments: str) -> Generating:
        path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
        environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        result = ("--result", str(directory / "found.json"))
        with (directory / "err").open("w") as err, (directory / "out").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.generate", *arguments, *result],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, env=environ,
            )  # fmt: skip
        return cls(process, directory)

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    def wait_for(self, text: str) -> None:
        end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
        while text not in self.err:
            assert self.process.poll() is None, self.err
            assert SYSTEM_CLOCK.now_ns() < end_ns, self.err
            sleep(0.01)

    def result(self) -> dict[str, Any]:
        assert self.process.wait(LIMIT_S) == 0, self.err
        found: dict[str, Any] = json.loads((self.directory / "found.json").read_text())
        return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_file(tmp_path_factory.mktemp("data"))


def job_options(data: Path) -> Options:
    return Options(
        arm="single", steps=STEPS, layers=3, width=64, context=16, batch=2, data=data, seed=0
    )


def batches_of(data: Path) -> Batches:
    return Batches(load_corpus(data).tokens, context=16, seed=0)


@pytest.fixture
def plain(data: Path) -> Plain:
    options, batches = job_options(data), batches_of(data)
    model = GPT(options.gpt(256))
    for module in model.modules():
        init_weights(module, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    held, losses = GPT(options.gpt(256)).eval(), []
    for step in range(STEPS):
        if step == HELD:
            held.load_state_dict(model.state_dict())
        x_BT, y_BT = batches.batch(step, rank=0, world_size=1, per_rank=options.batch)
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Plain(held, losses, digest_of(dict(model.named_parameters())))


@pytest.fixture
def cluster(tmp_path: Path, data: Path) -> Iterator[Cluster]:
    """A run that stops before the steps `HELD` and `LAST`."""
    outside = Outside(tmp_path / "outside")
    script = ("-m", "tests.processes.gated_train", str(tmp_path), f"{HELD},{LAST}")
    options = ("--arm", "luwu", "--steps", str(STEPS), "--data", str(data), *SIZES, "--batch", "2")
    with Cluster.run(
        tmp_path, *script, *options, "--result", str(tmp_path / "worker.json"),
        flags=["--workers", "1", "--state", str(tmp_path / "state"), "--memory-budget", "512KiB"],
        environ={**outside.environ, "CUDA_VISIBLE_DEVICES": ""},
    ) as running:  # fmt: skip
        yield running
        assert running.wait_until_clean() == []
    assert outside.leftovers() == []


def wait_at(cluster: Cluster, directory: Path, step: int) -> None:
    gate = directory / f"at-{step}"
    cluster.until(lambda: gate.exists() or None, f"step {step}")


@pytest.mark.feature("generate")
@pytest.mark.feature("read_from: the node is gone")
@torch.no_grad()
def test_a_step_is_read_while_training_goes_on(
    cluster: Cluster, plain: Plain, data: Path, tmp_path: Path
) -> None:
    """I3. Goal: the text is that of the step that was opened, its loss the bits of training's, and
    training ends with the weights of a run that nobody reads. When the node dies, the next forward
    says so, and `refresh` goes on. Method: a process generates, and this one holds the same step,
    while training goes from one gate to the next; there the node is killed."""
    wait_at(cluster, tmp_path, HELD)
    generating = Generating.start(
        tmp_path, "--join", str(tmp_path / "run"), "--prompt", "a b", "--seed", str(SEED),
        "--tokens", str(TOKENS), *SIZES,
    )  # fmt: skip
    options, batches = job_options(data), batches_of(data)

    def batch(step: int) -> Any:
        return batches.batch(step, rank=0, world_size=1, per_rank=options.batch)

    with torch.device("meta"):
        model = GPT(options.gpt(256))
    connection = replace(join(str(tmp_path / "run"), timeout_s=1), grace_s=30.0)
    with luwu.read_from(model, connection) as reading:
        generating.wait_for(f"generate.begin step={HELD} ")
        (tmp_path / f"go-{HELD}").touch()
        assert mean_loss(model, [batch(HELD)]) == plain.losses[HELD]
        wait_at(cluster, tmp_path, LAST)
        assert (reading.version, mean_loss(model, [batch(HELD)])) == (HELD, plain.losses[HELD])
        assert reading.refresh() == LAST
        assert mean_loss(model, [batch(LAST)]) == plain.losses[LAST]
        found = generating.result()
        killed = cluster.kill("node")
        cluster.wait_for("node", but=killed)
        for _ in range(2):
            with pytest.raises(StateError, match=r"does not know this reader.*open it again"):
                model(batch(LAST)[0])
        assert reading.weight_bytes.now == 0
        assert reading.refresh() == LAST
        assert mean_loss(model, [batch(LAST)]) == plain.losses[LAST]
    (tmp_path / f"go-{LAST}").touch()
    assert cluster.wait(LIMIT_S) == 0, cluster.output
    assert cluster.results()["node.json"]["weights_digest"] == plain.digest
    worker = json.loads((tmp_path / "worker.rank0.json").read_text())
    assert worker["loss"] == plain.losses

    prompt = b"a b"
    tokens = generate(
        plain.model, plain.model.config, prompt, count=TOKENS, temperature=0.8, seed=SEED
    )
    assert found["text"] == (prompt + bytes(tokens)).decode(errors="replace")
    assert found["step"] == HELD
    assert (tmp_path / "out").read_text() == found["text"] + "\n"
    assert f"generate.end step={HELD} tokens={TOKENS} tokens_per_s=" in generating.err
    # One pass for each token; at the end the root is read ahead for one that does not come.
    assert 0 <= found["bytes_read"] - TOKENS * found["model_bytes"] < found["model_bytes"] / 2
    assert found["weight_bytes_peak"] < found["model_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "x"], "say which job to read: --join RUN_DIR"),
        (["--join", "x", "--prompt", ""], "--prompt has 0 bytes"),
        (["--join", "x", "--prompt", "y" * 65], "--prompt has 65 bytes, each a token.* 1 to 64"),
        (["--join", "x", "--tokens", "0"], "--tokens must be at least 1, got 0"),
        (["--join", "x", "--temperature", "-1"], "--temperature must not be negative, got -1"),
        (["--join", "x", "--width", "0"], "--width must be at least 1"),
        (["--join", "/nowhere", "--connect-timeout", "10ms"], "nowhere did not appear within"),
    ],
)
def test_what_generate_cannot_do_is_said(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Goal: one line that says what is wrong, and an exit code."""
    monkeypatch.delenv("LUWU_CONNECT", raising=False)
    assert main(arguments) in (2, 3)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_the_connection_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: under `luwu run --join` no flag is needed."""
    monkeypatch.setenv("LUWU_CONNECT", "/somewhere/connect.json")
    options = parse_options(["--grace", "3s"])
    assert (options.join, options.grace_s, options.prompt) == (
        "/somewhere/connect.json", 3.0, b"def ",
    )  # fmt: skip

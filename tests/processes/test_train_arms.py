"""The training script's own arms as real processes: the same losses and weights from each."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.errors import StepAborted
from luwu.launch.agent import Share, own_agent_command
from luwu.launch.processes.run_directory import RunDirectory
from luwu.testing.cluster import clean_environ
from tests.processes.jobs import ON_THE_CPU, text_file
from workers.arms import SingleArm
from workers.data import Batches, load_corpus
from workers.options import parse_options
from workers.train import main
from workers.train import train as run_loop

WORKERS = 2
STEPS = 3
DEADLINE_S = 150

JOB = [
    "--steps", str(STEPS), "--layers", "2", "--width", "32", "--context", "16", "--batch", "2",
    "--log-every", "1",
]  # fmt: skip


def train(arm: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Run an arm to its end; returns the results of its ranks."""
    command = [sys.executable]
    if arm == "single":
        options = ("--global-workers", str(WORKERS), *options)
    else:
        run = RunDirectory.create(folder / f"{arm}.run")
        command = own_agent_command(run, "", Share.of_all(WORKERS), policy="stop", restarts=0)
    command += ["-m", "workers.train", "--arm", arm, *JOB, *options]
    command += ["--data", str(text_file(folder)), "--result", str(folder / f"{arm}.json")]
    with subprocess.Popen(
        command, cwd=folder, env={**clean_environ(), **ON_THE_CPU, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the launcher and its ranks
            raise
    said = [log.read_text() for log in sorted(folder.glob(f"{arm}.run/logs/*"))]
    assert process.returncode == 0, "".join([output, *said])
    ranks = 1 if arm == "single" else WORKERS
    return [json.loads((folder / f"{arm}.rank{rank}.json").read_text()) for rank in range(ranks)]


def mean_loss(results: list[dict[str, Any]]) -> list[float]:
    return [float(np.mean(losses)) for losses in zip(*(r["loss"] for r in results), strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="plain", marks=pytest.mark.slow),
        pytest.param(
            ("--tied", "--dropout", "0.1", "--checkpointing", "nonreentrant"),
            id="tied-dropout-checkpointing",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_arms_compute_the_same(tmp_path: Path, options: tuple[str, ...]) -> None:
    """I4. Goal: fsdp, ddp and single are three ways to one result.
    Method: train each in real processes. With two workers the mean is a + b over 2, exact in any
    order, and shards of width 32 are whole vectors of the update kernel; so not only losses
    agree: the weights are the same bits."""
    single = train("single", tmp_path, *options)
    fsdp = train("fsdp", tmp_path, *options)
    ddp = train("ddp", tmp_path, *options)

    for results in (fsdp, ddp):
        np.testing.assert_allclose(mean_loss(results), mean_loss(single), rtol=0, atol=1e-5)
        assert results[0]["weights_digest"] == single[0]["weights_digest"]
        assert results[1]["weights_digest"] is None
        assert results[0]["grad_norm"]["0"] == pytest.approx(single[0]["grad_norm"]["0"], rel=1e-5)
        # each fsdp rank holds its half of the moments, each ddp rank all of them
        share = 2 if results is fsdp else 1
        assert results[0]["worker_optimizer_bytes"] * share == pytest.approx(
            single[0]["worker_optimizer_bytes"], rel=0.01
        )
        assert sum(r["tokens"] for r in results) == single[0]["tokens"] == 2 * 2 * 16 * STEPS
    for result in (*single, *fsdp, *ddp):
        assert len(result["step_seconds"]) == STEPS
        assert result["private_bytes_max"] > 0
        assert result["compute_threads"] == 1
        assert result["data_digest"] == load_corpus(text_file(tmp_path)).digest


@pytest.mark.parametrize("workers", [1, pytest.param(WORKERS, marks=pytest.mark.slow)])
def test_offloaded_fsdp_computes_what_fsdp_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """I4. Goal: where the shards lie changes no bit; without a GPU they lie there anyway, so this
    shows that the arm runs, clips and counts its state."""
    options = ("--max-grad-norm", "1.0")
    run = train if workers > 1 else here(monkeypatch)
    fsdp, offload = (run(arm, tmp_path, *options) for arm in ("fsdp", "fsdp_offload"))
    assert len(fsdp) == len(offload) == workers
    for name in ("loss", "grad_norm", "weights_digest", "worker_optimizer_bytes"):
        assert [each[name] for each in offload] == [each[name] for each in fsdp]


def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """What `train` does, with one rank, in this process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def run(arm: str, folder: Path, *options: str) -> list[dict[str, Any]]:
        data, result = str(text_file(folder)), folder / f"{arm}.json"
        line = ["--arm", arm, *JOB, *options, "--data", data, "--result", str(result)]
        assert main(line) == 0
        return [json.loads((folder / f"{arm}.rank0.json").read_text())]

    return run


@pytest.mark.slow
def test_bfloat16_arms_agree_within_rounding(tmp_path: Path) -> None:
    """The arms round sums of bfloat16 gradients in different places: 8 bits of mantissa."""
    options = ("--dtype", "bfloat16", "--max-grad-norm", "1.0")
    single = mean_loss(train("single", tmp_path, *options))
    for arm in ("fsdp", "ddp"):
        losses = mean_loss(train(arm, tmp_path, *options))
        assert losses[0] == single[0]  # nothing is summed before the first update
        np.testing.assert_allclose(losses, single, rtol=2**-8)


def test_fsdp_may_start_alone_and_single_may_not_start_in_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = here(monkeypatch)
    (fsdp,), (single,) = (run(arm, tmp_path) for arm in ("fsdp", "single"))
    assert fsdp["loss"] == single["loss"]
    assert fsdp["weights_digest"] == single["weights_digest"]

    monkeypatch.setenv("WORLD_SIZE", "2")
    capsys.readouterr()
    assert main(["--arm", "single", *JOB]) == 2
    assert "one process, but 2 were started; start it alone" in capsys.readouterr().err


def test_too_little_data_ends_with_code_2_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("short")
    assert main(["--arm", "single", *JOB, "--data", str(tmp_path / "short.txt")]) == 2
    assert capsys.readouterr().err.startswith("ConfigError: the data has 5 tokens, too few")
    tokens = load_corpus(tmp_path / "short.txt").tokens
    assert Batches(tokens, context=4, seed=0).sample(0)[0].tolist() == list(b"shor")


def test_lost_step_is_replayed_from_where_the_error_says(tmp_path: Path) -> None:
    """Goal: the loop goes back to `error.step`, also when the loss shows at the end of the run.
    Method: an arm that undoes its last update when told to lose it."""

    class ForgetfulArm(SingleArm):
        """Loses step 1 in `step`, once, and step 2 in `finish`, once."""

        lose_in_step, lose_in_finish = True, True

        def step(self, *, want_norm: bool) -> float | None:
            self.step_number = getattr(self, "step_number", -1) + 1
            if self.step_number == 1 and self.lose_in_step:
                self.lose_in_step, self.step_number = False, 0
                self.optimizer.zero_grad()
                raise StepAborted(1, "test")
            self.before = [p.detach().clone() for p in self.module.parameters()]
            self.optimizer_before = copy.deepcopy(self.optimizer.state_dict())
            return super().step(want_norm=want_norm)

        def finish(self) -> None:
            if self.lose_in_finish:
                self.lose_in_finish, self.step_number = False, STEPS - 2
                with torch.no_grad():
                    for parameter, values in zip(
                        self.module.parameters(), self.before, strict=True
                    ):
                        parameter.copy_(values)
                self.optimizer.load_state_dict(self.optimizer_before)
                raise StepAborted(STEPS - 1, "test")

    options = parse_options(["--arm", "single", *JOB, "--dropout", "0.1", "--log-every", "0"])
    corpus = load_corpus(text_file(tmp_path))
    runs = []
    for kind in (SingleArm, ForgetfulArm):
        arm = kind(options)
        arm.build(options.gpt(corpus.vocab))
        batches = Batches(corpus.tokens, context=options.context, seed=options.seed)
        progress = run_loop(arm, batches, options)
        runs.append((progress.loss, progress.aborts_count, arm.weights_digest()))
    assert runs[0][1] == 0
    assert runs[1][1] == 2
    assert runs[0][0] == runs[1][0]
    assert runs[0][2] == runs[1][2]

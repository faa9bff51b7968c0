"""State in fewer bits: the steps it saves where the disk limits, and the loss it costs.

Metric:   seconds of a step of `luwu compare` with an emulated disk, where the state does not fit in
          memory: with gradients that are used as they come, and with clipping, where sums that do
          not fit either are spilled. Bytes that the kernel counts, per parameter and step. Mean
          loss of the last steps of four small jobs, by seed.
Ceiling:  the bytes of a page: 12 of each parameter in float32, 6.125 with 8-bit moments
Bound:    1.7 times float32's steps per second with 8-bit moments, 1.5 where sums are spilled; a
          loss within two standard deviations of float32's over the seeds
Checked:  digests of a first seed, trained twice; the state after the steps
Left out: the first two steps and the last one: pages are in memory, or are written later
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

import luwu
from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import temporary_directory
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from workers.data import load_corpus
from workers.gpt import GPT, GPTConfig

MODES: Final = (
    ("float32", "float32"), ("float32", "bfloat16"), ("float32", "int8"), ("bfloat16", "int8"),
)  # fmt: skip
"""(masters, moments)"""
STORED_BYTES: Final = dict(zip(MODES, (12.0, 8.0, 6.125, 4.125), strict=True))
SPEED: Final = {
    "layers": 6, "width": 512, "context": 32, "batch": 2, "steps": 8, "workers": 1,
    "dtype": "bfloat16", "disk-rate": "150MB/s",
}  # fmt: skip
CASES: Final = {
    "streamed": {"memory-budget": "96MiB"},
    "spilled": {"memory-budget": "96MiB", "max-grad-norm": "1.0"},
}
LAST_STEPS: Final = 30
MEANINGS: Final = {
    "int8_speed": "steps per second with 8-bit moments / float32's, gradients streamed; 1.7",
    "int8_speed_spilled": "the same where sums are spilled to the disk; 1.5",
    "int8_bfloat16_speed": "with masters in bfloat16 besides, gradients streamed",
    "bfloat16_speed": "with moments in bfloat16, gradients streamed",
    "rows_outside": "of 12 (job, mode), those whose mean loss is further from float32's than twice "
    "its standard deviation; 0",
}


class Trained(NamedTuple):
    """One run of a job."""

    losses: list[float]
    seconds: float
    """Time of all steps."""

    @property
    def end(self) -> float:
        """The mean loss of the last steps."""
        return statistics.fmean(self.losses[-LAST_STEPS:])


class Job(NamedTuple):
    """A model that learns something in a few hundred steps."""

    model: Callable[[], nn.Module]
    optimizer: str
    arguments: dict[str, Any]
    steps: int
    loss: Callable[[nn.Module, torch.Generator], Tensor]
    """The loss of one step, on samples drawn from the generator."""


def main() -> int:
    """Run the program; the exit code."""
    arguments = harness.flags("state_dtypes", __doc__ or "").parse_args()
    repeats = 1 if arguments.smoke else arguments.repeats or 3
    rows = []
    with temporary_directory() as name:
        for case, given in CASES.items():
            runs: dict[tuple[str, str], list[dict[str, Any]]] = {mode: [] for mode in MODES}
            for _ in range(repeats):
                for mode in MODES:
                    runs[mode].append(_speed(Path(name), mode, given, is_smoke=arguments.smoke))
            rows += [_speed_row(case, mode, runs[mode]) for mode in MODES]
    seeds = range(1 if arguments.smoke else 3)
    for job, made in jobs().items():
        trained = {mode: [_train(made, mode, seed, arguments.smoke) for seed in seeds]
                   for mode in MODES}  # fmt: skip
        again = _train(made, MODES[-1], 0, arguments.smoke)
        if again.losses != trained[MODES[-1]][0].losses:
            raise LuwuError(f"{job}: the same seed, and other losses")
        rows += [_loss_row(job, mode, trained[mode], trained[MODES[0]]) for mode in MODES]
    harness.write(
        arguments.json,
        harness.document("state_dtypes", rows, _claims(rows), claims_meaning=MEANINGS),
    )
    return 0


# ---------------------------------------------------------------------- speed


def _speed(
    directory: Path, mode: tuple[str, str], case: dict[str, str], *, is_smoke: bool
) -> dict[str, Any]:
    """One run: seconds of each step, and bytes read and written for each parameter and step."""
    master, state = mode
    given = SPEED | case | {"master-dtype": master, "state-dtype": state}
    if is_smoke:
        given |= {"layers": 2, "width": 64}
    made, result = directory / "state", directory / "result.json"
    command = [sys.executable, "-m", "luwu", "compare", "--arms", "luwu"]
    for flag, value in (given | {"state": made, "json": result}).items():
        command += [f"--{flag}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise LuwuError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    found = json.loads(result.read_text())
    shutil.rmtree(made)
    (arm,) = found["arms"]
    moved = arm["disk_bytes_kernel"] or arm["disk_bytes"]
    parameters, steps = found["job"]["parameters"], given["steps"]
    return {
        "seconds": arm["step_seconds"][2:-1], "space": arm["disk_space_bytes"],
        "read": moved["read"] / parameters / steps,
        "written": moved["written"] / parameters / (steps + 1),  # the first weights, too
        "parameters": parameters,
    }  # fmt: skip


def _speed_row(case: str, mode: tuple[str, str], runs: list[dict[str, Any]]) -> Row:
    medians = [harness.median(run["seconds"]) for run in runs]
    found = harness.row(
        f"{case}, {'/'.join(mode)}", "luwu", medians, workers=1, dtype="bfloat16", switch=True,
        label="emulated", page_bytes=STORED_BYTES[mode],
        read_bytes=harness.median([run["read"] for run in runs]),
        written_bytes=harness.median([run["written"] for run in runs]),
        parameters=runs[0]["parameters"],
    )  # fmt: skip
    say(
        f"{found['case']}: {harness.median(medians):.2f} s a step, read {found['read_bytes']:.2f} "
        f"and written {found['written_bytes']:.2f} bytes a parameter"
    )
    return found


# ---------------------------------------------------------------------- loss


def jobs() -> dict[str, Job]:
    """Four of them, with four optimizers."""
    return {
        "text": Job(
            lambda: GPT(GPTConfig(layers=2, width=64, heads=2, context=32, vocab=256)), "AdamW",
            {"lr": 2e-3}, 300, _text_loss(),
        ),
        "teacher": Job(_mlp, "Adam", {"lr": 1e-3, "betas": (0.9, 0.999)}, 300, _teacher_loss()),
        "images": Job(_convolutions, "SGD", {"lr": 0.05, "momentum": 0.9}, 200, _image_loss()),
        "codes": Job(_mlp, "Lion", {"lr": 2e-4}, 300, _code_loss),
    }  # fmt: skip


def _text_loss() -> Callable[[nn.Module, torch.Generator], Tensor]:
    tokens = torch.tensor(load_corpus(None).tokens[:2_000_000].tolist(), dtype=torch.long)

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        starts = torch.randint(0, len(tokens) - 33, (16,), generator=generator)
        samples = torch.stack([tokens[at : at + 33] for at in starts.tolist()])
        logits = model(samples[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())

    return loss


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)
    )


def _teacher_loss() -> Callable[[nn.Module, torch.Generator], Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(99)
        teacher = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 64))

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        x = torch.randn(64, 64, generator=generator)
        with torch.no_grad():
            y = teacher(x)
        return nn.functional.mse_loss(model(x), y)

    return loss


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def _image_loss() -> Callable[[nn.Module, torch.Generator], Tensor]:
    kinds = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(98))

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        labels = torch.randint(0, 10, (32,), generator=generator)
        noise = torch.randn(32, 3, 16, 16, generator=generator)
        return nn.functional.cross_entropy(model(kinds[labels] * 0.5 + noise), labels)

    return loss


def _code_loss(model: nn.Module, generator: torch.Generator) -> Tensor:
    """The model finds what was hidden: signs of sums of three inputs."""
    x = torch.randn(64, 64, generator=generator)
    y = x + x.roll(1, 1) + x.roll(5, 1)
    return nn.functional.binary_cross_entropy_with_logits(model(x), (y > 0).float())


def _train(job: Job, mode: tuple[str, str], seed: int, is_smoke: bool) -> Trained:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    luwu.init_local()
    model = job.model()
    luwu.fully_shard(model)
    optimizer = getattr(luwu.optim, job.optimizer)(
        model.parameters(), **job.arguments, master_dtype=mode[0], state_dtype=mode[1]
    )
    losses: list[float] = []
    start_ns = SYSTEM_CLOCK.now_ns()
    for _ in range(5 if is_smoke else job.steps):
        loss = job.loss(model, generator)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    luwu.finish()
    return Trained(losses, seconds)


def _loss_row(job: str, mode: tuple[str, str], runs: list[Trained], exact: list[Trained]) -> Row:
    ends, expected = [run.end for run in runs], [run.end for run in exact]
    deviation = statistics.stdev(expected) if len(expected) > 1 else 0.0
    off = statistics.fmean(ends) - statistics.fmean(expected)
    steps = len(runs[0].losses)
    every = max(1, steps // 30)
    curve = [
        round(statistics.fmean(loss for run in runs for loss in run.losses[at : at + every]), 4)
        for at in range(0, steps, every)
    ]
    say(
        f"{job}, {'/'.join(mode)}: loss {statistics.fmean(ends):.4f}, {off:+.4f} of float32's, "
        f"whose deviation is {deviation:.4f}"
    )
    return harness.row(
        f"{job}, {'/'.join(mode)}", "luwu", [run.seconds / steps for run in runs], workers=1,
        dtype="float32", switch=True, losses=ends, minus_float32=off, float32_deviation=deviation,
        curve=curve, is_within=mode == MODES[0] or abs(off) <= 2 * deviation,
    )  # fmt: skip


def _claims(rows: list[Row]) -> dict[str, float]:
    seconds = {row["case"]: row["seconds_median"] for row in rows if "page_bytes" in row}

    def speed(case: str, mode: int) -> float:
        return seconds[f"{case}, float32/float32"] / seconds[f"{case}, {'/'.join(MODES[mode])}"]

    return {
        "int8_speed": speed("streamed", 2),
        "int8_speed_spilled": speed("spilled", 2),
        "int8_bfloat16_speed": speed("streamed", 3),
        "bfloat16_speed": speed("streamed", 1),
        "rows_outside": sum(not row.get("is_within", True) for row in rows),
    }


if __name__ == "__main__":
    raise SystemExit(main())

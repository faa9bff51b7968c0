"""Train a small GPT on real text: one script for every arm.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m workers.train --arm fsdp
    python -m workers.train --arm single --global-workers 2

Step k reads the k-th batches, seeds the random generators from (seed, step, rank), computes, and
updates; nothing else carries over from step to step. So a step that was lost is replayed by going
back to it. `loss[k]` is this worker's loss before update k: compare their mean over the ranks.
"""

from __future__ import annotations

import atexit
import gc
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError, StepAborted
from luwu.base.events import Recorder
from luwu.base.process_memory import private_bytes
from luwu.base.quantities import format_bytes
from luwu.base.seeds import derive
from workers.arms import Arm, LuwuArm, SingleArm
from workers.data import Batches, Corpus, load_corpus
from workers.options import Options, env_int, parse_options


@dataclass(slots=True)
class Progress:
    """Measurements of the run so far; a replayed step overwrites its entry."""

    loss: dict[int, float] = field(default_factory=dict)
    step_seconds: dict[int, float] = field(default_factory=dict)
    step_ended_ns: dict[int, int] = field(default_factory=dict)
    """End of each step, by the machine's monotonic clock."""
    grad_norm: dict[int, float] = field(default_factory=dict)
    """Norms of the steps that were printed or clipped."""

    aborts_count: int = 0
    finish_seconds: float = 0.0
    private_bytes_max: int | None = None
    """Largest sample of memory that is not a file's or another process's, after a backward."""


def make_arm(options: Options, *, data_digest: str) -> Arm:
    """Join the run as a worker of the chosen arm."""
    if options.arm == "luwu":
        return LuwuArm(options, data_digest=data_digest)
    if options.arm == "single":
        return SingleArm(options)
    from workers.baselines import BASELINES  # torch's half of it takes a second to import

    return BASELINES[options.arm](options)


def main(
    arguments: Sequence[str] | None = None, make: Callable[..., Arm] = make_arm
) -> int:  # fmt: skip
    """Train as the command line says; returns the exit code. `make` joins the run as its arm."""
    atexit.register(gc.freeze)  # else Python destroys all that torch made: 0.4 s of a processor
    try:
        options = parse_options(arguments)
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(max(1, env_int("OMP_NUM_THREADS", 1)))
        corpus = load_corpus(options.data)
        batches = Batches(corpus.tokens, context=options.context, seed=options.seed)
        arm = make(options, data_digest=corpus.digest)
        arm.build(options.gpt(corpus.vocab))
        progress = train(arm, batches, options)
        weights_digest = arm.weights_digest()
        write_result(arm, corpus, progress, weights_digest, options)
        arm.leave()
    except LuwuError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def train(arm: Arm, batches: Batches, options: Options) -> Progress:
    """Run the remaining steps; goes back where a step was lost."""
    progress = Progress()
    recorder = Recorder(role="worker")
    step = arm.first_step
    finished = False
    while not finished:
        try:
            if step < options.steps:
                train_step(arm, batches, options, progress, step)
                report(arm, recorder, options, progress, step)
                step += 1
            else:
                started_ns = SYSTEM_CLOCK.now_ns()
                arm.finish()
                progress.finish_seconds = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
                finished = True
        except StepAborted as error:
            progress.aborts_count += 1
            step = error.step
    return progress


def train_step(arm: Arm, batches: Batches, options: Options, progress: Progress, step: int) -> None:
    """Forward, backward, update. Most arms compute one batch; the single arm every worker's."""
    started_ns = SYSTEM_CLOCK.now_ns()
    losses = []
    for rank in arm.batch_ranks:
        torch.manual_seed(derive(options.seed, "step", step, rank))
        x_BT, y_BT = batches.batch(
            step, rank=rank, world_size=arm.world_size, per_rank=options.batch
        )
        logits_BTV = arm.module(x_BT.to(arm.device))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), y_BT.to(arm.device).flatten())
        loss.backward()
        losses.append(loss.detach())
    taken = private_bytes(os.getpid())
    if taken is not None:
        progress.private_bytes_max = max(taken, progress.private_bytes_max or 0)
    grad_norm = arm.step(want_norm=_printed(options, step))
    progress.loss[step] = math.fsum(float(each) for each in losses) / len(losses)
    if grad_norm is not None:
        progress.grad_norm[step] = grad_norm
    ended_ns = SYSTEM_CLOCK.now_ns()
    progress.step_seconds[step] = (ended_ns - started_ns) / 1e9
    progress.step_ended_ns[step] = ended_ns


def report(arm: Arm, recorder: Recorder, options: Options, progress: Progress, step: int) -> None:
    """Rank 0 prints a line: step, loss of its batch, norm, peak memory, tokens/s of the job."""
    if arm.rank != 0 or not _printed(options, step):
        return
    since = max(arm.first_step, step - options.log_every + 1)
    recent = [progress.step_seconds[k] for k in range(since, step + 1)]
    tokens = len(recent) * arm.world_size * options.batch * options.context
    memory = progress.private_bytes_max
    loss, grad_norm = progress.loss[step], progress.grad_norm.get(step, math.nan)
    arm.log(loss=loss, grad_norm=grad_norm)
    recorder.event(
        "train.step",
        step=step,
        loss=loss,
        grad_norm=grad_norm,
        memory="unknown" if memory is None else format_bytes(memory).replace(" ", ""),
        tps=round(tokens / sum(recent)),
    )


def write_result(
    arm: Arm, corpus: Corpus, progress: Progress, weights_digest: str | None, options: Options
) -> None:
    """Write this rank's result file, whole or not at all."""
    path = options.result_path(arm.rank)
    if path is None:
        return
    steps = sorted(progress.loss)
    tokens_per_step = len(arm.batch_ranks) * options.batch * options.context
    cuda = arm.device.type == "cuda"
    result: dict[str, Any] = {
        "arm": options.arm,
        "rank": arm.rank,
        "world_size": arm.world_size,
        "first_step": arm.first_step,
        "measured_steps": steps,
        "steps": options.steps,
        "loss": [progress.loss[k] for k in steps],
        "step_seconds": [progress.step_seconds[k] for k in steps],
        "step_ended_ns": [progress.step_ended_ns[k] for k in steps],
        "grad_norm": {str(k): progress.grad_norm[k] for k in sorted(progress.grad_norm)},
        "finish_seconds": progress.finish_seconds,
        "aborts_count": progress.aborts_count,
        "tokens": len(steps) * tokens_per_step,
        "private_bytes_max": progress.private_bytes_max,
        "device_bytes_max": torch.cuda.max_memory_allocated(arm.device) if cuda else None,
        "parameters_count": arm.parameters_count(),
        "data_digest": corpus.digest,
        "weights_digest": weights_digest,
        "seed": options.seed,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name(arm.device) if cuda else "cpu",
        "cpu": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "compute_threads": torch.get_num_threads(),
        "torch_version": torch.__version__,
        **arm.measurements(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _printed(options: Options, step: int) -> bool:
    every = options.log_every
    return every > 0 and (step % every == 0 or step == options.steps - 1)


if __name__ == "__main__":
    sys.exit(main())

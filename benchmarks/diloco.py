"""Local steps and averages in rounds (luwu.DiLoCo) beside exact steps, over the same slow links.

Metric:   tokens/s of `workers/train.py` with 4 workers, each on an emulated link of 100 Mbit/s in
          each direction; payload on a worker's link per token; the mean loss over all workers in
          the last 20 steps, after equal tokens. Medians, and the spread over seeds.
Ceiling:  of a round: local steps (their median in the same run), and the bytes of the round over
          the link's rate, up and then down
Bound:    0.9 of it; bytes per token 1/H of the exact mode's, and 5 %
Checked:  the first seed is trained twice, with one digest
Left out: the first weights; the first round, in which memory is taken
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.training import temporary_directory
from luwu.base.errors import LuwuError
from luwu.testing.cluster import Cluster

LINK_BYTES_PER_S: Final = 12.5e6
WORKERS: Final = 4
CONTEXT: Final = 64
BATCH: Final = 8
TOKENS: Final = CONTEXT * BATCH
"""Tokens of one worker in one step."""
COMPUTE_MS: Final = 15
"""Least time of each of 4 units' forward, and of its backward, so that workers compute as on hosts
of their own, though they share processors here."""
LAST_STEPS: Final = 20
MEANINGS: Final = {
    "tokens_over_predicted": "tokens/s of diloco / what compute, H and bytes allow; at least 0.9",
    "bytes_over_exact_per_round": "bytes per token of diloco * H / those of the exact mode; 1.05",
    "tokens_over_exact": "tokens/s of diloco / tokens/s of the exact mode",
    "loss_minus_exact": "mean loss of diloco - that of the exact mode, after equal tokens",
    "exact_loss_spread": "largest - smallest loss of the exact mode over the seeds",
}


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("diloco", __doc__ or "")
    parser.add_argument("--local-steps", type=int, default=20, help="steps in a round (20)")
    parser.add_argument("--steps", type=int, default=160, help="steps of a run (160)")
    arguments = parser.parse_args()
    seeds = range(1 if arguments.smoke else 3)
    steps = 8 if arguments.smoke else arguments.steps
    every = 2 if arguments.smoke else arguments.local_steps
    with temporary_directory() as name:
        found = {
            arm: [_train(Path(name), arm, seed, steps, every) for seed in seeds]
            for arm in ("diloco", "luwu")
        }
        again = _train(Path(name), "diloco", 0, steps, every, name="again")
    if again["digest"] != found["diloco"][0]["digest"]:
        raise LuwuError("the same seed, and other weights")
    diloco, exact = (_row(arm, runs, every) for arm, runs in found.items())
    harness.write(
        arguments.json,
        harness.document(
            "diloco", [diloco, exact], _claims(diloco, exact, every), claims_meaning=MEANINGS
        ),
    )
    return 0


def _train(
    directory: Path, arm: str, seed: int, steps: int, every: int, name: str = ""
) -> dict[str, Any]:
    """One run: tokens/s, bytes per token on a worker's link, loss, and what a round allows."""
    name = name or f"{arm}-{seed}"
    script = {
        "arm": arm, "seed": seed, "steps": steps, "local-steps": every, "layers": 3, "width": 128,
        "context": CONTEXT, "batch": BATCH, "compute-ms": COMPUTE_MS,
        "result": directory / f"{name}.json",
    }  # fmt: skip
    flags = {
        "workers": WORKERS, "link": f"worker={LINK_BYTES_PER_S / 1e6}MB/s",
        "durability": "process", "state": directory / f"{name}.state",
    }  # fmt: skip
    command = ["-m", "workers.train", *_as_flags(script)]
    with Cluster.run(directory, *command, flags=_as_flags(flags), name=name) as cluster:
        if cluster.wait(1200) != 0:
            raise LuwuError(f"{name} failed:\n{cluster.told}")
        digest = cluster.results()["node.json"]["weights_digest"]
    workers = [
        json.loads((directory / f"{name}.rank{rank}.json").read_text()) for rank in range(WORKERS)
    ]
    times = zip(*(worker["step_seconds"] for worker in workers), strict=True)
    counted = [harness.median(each) for each in times][every:]
    local = [s for step, s in enumerate(counted, start=every) if (step + 1) % every]
    sent = sum(sum(worker["network_bytes"].values()) for worker in workers) / WORKERS
    bytes_of_model = 4 * workers[0]["parameters_count"]
    allowed_s = every * harness.median(local) + 2 * bytes_of_model / LINK_BYTES_PER_S
    last = [loss for worker in workers for loss in worker["loss"][-LAST_STEPS:]]
    result = {
        "digest": digest,
        "seconds": counted,
        "tokens_per_s": WORKERS * TOKENS * len(counted) / sum(counted),
        "allowed_tokens_per_s": WORKERS * TOKENS * every / allowed_s,
        "bytes_per_token": (sent - bytes_of_model) / (TOKENS * steps),
        "loss": sum(last) / len(last),
    }
    say(
        f"{name}: {result['tokens_per_s']:.0f} tokens/s, {result['bytes_per_token']:.0f} bytes a "
        f"token, loss {result['loss']:.3f}"
    )
    return result


def _as_flags(values: dict[str, Any]) -> list[str]:
    pairs = ((f"--{key}", str(value)) for key, value in values.items())
    return [part for pair in pairs for part in pair]


def _row(arm: str, runs: list[dict[str, Any]], every: int) -> Row:
    losses = [run["loss"] for run in runs]
    return harness.row(
        f"H = {every}" if arm == "diloco" else "exact", arm,
        [s for run in runs for s in run["seconds"]], workers=WORKERS, dtype="float32", switch=True,
        label="emulated", losses=losses, loss=sum(losses) / len(losses),
        tokens_per_s=harness.median([run["tokens_per_s"] for run in runs]),
        tokens_over_predicted=harness.median(
            [run["tokens_per_s"] / run["allowed_tokens_per_s"] for run in runs]
        ),
        bytes_per_token=harness.median([run["bytes_per_token"] for run in runs]),
    )  # fmt: skip


def _claims(diloco: Row, exact: Row, every: int) -> dict[str, float]:
    return {
        "tokens_over_predicted": diloco["tokens_over_predicted"],
        "bytes_over_exact_per_round": every * diloco["bytes_per_token"] / exact["bytes_per_token"],
        "tokens_over_exact": diloco["tokens_per_s"] / exact["tokens_per_s"],
        "loss_minus_exact": diloco["loss"] - exact["loss"],
        "exact_loss_spread": max(exact["losses"]) - min(exact["losses"]),
    }


if __name__ == "__main__":
    raise SystemExit(main())

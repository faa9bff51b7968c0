"""`workers/train.py` without an exchange: the same model, data and loop, and no update at all.

    python -m benchmarks.compute_only --arm ddp --steps 5 --result FILE.json

What a step costs where gradients and weights cost nothing. Workers wait for each other after each
step, as in training. Else some would be steps ahead of the others, whose last steps would be short,
since they have the cores for themselves. `--arm` is there because the options are those of the
script; it is not used.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from workers.arms import Arm, initialised
from workers.baselines import join_process_group
from workers.gpt import GPTConfig
from workers.options import Options
from workers.train import main


class ComputeOnlyArm(Arm):
    """Every worker alone with its batch: forward and backward."""

    def __init__(self, options: Options, *, data_digest: str) -> None:
        super().__init__(options)
        self.rank, self.world_size, self.device = join_process_group()

    def build(self, config: GPTConfig) -> None:
        self.module = initialised(config, self.options, self.device)
        # The base class wants an optimizer; this one changes nothing.
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)

    def step(self, *, want_norm: bool) -> None:
        """Forget the gradients, and wait for the others."""
        self.optimizer.zero_grad()
        dist.barrier()

    def measurements(self) -> dict[str, Any]:
        return {}

    def weights_digest(self) -> None:
        """None: nothing was trained."""


if __name__ == "__main__":
    sys.exit(main(make=ComputeOnlyArm))

"""A training script that writes down which samples each rank reads for which step.

    luwu run ... -m tests.processes.sampling_train DIRECTORY

The file `go` of the directory is a gate, as that of `tests/light_job.py`. A rank that is started
again waits for the file `again`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

import luwu
from tests.light_job import POLL_S, is_open, sleep, wait_for

SAMPLES, EPOCHS = 500, 2
GATE = 60
"""The first step that the gate may hold up."""


def check_counted(directory: Path, made_by: Sequence[Sequence[int]]) -> None:
    """Each epoch has each sample once, in the steps that these ranks made: a step counts what its
    ranks read for it last."""
    read: dict[tuple[int, int], list[int]] = {}
    for rank in set().union(*made_by):
        for line in (directory / f"read-{rank}").read_text().splitlines():
            step, indices = json.loads(line)
            read[step, rank] = indices
    shares = (read[step, rank] for step, ranks in enumerate(made_by) for rank in ranks)
    stream = [sample for share in shares for sample in share]
    for epoch in range(EPOCHS):
        counted = Counter(stream[epoch * SAMPLES : (epoch + 1) * SAMPLES])
        assert counted == Counter(range(SAMPLES))


def main(here: Path) -> None:
    """Train for some epochs."""
    own = here / f"read-{os.environ['RANK']}"
    if own.exists():
        wait_for(here / "again")
    luwu.init()
    model = luwu.fully_shard(torch.nn.Linear(8, 8))
    optimizer = luwu.optim.SGD(model.parameters(), lr=1e-3)
    sampler = luwu.ElasticSampler(SAMPLES, batch_size=4, seed=1)
    luwu.attach("sampler", sampler)
    while True:
        try:
            while sampler.epoch < EPOCHS:
                for indices in sampler.batches():
                    step = optimizer.next_step
                    with own.open("a") as read:
                        read.write(json.dumps([step, indices]) + "\n")
                    loss = model(torch.ones(4, 8)).square().mean()
                    sleep(0.05)
                    while not is_open(here / "go", GATE, step):  # the step before is decided
                        sleep(POLL_S)
                    loss.backward()
                    optimizer.step()
            luwu.finish()
            return
        except luwu.StepAborted:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""`workers/train.py` without its records: they grow with each step, and a soak looks for growth."""

from __future__ import annotations

import sys

import torch

from luwu.base.errors import StepAborted
from workers.data import Batches, load_corpus
from workers.options import parse_options
from workers.train import Progress, make_arm, train_step


def main() -> None:
    """Train as the command line says; what is measured of a step is dropped with it."""
    options = parse_options(sys.argv[1:])
    torch.set_num_threads(1)
    corpus = load_corpus(options.data)
    batches = Batches(corpus.tokens, context=options.context, seed=options.seed)
    arm = make_arm(options, data_digest=corpus.digest)
    arm.build(options.gpt(corpus.vocab))
    step, is_finished = arm.first_step, False
    while not is_finished:
        try:
            if step < options.steps:
                train_step(arm, batches, options, Progress(), step)
                step += 1
            else:
                arm.finish()
                is_finished = True
        except StepAborted as error:
            step = error.step
    arm.leave()


if __name__ == "__main__":
    main()

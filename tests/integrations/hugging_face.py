"""Small models of transformers, trained by workers in threads and, for comparison, in plain torch.

`docs/examples/huggingface/finetune.py` makes the models and the batches of both.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import reference
from tests.processes.jobs import text_file
from workers.data import Batches, load_corpus


class Later:
    """A module that is imported when a name of it is first used.

    Every test process collects every module: importing these there takes it eight seconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest, as it looks for fixtures
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


sys.path.append(str(Path(__file__).resolve().parents[2] / "docs/examples/huggingface"))
finetune = Later("finetune")
luwu_trainer = Later("luwu.integrations.transformers")
peft = Later("peft")
transformers = Later("transformers")

WORLD_SIZE = 2
needs_hf = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "peft", "transformers")),
    reason="transformers, accelerate and peft are not installed (the extra `hf`)",
)
"""Of a module whose tests need them."""
Change = Callable[[nn.Module], object]


def unchanged(model: nn.Module) -> None:
    """Leave the model as it is."""


def make_batches(directory: Path, options: argparse.Namespace) -> Batches:
    """Batches of a text that is the same on every machine."""
    corpus = load_corpus(text_file(directory))
    return Batches(corpus.tokens, context=options.context, seed=options.seed)


def through_a_node(
    directory: Path, options: argparse.Namespace, *, change: Change = unchanged,
    at_end: Callable[[nn.Module], Any] = unchanged, prefetch_units: int = 2,
) -> tuple[list[float], list[Any], Any]:  # fmt: skip
    """Train with two workers; the mean losses, what `at_end(model)` gave each rank before the
    end, and the counters of rank 0."""
    batches = make_batches(directory, options)
    models = [finetune.make_model(options) for _ in range(WORLD_SIZE)]
    for model in models:  # not in the threads, which share a generator
        change(model)

    def work(rank: int) -> Any:
        model = models[rank]
        finetune.shard(model, options)
        found: list[Any] = []
        losses = finetune.train(options, batches, model, at_end=lambda: found.append(at_end(model)))
        return losses, found[-1], luwu.session().nic.counters

    results = in_cluster(
        directory, work, world_size=WORLD_SIZE, prefetch_units=prefetch_units
    ).results
    means = [sum(each) / WORLD_SIZE for each in zip(*(r[0] for r in results), strict=True)]
    return means, [result[1] for result in results], results[0][2]


def alone(
    directory: Path, options: argparse.Namespace, *, change: Change = unchanged
) -> tuple[list[float], nn.Module]:
    """Plain torch, one process, every rank's batches: the mean losses, and the model.

    With bfloat16 the masters are float32, as a node's are; forward and backward see a copy of them
    in bfloat16, and gradients are bfloat16 until they are summed.
    """
    batches = make_batches(directory, options)
    masters = finetune.make_model(options)
    change(masters)
    losses: list[float] = []

    def loss(model: nn.Module, step: int, rank: int, part: int) -> Tensor:
        inputs = finetune.batch_of(options, batches, step, rank=rank, world_size=WORLD_SIZE)
        found: Tensor = model(**inputs).loss
        losses.append(found.item())
        return found

    reference(
        lambda: masters, lambda model: torch.optim.AdamW(finetune.trainable(model), lr=options.lr),
        loss, world_size=WORLD_SIZE, steps=options.steps,
        dtype=torch.bfloat16 if options.dtype == "bfloat16" else None,
    )  # fmt: skip
    return [
        sum(each) / WORLD_SIZE for each in zip(*[iter(losses)] * WORLD_SIZE, strict=True)
    ], masters

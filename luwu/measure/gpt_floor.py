"""Compute of the built-in GPT per step, from one of its blocks and what surrounds them.

A small model is far from the rate of a large matrix product: its time goes to norms, activations
and attention (a width of 128 took several times as long as its products alone). So one block runs
forward and backward here, in as many threads and models at once as workers will on these cores.
A block of many parameters is not made: its products are large, and their rate says enough.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from luwu.measure.timing import Samples, repeated, run_all

if TYPE_CHECKING:
    from workers.gpt import GPTConfig

BLOCK_ELEMS_MAX: Final = 16 * 1024 * 1024
"""64 MiB of parameters, and of gradients, of each worker that computes at once."""
TOKENS_MAX: Final = 1024
"""Tokens per worker in the measurement; more take proportionally longer."""


def gpt_seconds(
    config: GPTConfig, *, batch: int, workers: int, threads: int, cores: int, samples: Samples
) -> float | None:
    """Seconds that all workers compute in a step, on these cores; None for a large block."""
    import torch

    from workers.gpt import GPT, Block

    if 12 * config.width**2 > BLOCK_ELEMS_MAX:
        return None
    at_once = max(1, min(workers, cores // threads))
    measured_batch = max(1, min(batch, TOKENS_MAX // config.context))
    models = [GPT(replace(config, layers=1)) for _ in range(at_once)]
    blocks = [Block(config) for _ in range(at_once)]
    ids = torch.zeros(measured_batch, config.context, dtype=torch.int64)
    x = torch.ones(measured_batch, config.context, config.width, dtype=config.dtype)

    def whole(index: int) -> None:
        logits = models[index](ids).float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()

    def block(index: int) -> None:
        y = blocks[index](x.detach().requires_grad_())
        # Its gradient is y; to be given one, torch would import sympy, half a second.
        torch.dot(y.flatten(), y.detach().flatten()).backward()

    with ThreadPoolExecutor(
        at_once, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        one_s = repeated(lambda: run_all(pool, whole, range(at_once)), samples.seconds / 2)
        block_s = repeated(lambda: run_all(pool, block, range(at_once)), samples.seconds / 2)
    all_s = max(one_s, block_s) + (config.layers - 1) * block_s
    return all_s * (batch / measured_batch) * (workers / at_once)

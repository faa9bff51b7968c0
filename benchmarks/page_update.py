"""The update of all pages alone: gradients in memory, nobody to wait for, all cores.

In blocks of 512 Ki elements, so that a block stays in the cache from the sum to the cast: the
gradients added in float32 from rank 0 upwards, divided, torch's fused AdamW, weights in the wire
dtype. Added to the hub's time it is what the no-switch star would take if nothing overlapped.
"""

from __future__ import annotations

import torch

from benchmarks.exchange_model import Job, fused_adamw
from benchmarks.exchange_part import Part

BLOCK_ELEMS = 512 * 1024


class PageUpdate(Part):
    """One process with the gradients of all workers."""

    is_exact = True

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        units = range(len(job.unit_elems))
        self._gradients = [
            torch.cat([job.gradient(worker, unit) for unit in units])
            for worker in range(job.workers)
        ]
        self._weights = torch.cat([job.initial(unit) for unit in units])
        self._m, self._v = torch.zeros_like(self._weights), torch.zeros_like(self._weights)
        self._published = self._weights.to(job.torch_dtype)
        self._sum = torch.zeros(BLOCK_ELEMS)
        self._updates = 0

    def step(self) -> None:
        for start in range(0, self.job.elems, BLOCK_ELEMS):
            self._update_block(slice(start, min(start + BLOCK_ELEMS, self.job.elems)))
        self._updates += 1

    def weights(self, unit: int) -> torch.Tensor:
        start = sum(self.job.unit_elems[:unit])
        return self._published[start : start + self.job.unit_elems[unit]]

    def _update_block(self, block: slice) -> None:
        total = self._sum[: block.stop - block.start]
        total.copy_(self._gradients[0][block])
        for gradient in self._gradients[1:]:
            total.add_(gradient[block])
        total.div_(self.job.workers)
        fused_adamw(
            [self._weights[block]], [total], [self._m[block]], [self._v[block]], self._updates
        )
        self._published[block].copy_(self._weights[block])

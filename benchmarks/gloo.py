"""What PyTorch's own data parallelism does between two steps, with gloo and without its modules.

    fsdp   all-gather of each unit in the order of the forward; in the order of the backward again,
           and reduce-scatter of its gradient; fused AdamW on each rank's shard
    ddp    all-reduce of buckets of 25 MB in the order of the backward; fused AdamW of the whole
           model on every rank

Both are given what helps them: collectives are issued ahead, as their prefetching does, and copies
that FSDP2 and DDP make on the way into parameters and out of gradients are left out. The one that
stays is that into DDP's bucket, because an all-reduce overwrites it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
import torch.distributed as dist

from benchmarks.exchange_model import Job, fused_adamw
from benchmarks.exchange_part import Part

BUCKET_BYTES = 25 * 1024 * 1024
"""DDP's `bucket_cap_mb`."""
AHEAD = 2
"""Units under way at once: the one in use, and the next, as FSDP2 prefetches."""


class _Rank(Part):
    """A member of a gloo group, with its gradients in private memory."""

    def __init__(self, job: Job, rank: int, *, store: str) -> None:
        super().__init__(job, rank)
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, job.workers), rank=rank, world_size=job.workers
        )
        self._units = range(len(job.unit_elems))
        self._updates = 0

    def leave(self) -> None:
        dist.destroy_process_group()

    def _update(
        self, weights: list[torch.Tensor], grads: list[torch.Tensor], m: list[torch.Tensor],
        v: list[torch.Tensor],
    ) -> None:  # fmt: skip
        fused_adamw(weights, grads, m, v, self._updates)
        self._updates += 1


class FsdpRank(_Rank):
    """A shard of every unit: float32 masters and moments; units are gathered in the wire dtype."""

    def __init__(self, job: Job, rank: int, *, store: str) -> None:
        super().__init__(job, rank, store=store)
        self._shard_elems = [-(-elems // job.workers) for elems in job.unit_elems]
        padded = [elems * job.workers for elems in self._shard_elems]
        self._masters = []
        self._gradients = []
        for unit in self._units:
            start, count = rank * self._shard_elems[unit], self._shard_elems[unit]
            whole = _padded(job.initial(unit), padded[unit])
            self._masters.append(whole[start : start + count].clone())
            self._gradients.append(_padded(job.gradient(rank, unit), padded[unit]))
        self._m = [torch.zeros_like(master) for master in self._masters]
        self._v = [torch.zeros_like(master) for master in self._masters]
        self._sent = [master.to(job.torch_dtype) for master in self._masters]
        self._whole = [torch.zeros(elems, dtype=job.torch_dtype) for elems in padded]
        self._sums = [torch.zeros_like(sent) for sent in self._sent]

    def step(self) -> None:
        self._gather_all(self._units, then_reduce=False)
        self._gather_all(reversed(self._units), then_reduce=True)
        grads = [total.float().div_(self.job.workers) for total in self._sums]
        self._update(self._masters, grads, self._m, self._v)
        for master, sent in zip(self._masters, self._sent, strict=True):
            sent.copy_(master)

    def finish_step(self) -> None:
        """The weights that the next step's forward would gather first; for reading and checking."""
        for unit in self._units:
            dist.all_gather_into_tensor(self._whole[unit], self._sent[unit])

    def weights(self, unit: int) -> torch.Tensor:
        return self._whole[unit][: self.job.unit_elems[unit]]

    def _gather_all(self, order: Iterable[int], *, then_reduce: bool) -> None:
        waiting = deque(order)
        gathers: deque[tuple[int, dist.Work]] = deque()
        reduces: list[dist.Work] = []
        while waiting or gathers:
            while waiting and len(gathers) < AHEAD:
                unit = waiting.popleft()
                work = dist.all_gather_into_tensor(
                    self._whole[unit], self._sent[unit], async_op=True
                )
                gathers.append((unit, work))
            unit, work = gathers.popleft()
            work.wait()
            if then_reduce:
                reduces.append(
                    dist.reduce_scatter_tensor(
                        self._sums[unit], self._gradients[unit], async_op=True
                    )
                )
        for work in reduces:
            work.wait()


class ExchangeOnlyRank(FsdpRank):
    """What FSDP2 and ZeRO-3 send, and no update."""

    has_updates = False

    def _update(self, *tensors: list[torch.Tensor]) -> None:
        pass


class DdpRank(_Rank):
    """The whole model on every rank, float32; bfloat16 is that of the compression hook."""

    def __init__(self, job: Job, rank: int, *, store: str) -> None:
        super().__init__(job, rank, store=store)
        self._weights = [job.initial(unit) for unit in self._units]
        self._m = [torch.zeros_like(weights) for weights in self._weights]
        self._v = [torch.zeros_like(weights) for weights in self._weights]
        # The script's gradients are float32, as its weights are; the hook casts what travels.
        self._gradients = [job.gradient(rank, unit).float() for unit in self._units]
        self._means = [torch.zeros_like(weights) for weights in self._weights]
        self._buckets = self._make_buckets()

    def step(self) -> None:
        works = []
        for unit, start, bucket in self._buckets:
            source = self._gradients[unit][start : start + bucket.numel()]
            if bucket.dtype == torch.float32:
                torch.mul(source, 1 / self.job.workers, out=bucket)
            else:
                bucket.copy_(source).div_(self.job.workers)
            works.append(dist.all_reduce(bucket, async_op=True))
        for (unit, start, bucket), work in zip(self._buckets, works, strict=True):
            work.wait()
            if bucket.dtype != torch.float32:
                self._means[unit][start : start + bucket.numel()].copy_(bucket)
        self._update(self._weights, self._means, self._m, self._v)

    def weights(self, unit: int) -> torch.Tensor:
        return self._weights[unit]

    def _make_buckets(self) -> list[tuple[int, int, torch.Tensor]]:
        """(unit, first element, bucket) in the order of the backward; a bucket is in one unit.

        In float32 a bucket is the gradient AdamW reads, as with `gradient_as_bucket_view`.
        """
        buckets = []
        for unit in reversed(self._units):
            elems = self.job.unit_elems[unit]
            step = BUCKET_BYTES // 4
            for start in range(0, elems, step):
                part = self._means[unit][start : start + step]
                if self.job.dtype != "float32":
                    part = torch.zeros(part.numel(), dtype=self.job.torch_dtype)
                buckets.append((unit, start, part))
        return buckets


def _padded(values: torch.Tensor, elems: int) -> torch.Tensor:
    whole = torch.zeros(elems, dtype=values.dtype)
    whole[: values.numel()] = values
    return whole

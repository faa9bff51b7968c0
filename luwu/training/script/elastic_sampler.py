"""Samples of a job whose workers come and go, so that each is counted once per epoch.

    stream      the samples of epoch 0 in their order, then those of epoch 1, ...
    position    samples of the stream that decided steps have counted
    a step      counts the next `batch_size` samples for each rank of its attempt, in rank order

The position is the same on all ranks and is attached, so it is decided with the step. If a step is
lost, its samples are read again, by whichever ranks count then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

import torch

from luwu.base.errors import ConfigError, StepOrderError
from luwu.training.script import run

T = TypeVar("T")


class ElasticSampler:
    """Sample indices for each rank, over any number of workers, each sample once per epoch.

    Workers may be lost and return (`--on-worker-loss drop`), and a run may be resumed with another
    number of them: it continues at the sample. Batches all have the same size; the last batch of an
    epoch is filled with the first samples of the next.

    Args:
        samples: Number of samples in the data.
        batch_size: Samples per rank and step.
        seed: Seed of the order; the same on all ranks.
        shuffle: False to read each epoch from the first sample to the last.

    Raises:
        ConfigError: If `samples` or `batch_size` is not at least 1.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> data = torch.ones(10, 4)
        >>> sampler = luwu.ElasticSampler(len(data), batch_size=5)
        >>> luwu.attach("sampler", sampler)
        >>> while sampler.epoch < 2:
        ...     try:
        ...         for indices in sampler.batches():
        ...             model(data[indices]).sum().backward()
        ...             result = optimizer.step()
        ...             optimizer.zero_grad()
        ...     except luwu.StepAborted:
        ...         pass  # the sampler is back at the step that is computed again
        >>> result.number
        3
    """

    def __init__(
        self, samples: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        for name, value in (("samples", samples), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigError(f"ElasticSampler: {name} is {value}, expected at least 1")
        self.samples, self.batch_size = samples, batch_size
        self.position = 0
        self._order = functools.lru_cache(maxsize=2)(functools.partial(_order, samples, seed))
        self._shuffle = shuffle

    @property
    def epoch(self) -> int:
        """The epoch of the next step's first sample."""
        return self.position // self.samples

    @overload
    def batches(self) -> Iterator[list[int]]: ...

    @overload
    def batches(self, load: Callable[[Iterator[list[int]]], Iterable[T]]) -> Iterator[T]: ...

    def batches(self, load: Callable[[Iterator[list[int]]], Iterable[Any]] = iter) -> Iterator[Any]:
        """Iterate over this rank's batches up to the end of the epoch, one per step.

        Args:
            load: Reads batches, given their sample indices:
                `lambda indices: DataLoader(data, batch_sampler=indices)`. It may read ahead. By
                default the indices themselves are returned.

        Yields:
            What `load` returns, a batch at a time.

        Raises:
            StepOrderError: If the optimizer was not made yet, the sampler is not attached, or a
                lost step was computed again with its old batch, as `step(closure)` does.
        """
        session = run.session()
        if not session.is_final or not session.attachments.has(self):
            raise StepOrderError(
                "ElasticSampler: its position must be kept with each step; call "
                'luwu.attach("sampler", sampler) right before the loop, when the optimizer is made'
            )
        epoch = self.epoch
        while self.epoch == epoch:
            ranks = session.counted_ranks
            count = self.batch_size * len(ranks)
            first = self.position + self.batch_size * ranks.index(session.rank)
            last = (epoch + 1) * self.samples + first - self.position
            starts = range(first, last, count)
            for batch in load(self.indices(start, self.batch_size) for start in starts):
                if session.counted_ranks != ranks:
                    break  # the step that begins counts others: share the samples anew
                self.position = after = self.position + count
                yield batch
                if self.position != after:
                    raise StepOrderError(
                        "ElasticSampler: a lost step was computed again with the batch of its "
                        "first attempt; use step() without a closure, catch StepAborted around the "
                        "loop, and call batches() again"
                    )

    def indices(self, start: int, count: int) -> list[int]:
        """Return samples of the stream, from a position on."""
        found: list[int] = []
        while len(found) < count:
            epoch, skipped = divmod(start + len(found), self.samples)
            order = self._order(epoch if self._shuffle else None)
            found += order[skipped : skipped + count - len(found)].tolist()
        return found

    def state_dict(self) -> Any:
        """Return the position in the stream."""
        return {"position": self.position}

    def load_state_dict(self, state: Any) -> None:
        """Continue at a position."""
        self.position = state["position"]


def _order(samples: int, seed: int, epoch: int | None) -> torch.Tensor:
    """The order of an epoch; None: as they come."""
    if epoch is None:
        return torch.arange(samples)
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(samples, generator=generator)

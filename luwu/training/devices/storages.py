"""The storages that hold weights: views of them are never moved or copied behind their back."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Storages:
    """A set of storages, by identity; it keeps none of them alive."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        """References by number; while one exists, its number belongs to no other storage."""
        self._look_at = 64
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        """The storage of this tensor, from now on."""
        if len(self._known) >= self._look_at:
            # To copy is one step; while items are listed, other threads may add one.
            for number, known in self._known.copy().items():
                if known.expired():
                    self._known.pop(number, None)
            self._look_at = 2 * len(self._known) + 64
        known = StorageWeakRef(tensor.untyped_storage())
        self._known[known.cdata] = known

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._known


WEIGHTS = Storages()
"""Storages of every unit's weights: the memory behind them comes and goes (`weights.py`)."""

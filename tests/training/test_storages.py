"""The set of storages that hold weights."""

from __future__ import annotations

import torch

from luwu.training.devices.weights import Storages
from tests.helpers.collecting import at_each_collection


def test_another_thread_adds_while_this_one_looks_for_the_ended() -> None:
    """Goal: workers that are threads of one process share the set."""
    tensors = [torch.empty(1) for _ in range(200)]
    others = iter(tensors[65:])
    storages = Storages()
    for tensor in tensors[:64]:  # it looks for the ended at the next
        storages.add(tensor)
    with at_each_collection(lambda: storages.add(next(others))):
        storages.add(tensors[64])
    assert all(each in storages for each in tensors[:66])

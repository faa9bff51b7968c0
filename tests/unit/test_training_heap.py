"""Memory of weights: gone when it is freed, whatever was allocated meanwhile."""

from __future__ import annotations

import pytest
import torch

from luwu.training.heap import own_mapping
from workers.train import memory_bytes

COUNT, WEIGHT_BYTES, SMALL_BYTES = 40, 2 * 1024 * 1024, 20 * 1024


def grown_bytes() -> int:
    """Take and free weights in turn, and keep a small block after each, as a forward does."""
    before = memory_bytes("VmData")
    assert before is not None
    kept = []
    for _ in range(COUNT):
        with own_mapping():
            weights = torch.empty(WEIGHT_BYTES, dtype=torch.uint8)
        kept.append(torch.empty(SMALL_BYTES, dtype=torch.uint8))
        del weights
    after = memory_bytes("VmData")
    assert after is not None
    return after - before


@pytest.mark.skipif(memory_bytes("VmData") is None, reason="this kernel tells no VmData")
def test_freed_weights_leave_no_hole() -> None:
    """I5. Goal: memory does not grow with the number of units that came and went.
    Method: first free a large block from the heap, after which glibc alone would use it for all."""
    torch.empty(16 * WEIGHT_BYTES, dtype=torch.uint8)
    assert grown_bytes() < 2 * WEIGHT_BYTES + COUNT * SMALL_BYTES

"""What a page adds up: the same order whatever was spilled, read back within bounded memory."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.aggregate import Float32
from luwu.aggregate.float32 import sum_in_order
from luwu.aggregate.interface import ENCODED
from luwu.protocol.contribution import Contribution
from switch_emu.node.scratch import Adder
from switch_emu.process.payload import Payload, Unsummed
from switch_emu.store.spill import SpillFile

ELEMS = 4096


def said(rank: int, payload: Payload, dtype: str = "float32") -> Contribution:
    return Contribution(1 << rank, 1.0, True, dtype, payload, payload.nbytes)


def values(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(ELEMS, dtype=np.float32)


@pytest.mark.parametrize("is_spilled", [False, True], ids=["in RAM", "spilled"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_terms_add_up_to_the_same_bits(tmp_path: Path, count: int, is_spilled: bool) -> None:
    """I3. Goal: the sum is c0 + c1 + ... from left to right, however the terms are handed out; a
    sum among them is made first.
    Method: compare bit for bit with one addition over arrays; the last one is a sum of two."""
    arrays = [values(seed) for seed in range(count)]
    payloads = [Payload(memoryview(array.view(np.uint8))) for array in arrays]
    parts = [Payload(memoryview(values(seed).view(np.uint8))) for seed in (50, 51)]
    payloads.append(Unsummed([(part, "float32") for part in parts], 4 * ELEMS))
    arrays.append(values(50) + values(51))
    expected = np.empty(ELEMS, np.float32)
    sum_in_order([a.view(np.uint8).data for a in arrays], ["float32"] * len(arrays), expected)
    with SpillFile(tmp_path, place_bytes=4 * ELEMS, places_count=8) as spill:
        if is_spilled:
            for payload in payloads:
                payload.spill(spill)
        found = np.empty(ELEMS, np.float32)
        contributions = [said(rank, payload) for rank, payload in enumerate(payloads)]
        with Adder(ELEMS).terms(contributions, ELEMS) as terms:
            sum_in_order([data for data, _ in terms], [dtype for _, dtype in terms], found)
    np.testing.assert_array_equal(found, expected)


class CountingSpill:
    """Counts the buffers that were read back and are still held."""

    def __init__(self) -> None:
        self.held_count = self.held_count_max = 0

    def put(self, data: memoryview) -> int:
        return 0

    def get(self, place: int, start: int, nbytes: int) -> memoryview:
        array = np.zeros(nbytes, np.uint8)
        self.held_count += 1
        self.held_count_max = max(self.held_count_max, self.held_count)
        weakref.finalize(array, self._gone)
        return array.data

    def free(self, place: int) -> None:
        pass

    def _gone(self) -> None:
        self.held_count -= 1


def test_only_one_spilled_contribution_is_read_back_at_a_time() -> None:
    """I5. Goal: sixteen ranks' contributions, all spilled, take one buffer and the sum's.
    Method: count the buffers handed out that are still referenced."""
    spill = CountingSpill()
    contributions = []
    for rank in range(16):
        payload = Payload(memoryview(values(rank).view(np.uint8)))
        payload.spill(spill)
        contributions.append(said(rank, payload))
    with Adder(ELEMS).terms(contributions, ELEMS) as terms:
        assert len(terms) == 1
        assert spill.held_count == 0
    assert spill.held_count_max == 1


class InOrder(Float32):
    """Float sums that travel as encoded ones: the bits depend on who is added first."""

    is_plain = False


def test_encoded_ones_are_combined_as_the_switches_would() -> None:
    """I3. Goal: where sums depend on the tree, what found no slot has the bits of what did.
    Method: {0,2} + {1,3} and rank order, which differ."""
    arrays = [values(rank) for rank in range(4)]
    contributions = [
        said(rank, Payload(memoryview(array.view(np.uint8))), ENCODED)
        for rank, array in enumerate(arrays)
    ]
    flat = ((arrays[0] + arrays[1]) + arrays[2]) + arrays[3]
    in_tree = (arrays[0] + arrays[2]) + (arrays[1] + arrays[3])
    assert not np.array_equal(flat, in_tree)
    with Adder(ELEMS, InOrder(4), (0b101, 0b1010, 0b1111)).terms(contributions, ELEMS) as terms:
        ((data, dtype),) = terms
        assert dtype == "float32"
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), in_tree)

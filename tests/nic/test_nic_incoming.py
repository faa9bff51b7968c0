"""Incoming weights of one pull, alone: copied, or used where they are."""

from __future__ import annotations

import pytest

from luwu.nic.memory import IncomingWeights
from luwu.transport.interface import Delivery

RUNS = {4: ((0, 3),), 5: ((3, 2),)}
"""Two extents of a flat vector of 5 bytes."""


class Bench:
    """A pull of two extents into memory of the worker's own, and the sender's memory."""

    def __init__(self, *, in_place: bool = True) -> None:
        self.own = bytearray(5)
        self.is_requested = False
        self.sender = bytearray(b"....abcde....")
        self.released: list[int] = []
        self.incoming = IncomingWeights(self._memory, RUNS, in_place=in_place)

    def _memory(self) -> memoryview:
        self.is_requested = True
        return memoryview(self.own)

    def add(self, extent: int, *, is_placed: bool = True) -> None:
        """Deliver an extent of the sender's vector."""
        ((start, length),) = RUNS[extent]
        view = memoryview(self.sender)[4 + start : 4 + start + length]
        released = self.released
        delivery = Delivery("parent", b"", [view], lambda: released.append(extent), is_shared=True)
        self.incoming.add(extent, delivery, is_placed=is_placed)
        assert released.pop() == extent, "it is not held"


def test_a_unit_in_its_places_is_used_there() -> None:
    """Goal: nothing is copied, whichever extent comes first."""
    bench = Bench()
    bench.add(5)
    bench.add(4)
    assert bench.incoming.finish()
    assert (sorted(bench.incoming.placed), bench.is_requested) == ([4, 5], False)


@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize("sender", [True, False])
def test_weights_are_copied_unless_all_agree(pull: bool, sender: bool) -> None:
    """Goal: the pull and the sender must allow it, for all extents."""
    bench = Bench(in_place=pull)
    bench.add(4)
    bench.add(5, is_placed=sender)
    is_shared = bench.incoming.finish()
    assert is_shared == (pull and sender)
    assert sorted(bench.incoming.placed) == [4, 5][: 1 + sender]
    if not is_shared:
        assert bytes(bench.own) == b"abcde"


def test_a_later_delivery_replaces_the_earlier_one() -> None:
    """Goal: after a skipped step extents come again, maybe elsewhere; void ones are not used."""
    bench = Bench()
    bench.add(4)
    bench.add(5)
    bench.sender[4:9] = b"fghij"
    bench.add(4, is_placed=False)
    assert not bench.incoming.finish()
    assert bytes(bench.own) == b"fghij"
    assert list(bench.incoming.placed) == [5]

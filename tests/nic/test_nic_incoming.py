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

    def add(
        self, extent: int, *, at: int = 4, is_shared: bool = True, in_place: bool = True
    ) -> None:
        """Deliver an extent of the vector that begins `at` an offset of the sender's memory."""
        ((start, length),) = RUNS[extent]
        view = memoryview(self.sender)[at + start : at + start + length]
        delivery = Delivery(
            "parent", b"", [view], lambda: self.released.append(extent), is_shared=is_shared
        )
        self.incoming.add(extent, delivery, in_place=in_place)


def test_a_unit_in_one_piece_is_used_where_it_is() -> None:
    """Goal: nothing is copied, and nothing is released before the weights are."""
    bench = Bench()
    bench.add(5)
    bench.add(4)
    shared = bench.incoming.finish()
    assert shared is not None
    assert (shared.nbytes, bench.released, bench.is_requested) == (5, [], False)
    shared.release()
    shared.release()
    assert sorted(bench.released) == [4, 5]


@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("sender", [True, False])
def test_weights_are_copied_unless_all_agree(pull: bool, is_shared: bool, sender: bool) -> None:
    """Goal: the pull, the memory and the sender must allow it, for all extents."""
    bench = Bench(in_place=pull)
    bench.add(4)
    bench.add(5, is_shared=is_shared, in_place=sender)
    shared = bench.incoming.finish()
    assert (shared is not None) == (pull and is_shared and sender)
    if shared is None:
        assert bytes(bench.own) == b"abcde"
        assert sorted(bench.released) == [4, 5]


def test_a_unit_in_several_pieces_is_copied() -> None:
    """Goal: extents that are not one behind the other are no flat vector."""
    bench = Bench()
    bench.add(4)
    bench.add(5, at=6)
    assert bench.incoming.finish() is None
    assert bytes(bench.own) == b"abc" + b".."
    assert sorted(bench.released) == [4, 5]


def test_a_later_delivery_replaces_the_earlier_one() -> None:
    """Goal: after a skipped step extents come again; the void ones are released, and those of a
    pull that is not needed any more."""
    bench = Bench()
    bench.add(4)
    bench.add(4)
    assert bench.released == [4]
    bench.add(5)
    bench.incoming.release()
    assert sorted(bench.released) == [4, 4, 5]

"""The switch at each fidelity: the suite, and what only one of them promises."""

from __future__ import annotations

import numpy as np
import pytest

from switch_emu.switch.core.fixed_slots import PoolSize
from tests.suites.switch_suite import (
    CHUNK_BYTES,
    EXTENTS,
    WORLD,
    Bench,
    SwitchSuite,
    child,
    gradients,
    in_rank_order,
)


class TestFunctionalFidelity(SwitchSuite):
    def test_a_child_hears_when_its_bytes_are_held(self) -> None:
        """Goal: no child waits for another's push."""
        bench = self.bench()
        bench.push(0, EXTENTS[0], gradients(0)[0])
        assert bench.receipts() == [(child(0), EXTENTS[0])]


class TestProtocolFidelity(SwitchSuite):
    slot_count, has_fixed_slots = 8, True

    def test_the_result_frees_the_next_send(self) -> None:
        """Goal: no child hears of an extent before it is summed, then all of them do at once."""
        bench = self.bench()
        for rank, values in enumerate(gradients(0)):
            assert bench.receipts() == []
            bench.push(rank, EXTENTS[0], values)
        assert bench.receipts() == [(child(rank), EXTENTS[0]) for rank in range(WORLD)]

    @pytest.mark.parametrize("slot_count", [1, 3, 1000])
    def test_the_window_is_that_of_the_slots(self, slot_count: int) -> None:
        """F2. Goal: children may send as much as all slots take at once, and no more than ever."""
        bench = Bench(self.limits(slot_count))
        limits = self.limits(slot_count)
        assert bench.windows == {min(limits.push_window_bytes, slot_count * CHUNK_BYTES)}

    def test_a_full_window_to_the_parent_holds_receipts_back(self) -> None:
        """I5. Goal: sums that wait for the parent are as many as there are slots: their children
        hear of them as the parent takes those before.
        Method: two slots, three extents, and a parent that answers late."""
        bench = Bench(self.limits(2))
        for extent in EXTENTS[:2]:
            for rank, values in enumerate(gradients(extent)):
                bench.push(rank, extent, values)
        assert len(bench.receipts()) == 2 * WORLD
        sums = bench.take_parent()
        assert len(sums) == 2
        third = EXTENTS[2]
        for rank, values in enumerate(gradients(third)):
            bench.push(rank, third, values)
        assert bench.core.raw_up.count == 0
        assert bench.receipts() == []
        bench.parent_has(sums[0][0])
        assert bench.receipts() == [(child(rank), third) for rank in range(WORLD)]

    def test_children_that_push_in_different_orders_wait_for_one_timer(self) -> None:
        """I6. Goal: where each child's window is full with what the other has not sent, saying it
        again is answered at once, so both go on."""
        bench = Bench(self.limits(1))
        grads = {extent: gradients(extent) for extent in EXTENTS[:2]}
        orders = {0: EXTENTS[:2], 1: EXTENTS[1::-1], 2: EXTENTS[:2]}
        for rank, order in orders.items():
            bench.push(rank, order[0], grads[order[0]][rank])
        assert bench.receipts() == []
        for rank, order in orders.items():
            bench.push(rank, order[0], grads[order[0]][rank])
            assert bench.receipts() == [(child(rank), order[0])]
        for rank, order in orders.items():
            bench.push(rank, order[1], grads[order[1]][rank])
        for extent in EXTENTS[:2]:
            [(push, values)] = bench.take_parent()
            assert push.index == extent
            np.testing.assert_array_equal(values, in_rank_order(grads[extent]))
            bench.parent_has(push)

    def test_the_report_is_of_the_pool_that_ran(self) -> None:
        """Goal: slots, occupancy and fallbacks are counted, not configured."""
        bench = Bench(self.limits(1))
        for rank in range(WORLD):
            for extent in EXTENTS:
                bench.push(rank, extent, gradients(extent)[rank])
        found = bench.core.counts()
        assert found["slots_peak"] == found["slots_limit"] == 1
        assert found["slot_copies_peak"] == 2
        assert found["slots_opened_count"] == 2
        assert found["raw_count"] == WORLD * (len(EXTENTS) - 2)
        assert bench.core.pool.size == PoolSize(slot_count=1, slot_bytes=CHUNK_BYTES)  # type: ignore[attr-defined]

"""The slots of protocol fidelity: F1 to F5 (and S1 to S3), whatever arrives in whatever order."""

from __future__ import annotations

from random import Random

import pytest

from luwu.protocol.contribution import Contribution, rank_order
from luwu.wire.description import Description
from switch_emu.switch.core.fixed_slots import NO_TURN, FixedSlotPool, PoolSize, push_turns
from switch_emu.switch.core.slots import SlotKey
from tests.simulate.job import make_layout

BYTES = 16384
RANKS = 0b111


def said(rank: int, payload: object = None, payload_bytes: int = BYTES) -> Contribution:
    """What one child says."""
    return Contribution(1 << rank, 1.0, True, "float32", payload, payload_bytes)


def make_pool(slot_count: int, *, units: int = 3, frozen: bool = True) -> FixedSlotPool:
    """A pool that knows what is pushed."""
    layout = make_layout(units=units, frozen=frozen)
    pool = FixedSlotPool(
        ranks=RANKS, pool=PoolSize(slot_count=slot_count, slot_bytes=BYTES)
    )  # fmt: skip
    pool.learn(Description(layout=layout, optimizer="test"))
    return pool


def in_turn(pool: FixedSlotPool, passes: int, *, units: int = 3) -> list[SlotKey]:
    """The extents of some passes in the order of their turns, a step each."""
    turns, count = push_turns(make_layout(units=units))
    extents = sorted((c for c, turn in enumerate(turns) if turn != NO_TURN), key=lambda c: turns[c])
    assert len(extents) == count
    return [(step, 0, extent) for step in range(passes) for extent in extents]


def test_turns_are_those_of_a_backward() -> None:
    """F1. Goal: units from the last to the first, upwards inside; what is frozen has no turn."""
    layout = make_layout(units=3)
    turns, count = push_turns(layout)
    pushed = [c for unit in (2, 1, 0) for c in layout.trainable_extents(unit)]
    assert [turns[c] for c in pushed] == list(range(count))
    frozen = [c.index for c in layout.chunks if not c.trainable]
    assert frozen
    assert all(turns[c] == NO_TURN for c in frozen)


@pytest.mark.parametrize("slot_count", [1, 2, 3, 5, 7, 64])
def test_consecutive_users_of_a_slot_take_different_copies(slot_count: int) -> None:
    """F1. Goal: within a pass, and from each pass to the next; every slot is used in turn.
    Method: the places of five passes, by the arithmetic of the module alone."""
    pool = make_pool(slot_count)
    copy_of: dict[int, int] = {}
    for turn, key in enumerate(in_turn(pool, 5)):
        place = pool.place(key)
        assert place is not None
        slot, copy = place
        assert slot == turn % slot_count
        assert copy_of.get(slot, 1 - copy) == 1 - copy
        copy_of[slot] = copy


def test_an_extent_that_is_never_pushed_has_no_place() -> None:
    """F1, I5. Goal: a frozen extent, one beyond the layout, and any before the layout is known."""
    pool = make_pool(2)
    frozen = next(c.index for c in make_layout().chunks if not c.trainable)
    strange = [(0, 0, frozen), (0, 0, 10**6)]
    fresh = FixedSlotPool(ranks=RANKS, pool=PoolSize(slot_count=2, slot_bytes=BYTES))
    for where, keys in ((pool, strange), (fresh, [(0, 0, 0)])):
        for key in keys:
            where.passes(key, 1)
            assert where.place(key) is None
            assert where.room(key, BYTES) is None
            assert not where.is_summed(key)


def test_no_contribution_is_larger_than_a_slot() -> None:
    """F4. Goal: a payload of more than an extent finds no room, whatever is free."""
    pool = make_pool(4)
    assert pool.room((0, 0, 0), BYTES + 1) is None
    assert pool.room((0, 0, 0), BYTES) is not None


class Model:
    """What a pool should be, in sets: one entry a place."""

    def __init__(self) -> None:
        self.key: dict[tuple[int, int], SlotKey] = {}
        self.seen: dict[tuple[int, int], list[int]] = {}
        self.state: dict[tuple[int, int], str] = {}
        self.behind: dict[tuple[int, int], set[int]] = {}

    def is_free(self, place: tuple[int, int]) -> bool:
        return self.state.get(place, "free") == "free" or (
            self.state[place] == "done" and not self.behind[place]
        )


@pytest.mark.parametrize("seed", range(60))
def test_any_history(seed: int) -> None:
    """S1 to S3, F1 to F5. Goal: the pool is what a dictionary of sets says, after every event.
    Method: 400 events drawn from a seed; children that keep to no window and no order."""
    rng = Random(seed)
    slot_count = rng.choice([1, 2, 3])
    pool, model = make_pool(slot_count), Model()
    keys = [(step, part, extent) for step, _, extent in in_turn(pool, 2) for part in range(2)]
    for _ in range(400):
        key, rank = rng.choice(keys[: rng.choice([6, len(keys)])]), rng.randrange(3)
        place = pool.place(key)
        assert place is not None
        other = (place[0], 1 - place[1])
        is_ours = model.key.get(place) == key
        state = model.state.get(place, "free") if is_ours else "free"
        assert pool.is_summed(key) is (state in ("summed", "done"))
        match rng.choice(["push"] * 6 + ["sum", "arrive", "raw", "decide"]):
            case "push" if state in ("free", "filling"):
                pool.passes(key, 1 << rank)
                if model.state.get(other) in ("summed", "done"):
                    model.behind[other].discard(rank)
                slot = pool.room(key, BYTES)
                assert (slot is not None) is (state == "filling" or model.is_free(place))
                if slot is None:
                    continue
                if state == "free":
                    model.key[place], model.state[place] = key, "filling"
                    model.seen[place], model.behind[place] = [], set()
                is_new = rank not in model.seen[place]
                assert slot.add(said(rank, rank)) is is_new
                if is_new:
                    model.seen[place].append(rank)
                assert slot.full is (len(model.seen[place]) == 3)
            case "sum" if state == "filling" and len(model.seen[place]) == 3:
                handed = rank_order(pool[key].contributions)
                assert [c.payload for c in handed] == [0, 1, 2]
                pool.hand_out(key, BYTES)
                model.state[place], model.behind[place] = "summed", {0, 1, 2}
            case "arrive" if state == "summed":
                pool.arrived(key)
                model.state[place] = "done"
            case "raw" if state == "filling":
                assert [c.payload for c in pool.give_up(key)] == model.seen[place]
                model.state[place] = "free"
            case "decide" if rng.random() < 0.1:
                held = []
                for each, owner in model.key.items():
                    if owner[0] == 0:
                        held += model.seen[each] if model.state[each] == "filling" else []
                        model.state[each] = "free"
                assert sorted(map(str, pool.forget(0))) == sorted(map(str, held))
        holding = [p for p, s in model.state.items() if s in ("filling", "summed")]
        assert len(pool) == len(holding)
        assert pool.copies_used_peak <= 2 * slot_count

"""Weights on their way down, built alone: asked for once, every child served once, in a budget."""

from __future__ import annotations

from random import Random

import pytest

from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from luwu.wire.messages import Weights
from switch_emu.switch.core.weights_down import STALLED_NS, CopyKey, WeightsCopies, WeightsDown
from tests.unit.switch_parts import Handed, message

KEY: CopyKey = (1, 0, 7)


def weights(key: CopyKey = KEY) -> Weights:
    step, part, extent = key
    return Weights(
        job=1, epoch=0, step=step, attempt=1, role=Role.SWITCH, rank=0, incarnation=1,
        generation=1, index=extent, part=part, dtype="float32", in_place=False,
    )  # fmt: skip


def test_all_ask_before_it_comes() -> None:
    """Goal: one copy of the bytes serves all who asked, and then is gone."""
    copies = WeightsCopies(child_count=3, bytes_max=1000)
    for peer in ("a", "b", "a", "c"):
        assert copies.asked(KEY, peer) is None
        assert copies.awaits(KEY)
    assert copies.came(KEY, weights(), "bytes", 100) == ("a", "b", "c")
    assert copies.trim(KEY) == ["bytes"]
    assert copies.bytes_used == 0
    assert copies.fallback_count == 0


def test_a_late_child_is_served_from_the_copy() -> None:
    """Goal: who asks while the copy is there gets it at once; the last one lets it go."""
    copies = WeightsCopies(child_count=3, bytes_max=1000)
    copies.asked(KEY, "a")
    assert copies.came(KEY, weights(), "bytes", 100) == ("a",)
    assert copies.trim(KEY) == []
    assert copies.bytes_used == 100
    for peer, dropped in (("b", []), ("a", []), ("c", ["bytes"])):
        copy = copies.asked(KEY, peer)
        assert copy is not None
        assert (copy.payload, copy.weights) == ("bytes", weights())
        assert copies.trim(KEY) == dropped
    assert copies.bytes_used == 0


def test_a_child_that_asks_again_is_fetched_for_again() -> None:
    """Goal: when the bytes have gone they are asked for once more, and that is counted."""
    copies = WeightsCopies(child_count=2, bytes_max=1000)
    for peer in ("a", "b"):
        copies.asked(KEY, peer)
    copies.came(KEY, weights(), "first", 100)
    assert copies.trim(KEY) == ["first"]

    assert copies.asked(KEY, "b") is None
    assert copies.asked(KEY, "b") is None
    assert copies.awaits(KEY)
    assert copies.fallback_count == 1
    assert copies.came(KEY, weights(), "second", 100) == ("b",)
    assert copies.trim(KEY) == ["second"]


def test_no_room_keeps_nothing() -> None:
    """I5. Goal: beyond the budget a copy goes as soon as those who asked have it."""
    copies = WeightsCopies(child_count=2, bytes_max=150)
    for extent in range(3):
        key = (1, 0, extent)
        copies.asked(key, "a")
        assert copies.came(key, weights(key), extent, 100) == ("a",)
        assert copies.trim(key) == ([] if extent == 0 else [extent])
    assert copies.bytes_used == 100
    assert copies.asked((1, 0, 2), "b") is None
    assert copies.fallback_count == 1


def test_nobody_waits_for_what_was_not_asked() -> None:
    """Goal: an unexpected answer is told apart."""
    copies = WeightsCopies(child_count=2, bytes_max=1000)
    assert not copies.awaits(KEY)
    copies.asked(KEY, "a")
    copies.came(KEY, weights(), "bytes", 100)
    assert not copies.awaits(KEY)


def test_forget_up_to_a_step() -> None:
    """Goal: a decided step's copies go, later ones stay; an abort takes all."""
    copies = WeightsCopies(child_count=2, bytes_max=1000)
    for step in range(4):
        copies.asked((step, 0, 0), "a")
        copies.came((step, 0, 0), weights((step, 0, 0)), f"of {step}", 100)
    copies.asked((1, 0, 1), "a")  # its bytes have not come
    assert copies.forget(step_max=1) == ["of 0", "of 1"]
    assert copies.bytes_used == 200
    assert copies.forget() == ["of 2", "of 3"]
    assert copies.bytes_used == 0
    assert copies.forget() == []
    assert not copies.awaits((1, 0, 1))


@pytest.mark.parametrize("seed", range(30))
def test_any_history(seed: int) -> None:
    """I5. Goal: every payload is let go once, bytes_used is what is held, never above the budget.
    Method: a seeded history of asks, answers and forgetting, as the switch's core makes them."""
    rng = Random(seed)
    copies = WeightsCopies(child_count=3, bytes_max=rng.choice([0, 250, 10_000]))
    held: dict[str, int] = {}
    made = 0
    for _ in range(400):
        key = (rng.randrange(3), rng.randrange(2), rng.randrange(4))
        dropped: list[object] = []
        match rng.randrange(10):
            case 0:
                dropped = copies.forget(step_max=rng.choice([None, 0, 1]))
            case 1 | 2 | 3 | 4 if copies.awaits(key):
                made += 1
                held[f"payload {made}"] = size = rng.choice([50, 100])
                askers = copies.came(key, weights(key), f"payload {made}", size)
                assert len(set(askers)) == len(askers) > 0
                dropped = copies.trim(key)
            case _:
                if copies.asked(key, rng.choice("abc")) is not None:
                    dropped = copies.trim(key)
        for payload in dropped:
            del held[str(payload)]
        assert copies.bytes_used == sum(held.values())
        assert copies.bytes_used <= copies._bytes_max
    assert len(copies.forget()) == len(held)


def test_one_pull_goes_up_and_a_copy_to_each_child() -> None:
    """Goal: the course of an extent's weights, with a child that asks late and one that asks again
    when the copy has gone."""
    handed = Handed()
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    pull = message(wire.Pull, index=7)
    came = message(wire.Weights, index=7, dtype="float32")
    sent = "Weights index=7 dtype=float32 + 'bytes'"
    handed.play(
        part,
        [
            ("pull", (handed.left, pull), ["parent: Pull index=7"]),
            ("pull", (handed.left, pull), []),
            ("weights", (came, "bytes", 5), [f"left: {sent}"]),
            ("weights", (came, "again", 5), ["drop again"]),
            ("pull", (handed.right, pull), [f"right: {sent}", "drop bytes"]),
            ("pull", (handed.right, pull), ["parent: Pull index=7"]),
            ("pull", (handed.right, message(wire.Pull, index=7, step=2)), []),
            ("weights", (came, "bytes", 5), [f"right: {sent}", "drop bytes"]),
        ],
    )
    assert part.copies.fallback_count == 1
    assert handed.children.loaded


def test_a_decided_step_takes_its_copies_along() -> None:
    """Goal: copies up to the step are dropped; a new attempt drops all, and serves who counts."""
    handed = Handed()
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    for step in (0, 1):
        part.pull(handed.left, message(wire.Pull, index=7, step=step))
        part.weights(message(wire.Weights, index=7, step=step), f"of {step}", 5)
    handed.outbox.take()
    handed.play(part, [("forget", (0,), ["drop of 0"]), ("forget", (), ["drop of 1"])])


def test_where_nothing_is_shared_each_pull_goes_up() -> None:
    """Goal: with `only_forwards` every child's use is one of its own, and answered as its own."""
    handed = Handed(only_forwards=True)
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    pull = message(wire.Pull, index=7, part=1)
    handed.play(
        part,
        [
            ("pull", (handed.left, pull), ["parent: Pull index=7 part=2"]),
            ("pull", (handed.right, pull), ["parent: Pull index=7 part=3"]),
            ("weights", (message(wire.Weights, index=7, part=3), "bytes", 5),
             ["right: Weights index=7 part=1 + 'bytes'", "drop bytes"]),
        ],
    )  # fmt: skip


def test_copies_that_are_kept_hold_up_nobody_for_long() -> None:
    """I5. Goal: what is kept for a child that never asks may be all the memory that the parent has
    for weights; when others are due and do not come, it is given back, and only then.
    Method: the left child pulls alone; weights of the next step are asked for too, which are late
    by right."""
    handed = Handed()
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    answer = message(wire.Weights, index=7, dtype="float32")

    def after(now_ns: int, *expected: str) -> None:
        handed.outbox.now_ns = now_ns
        handed.play(part, [("tick", (), list(expected))])

    part.pull(handed.left, message(wire.Pull, index=7))
    handed.outbox.take()
    after(STALLED_NS)  # nothing is kept
    part.weights(answer, "kept", 5)
    part.pull(handed.left, message(wire.Pull, index=3, step=1))
    handed.outbox.take()
    assert part.next_ns() is None  # nothing is due: that step has not begun
    part.pull(handed.left, message(wire.Pull, index=8))
    handed.outbox.take()
    assert part.next_ns() == 2 * STALLED_NS
    after(2 * STALLED_NS - 1)
    after(2 * STALLED_NS, "drop kept")
    after(9 * STALLED_NS)
    assert part.copies.bytes_used == 0
    assert part.next_ns() is None
    late = (handed.right, message(wire.Pull, index=7))
    handed.play(part, [("pull", late, ["parent: Pull index=7"])])
    assert part.copies.fallback_count == 1

"""Small parts of the switch's core, each built alone, and the tables that lead to all parts."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from luwu.protocol.actions import Send
from luwu.protocol.contribution import Contribution
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Sum, SwitchLimits
from switch_emu.switch.core.aggregation import Aggregation
from switch_emu.switch.core.attachments import Attachments
from switch_emu.switch.core.attempts import TEXT_CHARS, Attempts
from switch_emu.switch.core.fixed_slots import PoolRange
from switch_emu.switch.core.initial_weights import InitialWeights
from switch_emu.switch.core.pool import make_pool
from switch_emu.switch.core.raw_up import RawUp
from switch_emu.switch.core.switch import (
    AT_ANY_TIME,
    FROM_CHILD,
    FROM_PARENT,
    OF_ANY_ATTEMPT,
    OF_ANYONE,
    RECEIPTS,
)
from switch_emu.switch.core.weights_down import WeightsDown
from tests.unit.switch_parts import DESCRIPTION, LEFT, RIGHT, Handed, line, message

OF_THE_LEAD = {
    wire.Measured, wire.Prepared, wire.Resolved, wire.Standing, wire.Adopt, wire.Copy, wire.Page,
}  # fmt: skip


class TestTables:
    def test_every_message_has_a_place(self) -> None:
        """Goal: a message that is added to the protocol is handled, or left out on purpose."""
        places = set(FROM_CHILD) | set(FROM_PARENT)
        assert places | OF_THE_LEAD == set(wire.MESSAGE_TYPES)
        assert not places & OF_THE_LEAD
        assert set(RECEIPTS) == set(Verb) - {Verb.PAGE}  # the lead's

    def test_exceptions_are_messages_of_the_table(self) -> None:
        assert set(FROM_CHILD) >= OF_ANYONE | OF_ANY_ATTEMPT
        assert set(FROM_PARENT) >= AT_ANY_TIME

    @pytest.mark.parametrize("table", [FROM_CHILD, FROM_PARENT, RECEIPTS])
    def test_every_place_is_a_method_that_says_what_it_does(self, table: dict[object, str]) -> None:
        """Goal: names lead to methods, and their docstrings can stand in a page on the protocol."""
        core = SwitchCore(job=1, incarnation=1, children=[LEFT, RIGHT])
        for name in table.values():
            part, _, method = name.rpartition(".")
            found = getattr(getattr(core, part) if part else core, method)
            assert inspect.ismethod(found), name
            assert found.__doc__, name


def test_one_request_to_give_up_names_all_lost_ranks() -> None:
    """I6. Goal: a second reason is not sent, a second loss is; a new attempt begins without."""
    handed = Handed()
    attempts = Attempts(handed.outbox, handed.children, handed.uplink)
    handed.play(
        attempts,
        [
            ("cancel", ("first",), ["parent: Cancel text=first"]),
            ("cancel", ("second",), []),
        ],
    )
    attempts.cancel("ranks 0, 1 were started again", lost=LEFT)
    attempts.cancel("ranks 2 were started again", lost=RIGHT)
    assert [each.message.lost for each in handed.outbox.take()] == [LEFT, LEFT | RIGHT]
    asked = attempts.withdraw()
    assert asked is not None
    assert asked.lost == LEFT | RIGHT
    attempts.forget()
    handed.play(attempts, [("cancel", ("third",), ["parent: Cancel text=third"])])


def test_a_new_attempt_awaits_no_answer_of_the_former() -> None:
    """Goal: only who is present is still reported, and what was announced of the open step is
    undone; the end of a step changes neither."""
    handed = Handed()
    handed.outbox.step = 4
    attempts = Attempts(handed.outbox, handed.children, handed.uplink)
    handed.uplink.ask(0, "present", message(wire.Present))
    handed.children.outcomes.verdict = verdict = message(wire.Verdict, step=4)
    attempts.cancel("x" * (TEXT_CHARS + 1))
    assert handed.outbox.take()[1].message.text == "x" * TEXT_CHARS
    attempts.forget(3)
    assert handed.uplink.asks("cancel")
    assert handed.children.outcomes.of(4) == [verdict]
    attempts.forget()
    assert (handed.uplink.asks("present"), handed.uplink.asks("cancel")) == (True, False)
    assert handed.children.outcomes.of(4) == []
    assert attempts.withdraw() is None


@pytest.mark.parametrize("slot_count", [None, 1])
def test_a_pool_is_of_the_fidelity_that_its_limits_ask_for(slot_count: int | None) -> None:
    """S1. Goal: both pools hold an extent until its sum is with the parent; where slots are fixed,
    a child is answered when its extent is summed. A third one finds no room in either."""
    slots = None if slot_count is None else PoolRange(slot_count=slot_count, slot_bytes=40)
    limits = SwitchLimits(slot_bytes_max=160, slots=slots)
    pool = make_pool(limits, ranks=LEFT | RIGHT, child_count=2)
    assert pool.answers_when_summed is (slots is not None)
    pool.learn(DESCRIPTION)
    pool.serve(LEFT | RIGHT)
    key = (0, 0, 0)
    slot = pool.room(key, 40)
    assert slot is not None
    assert pool.room((0, 0, 1), 40) is not None
    assert pool.room((0, 0, 2), 40) is None
    assert pool.contribute(slot, Contribution(LEFT, 1.0, True, "float32", "l", 40))
    assert not pool.contribute(slot, Contribution(LEFT, 1.0, True, "float32", "l", 40))
    assert pool.waits_for(str) == f"step 0: extent 0 of ranks [{LEFT}]"
    assert pool.contribute(slot, Contribution(RIGHT, 1.0, True, "float32", "r", 40))
    assert (pool[key], slot.full, pool.is_summed(key)) == (slot, True, False)
    pool.hand_out(key, 40)
    assert pool.is_summed(key)
    pool.arrived(key)
    assert pool.get(key) is None
    assert bool(pool.slot_counts()) is (slots is not None)


def test_initial_weights_go_up_once() -> None:
    """Goal: a chunk of two children goes up once; they are answered when the parent has it, and at
    once when the state has weights."""
    handed = Handed()
    part = InitialWeights(handed.outbox, handed.children, handed.uplink)
    load, received = message(wire.Load, index=3), message(wire.Received, index=3, verb=Verb.LOAD)
    answer = "Received index=3 verb=LOAD"
    handed.play(
        part,
        [
            ("load", (handed.left, load, "l", 5), ["parent: Load index=3 + 'l'"]),
            ("load", (handed.right, load, "r", 5), ["drop r"]),
            ("received", (received,), ["drop l", f"left,right: {answer}"]),
            ("load", (handed.right, load, "r", 5), ["drop r", f"right: {answer}"]),
            ("forget", (), []),
            ("load", (handed.right, load, "r", 5), ["parent: Load index=3 + 'r'"]),
        ],
    )
    handed.children.loaded = True
    handed.play(part, [("load", (handed.left, load, "l", 5), ["drop l", f"left: {answer}"])])


def test_a_piece_of_an_attachment_goes_up_once() -> None:
    """Goal: repetitions are dropped, and answered when the parent has the piece; a child attaches
    for its own ranks only."""
    handed = Handed()
    part = Attachments(handed.outbox, handed.children, handed.uplink)
    keep = message(wire.Keep, contributors=RIGHT, pieces=1)
    received = message(wire.Received, contributors=RIGHT, verb=Verb.KEEP)
    answer = "Received verb=KEEP contributors=4"
    handed.play(
        part,
        [
            ("attach", (handed.right, keep, "r", 5),
             ["parent: Keep contributors=4 pieces=1 + 'r'"]),
            ("attach", (handed.right, keep, "again", 5), ["drop again"]),
            ("attach", (handed.left, keep, "other", 5), ["drop other"]),
            ("received", (received,), ["drop r", f"left,right: {answer}"]),
            ("attach", (handed.right, keep, "late", 5), ["drop late", f"right: {answer}"]),
        ],
    )  # fmt: skip
    handed.outbox.step = 1
    handed.play(
        part,
        [
            ("attach", (handed.right, keep, "late", 5), ["drop late", f"right: {answer}"]),
            ("attach", (handed.right, replace(keep, part=1), "other", 5),
             ["parent: Keep part=1 contributors=4 pieces=1 + 'other'"]),
            ("received", (received,), []),
            ("received", (replace(received, part=1),),
             ["drop other", "left,right: Received part=1 verb=KEEP contributors=4"]),
        ],
    )  # fmt: skip


def test_contributions_meet_in_a_slot_and_one_sum_goes_up() -> None:
    """I6, S1. Goal: the course of an extent in a slot: receipts, the sum that is asked for, the
    push of the sum, a repetition, and the end of it when the parent has it."""
    handed = Handed()
    raw = RawUp(handed.outbox, handed.uplink)
    weights = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    part = Aggregation(
        handed.outbox, handed.children, handed.uplink, handed.attempts, weights, raw, handed.limits
    )
    given = {"index": 7, "dtype": "float32", "last": True, "weight": 1.0}
    left, right = (message(wire.Push, contributors=each, **given) for each in (LEFT, RIGHT))
    answer = "Received index=7 verb=PUSH contributors={}"
    handed.play(part, [("push", (handed.right, right, "r", 40), [f"right: {answer.format(4)}"])])
    part.push(handed.left, left, "l", 40)
    receipt, total = handed.outbox.take()
    assert line(receipt) == f"left: {answer.format(3)}"
    assert total == Sum((0, 0, 7), 0, ("l", "r"), ("float32", "float32"))
    pushed = "Push index=7 contributors=7 weight=2.0 last=True dtype=float32 + 'sum'"
    received = message(wire.Received, index=7, contributors=7, verb=Verb.PUSH)
    handed.play(
        part,
        [
            ("summed", (total, "sum", 40), ["drop r", "drop l", f"parent: {pushed}"]),
            ("push", (handed.left, left, "again", 40), ["drop again", f"left: {answer.format(3)}"]),
            ("received", (received,), ["drop sum"]),
        ],
    )
    assert part.duplicates == {"ranks 0, 1": 1}
    assert len(handed.uplink) == 0


def test_an_extent_that_finds_no_slot_goes_up_raw() -> None:
    """S5. Goal: with no room every contribution goes up singly, and none is summed here."""
    handed = Handed(slot_bytes_max=0)
    raw = RawUp(handed.outbox, handed.uplink)
    weights = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    part = Aggregation(
        handed.outbox, handed.children, handed.uplink, handed.attempts, weights, raw, handed.limits
    )
    for child in (handed.left, handed.right):
        push = message(wire.Push, index=7, dtype="float32", contributors=child.ranks)
        part.push(child, push, child.peer, 40)
    sent = [each for each in handed.outbox.take() if isinstance(each, Send)]
    pushes = [each.message for each in sent if isinstance(each.message, wire.Push)]
    assert [(each.raw, each.contributors) for each in pushes] == [(True, LEFT), (True, RIGHT)]
    assert raw.count == 2

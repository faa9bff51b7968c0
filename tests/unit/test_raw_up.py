"""Contributions that find no slot, built alone: they go up singly, and are answered on the way."""

from __future__ import annotations

from typing import Any

from luwu.protocol.contribution import Contribution
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.raw_up import RawUp
from tests.unit.switch_parts import LEFT, RIGHT, Handed, message

KEY = (0, 0, 7)
PUSHED = "index=7 contributors={} weight=1.0 last=True raw=True dtype=float32 + {!r}"


def of(ranks: int, payload: Any, nbytes: int = 60) -> Contribution:
    return Contribution(ranks, 1.0, True, "float32", payload, nbytes)


def receipt(ranks: int) -> Any:
    return message(wire.Received, index=7, contributors=ranks, verb=Verb.PUSH)


def test_a_contribution_is_answered_when_it_enters_the_window() -> None:
    """S5, I5. Goal: what waits for the window is not answered, and its repetition is dropped
    without an answer; both are when the bytes are on their way. Method: room for one."""
    handed = Handed()
    part = RawUp(handed.outbox, handed.uplink)
    left, right = PUSHED.format(LEFT, "l"), PUSHED.format(RIGHT, "r")
    answer = "right: Received index=7 verb=PUSH contributors=4"
    handed.play(
        part,
        [
            ("push", ("left", KEY, of(LEFT, "l"), receipt(LEFT)),
             [f"parent: Push {left}", "left: Received index=7 verb=PUSH contributors=3"]),
            ("push", ("right", KEY, of(RIGHT, "r"), receipt(RIGHT)), []),
            ("push", ("right", KEY, of(RIGHT, "again"), receipt(RIGHT)), ["drop again"]),
        ],
    )  # fmt: skip
    handed.play(
        handed.uplink,
        [("arrived", (0, ("push", *KEY, LEFT)), ["drop l", f"parent: Push {right}", answer])],
    )
    handed.play(
        part,
        [("push", ("right", KEY, of(RIGHT, "late"), receipt(RIGHT)), ["drop late", answer])],
    )
    assert part.count == 2
    assert KEY in part


def test_what_was_in_a_slot_goes_up_as_it_was_taken() -> None:
    """S5. Goal: a contribution whose slot is lost goes up raw; its child is answered then, if it
    was not before."""
    handed = Handed()
    part = RawUp(handed.outbox, handed.uplink)
    answered: list[str] = []
    handed.play(
        part,
        [
            ("push_held", (KEY, of(LEFT, "l"), None), [f"parent: Push {PUSHED.format(LEFT, 'l')}"]),
            ("push_held", (KEY, of(RIGHT, "r", 0), lambda: answered.append("right")),
             [f"parent: Push {PUSHED.format(RIGHT, 'r')}"]),
        ],
    )  # fmt: skip
    assert answered == ["right"]


def test_a_step_is_forgotten() -> None:
    """Goal: an extent of the next step has slots again."""
    handed = Handed()
    part = RawUp(handed.outbox, handed.uplink)
    for step in (0, 1):
        part.push("left", (step, 0, 7), of(LEFT, None, 0), receipt(LEFT))
    part.forget(0)
    assert (0, 0, 7) not in part
    assert (1, 0, 7) in part
    part.forget()
    assert (1, 0, 7) not in part

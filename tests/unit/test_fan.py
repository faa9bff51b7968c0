"""The fan between a switch's core and several nodes: what the core is told, and what it is not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from switch_emu.switch.core.fan import Fan

STAMP: dict[str, Any] = {
    "job": 7, "epoch": 0, "role": Role.NODE, "rank": 0, "incarnation": 1, "generation": 1,
}  # fmt: skip
BLANK: dict[str, Any] = {"int": 0, "bool": False, "float": 0.0, "str": ""}


def said(kind: type[Any], attempt: int, step: int, **values: Any) -> Any:
    """A message; what the fan does not look at is blank."""
    given = {**STAMP, "attempt": attempt, "step": step, **values}
    blank = {each.name: BLANK.get(str(each.type)) for each in fields(kind)}
    return kind(**blank | given)


def welcome(attempt: int, step: int) -> Any:
    return said(wire.Welcome, attempt, step, loaded=True, push_window_bytes=9)


def skip(attempt: int, step: int) -> Any:
    return said(wire.Verdict, attempt, step, applied=False)


def decided(attempt: int, step: int) -> Any:
    return said(wire.Decided, attempt, step, applied=False)


def abort(attempt: int, step: int) -> Any:
    return said(wire.Abort, attempt, step, loaded=True)


def greeted() -> Fan:
    """Two nodes have welcomed us, at attempt 1 and step 0."""
    fan = Fan(2)
    hello = said(wire.Hello, 0, 0, role=Role.SWITCH, contributors=1)
    fan.up(hello, b"")
    assert fan.down(0, welcome(1, 0)) == []
    assert len(fan.down(1, welcome(1, 0))) == 1
    return fan


def test_a_decision_said_again_brings_no_attempt_along() -> None:
    """I6. Goal: the core hears of an abort that follows a skipped step, though a node answers a
    late Commit of that step under the attempt of now. Method: the order of messages of a history in
    which nobody went on: skip, abort at node 0, its Decided said again, then the abort of all."""
    fan = greeted()
    assert fan.down(0, skip(2, 0)) == []
    assert fan.down(1, skip(2, 0)) == [skip(2, 0)]
    assert fan.down(0, abort(3, 1)) == []
    assert fan.down(1, decided(2, 0)) == []
    (told,) = fan.down(0, decided(3, 0))
    assert isinstance(told, wire.Decided)
    (told,) = fan.down(1, abort(3, 1))
    assert isinstance(told, wire.Abort)
    assert told.attempt == 3


def test_a_decision_without_its_verdict_brings_the_attempt_of_the_skip() -> None:
    """Goal: where the verdict was lost, the core takes the new attempt from the decision, and no
    abort to the same attempt is told after it."""
    fan = greeted()
    assert fan.down(0, decided(2, 0)) == []
    (told,) = fan.down(1, decided(2, 0))
    assert isinstance(told, wire.Decided)
    assert fan.down(0, abort(2, 1)) == []
    assert fan.down(1, abort(2, 1)) == []

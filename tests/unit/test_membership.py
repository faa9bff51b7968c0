"""The switch as a member of its job, built alone: one Hello, one Leave, and who counts."""

from __future__ import annotations

from typing import Any

from luwu.protocol.actions import End, Expel
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.membership import Membership
from tests.unit.switch_parts import DESCRIPTION, LEFT, RIGHT, Handed, hello, line, message

S = 10**9
BYTES = DESCRIPTION.to_bytes()
HELLO_UP = (
    f"parent: Hello protocol={hello(LEFT).protocol} world_size=3 contributors=7 present={{}} "
    f"roll={{}} description_hash={DESCRIPTION.hash} + {len(BYTES)} bytes"
)
WELCOME = "contributors=7 loaded=True push_window_bytes=16777216"


def made(**limits: Any) -> tuple[Handed, Membership]:
    handed = Handed(joined=False, **limits)
    return handed, Membership(
        handed.outbox, handed.children, handed.uplink, handed.attempts, handed.limits
    )


def welcome(attempt: int = 0, **given: Any) -> Any:
    return message(
        wire.Welcome, attempt=attempt, generation=1,
        **{"contributors": 7, "loaded": True, "push_window_bytes": 9, **given},
    )  # fmt: skip


def joined(**limits: Any) -> tuple[Handed, Membership]:
    """Both children have joined, and the parent has welcomed the switch."""
    handed, part = made(**limits)
    part.hello("left", hello(LEFT), BYTES)
    part.hello("right", hello(RIGHT), BYTES)
    assert part.awaits(welcome())
    part.welcomed(welcome())
    part.welcome_children(is_first=False)
    handed.outbox.take()
    return handed, part


def test_one_hello_goes_up_when_all_have_joined() -> None:
    """I6. Goal: the parent is asked once; its Welcome goes to all, and again to whoever comes back;
    a Welcome that nobody asked for is not followed."""
    handed, part = made()
    assert part.waits_for() == "Hello of ranks 0, 1, 2"
    handed.play(
        part,
        [
            ("hello", ("left", hello(LEFT), BYTES), []),
            ("hello", ("right", hello(RIGHT), BYTES), [HELLO_UP.format(7, 1)]),
            ("hello", ("right", hello(RIGHT), BYTES), []),
        ],
    )
    assert part.waits_for() == "Welcome of the parent"
    assert part.awaits(welcome())
    assert part.welcomed(welcome())
    part.welcome_children(is_first=True)
    assert [line(each) for each in handed.outbox.take()] == [f"left,right: Welcome {WELCOME}"]
    back = ("left2", hello(LEFT), BYTES)
    handed.play(part, [("hello", back, [f"left2: Welcome {WELCOME}"])])
    assert part.waits_for() == ""
    assert not part.awaits(welcome())
    assert part.awaits(welcome(attempt=1))


def test_a_child_that_is_started_again_ends_the_attempt() -> None:
    """I6. Goal: the switch asks for another attempt, and welcomes the new start only into that; the
    others are sent its Abort."""
    handed, part = joined()
    again = hello(RIGHT, incarnation=8)
    text = "ranks 2 were started again"
    handed.play(part, [("hello", ("right2", again, BYTES), [f"parent: Cancel lost=4 text={text}"])])
    former = part.aborted(message(wire.Abort, attempt=1, generation=1, contributors=7, loaded=True))
    assert former == ("left",)
    handed.outbox.attempt = 1
    handed.play(
        part,
        [
            ("abort_children", (former, text),
             [f"left: Abort contributors=7 loaded=True text={text}", f"right2: Welcome {WELCOME}"]),
        ],
    )  # fmt: skip
    assert part.aborted(message(wire.Abort, attempt=1, generation=1, contributors=7)) is None


def test_leave_goes_up_when_all_have_left() -> None:
    """Goal: one Leave, and its receipt goes to all; who asks later is answered at once, and who
    comes later is refused where it does not count."""
    handed, part = joined()
    members = handed.children.members
    left, right = members.member_at("left"), members.member_at("right")
    leave = message(wire.Leave)
    handed.play(
        part,
        [
            ("leave", (left, leave), []),
            ("leave", (right, leave), ["parent: Leave contributors=7"]),
            ("leave", (right, leave), []),
            ("leave_received", (message(wire.Received, verb=Verb.LEAVE),),
             ["left,right: Received verb=LEAVE"]),
            ("leave", (left, leave), ["left: Received verb=LEAVE"]),
        ],
    )  # fmt: skip
    assert part.is_over
    members.active = LEFT
    part.hello("right2", hello(RIGHT), BYTES)
    assert [line(each).partition(" text")[0] for each in handed.outbox.take()] == [
        "note switch.refused", "right2: Refuse",
    ]  # fmt: skip


def test_a_child_that_is_behind_is_sent_the_attempt_that_counts() -> None:
    """I6. Goal: which messages may change anything, and the answers to those that may not."""
    handed, part = joined()
    handed.outbox.attempt = 2
    members = handed.children.members
    left = members.member_at("left")
    assert left is not None
    for attempt, generation, is_current in ((2, 1, True), (3, 1, False), (2, 2, False)):
        m = message(wire.Pull, attempt=attempt, generation=generation)
        assert part.is_current(left, m) is is_current
        assert handed.outbox.take() == []
    stale = message(wire.Pull, attempt=1, generation=1)
    abort = "left: Abort contributors={} loaded=True text={}"
    handed.play(
        part,
        [("is_current", (left, stale), [abort.format(7, "attempt 1 is over, 2 counts")])],
    )
    members.active = RIGHT
    handed.play(
        part, [("is_current", (left, stale), [abort.format(4, "ranks 0, 1 are not in it")])]
    )


def test_a_child_that_breaks_the_protocol_is_expelled() -> None:
    """Goal: it is refused by name, and its connection is no child's any more."""
    handed, part = joined()
    right = handed.children.members.member_at("right")
    assert right is not None
    part.expel(right, "it did so")
    note, refuse, expel = handed.outbox.take()
    assert line(note) == "note switch.expelled"
    assert line(refuse) == "right: Refuse text=ranks 2: it did so"
    assert expel == Expel("right")
    assert handed.children.members.member_at("right") is None


def test_presence_is_reported_when_it_changes() -> None:
    """Goal: a child that is away for the patience is reported missing, once, until the parent has
    the report; one that is back is reported at once."""
    handed, part = joined(patience_ns=2 * S)
    part.lost("right")
    assert part.next_ns() == 2 * S
    handed.outbox.now_ns = 2 * S
    received = message(wire.Received, verb=Verb.PRESENT, contributors=3)
    handed.play(
        part,
        [
            ("tick", (), ["parent: Present contributors=3 roll=2"]),
            ("tick", (), []),
            ("present_received", (received,), []),
            ("hello", ("right", hello(RIGHT), BYTES), [f"right: Welcome {WELCOME}"]),
            ("tick", (), ["parent: Present contributors=7 roll=3"]),
        ],
    )


def test_a_parent_that_was_started_again_is_sent_hello() -> None:
    """Goal: Rejoin leads to one Hello, and a connection that is back to another."""
    handed, part = joined()
    rejoin = message(wire.Rejoin)
    handed.play(
        part,
        [
            ("rejoin", (rejoin,), [HELLO_UP.format(7, 2)]),
            ("rejoin", (rejoin,), []),
            ("reconnected", (), [HELLO_UP.format(7, 3)]),
        ],
    )


def test_a_refusal_ends_a_switch_that_has_not_joined() -> None:
    """Goal: children are sent the reason; the job ends only if it never began."""
    refuse = message(wire.Refuse, text="no")
    for make, ends in ((made, True), (joined, False)):
        handed, part = make()
        if ends:
            part.hello("left", hello(LEFT), BYTES)
            part.hello("right", hello(RIGHT), BYTES)
            handed.outbox.take()
        part.refused(refuse)
        found = handed.outbox.take()
        assert line(found[0]) == "left,right: Refuse text=no"
        assert [type(each).__name__ for each in found[1:]] == ["End"] * ends


def test_a_switch_whose_successor_leads_ends() -> None:
    """E3, I6. Goal: its children are sent nothing, so that they look for the successor."""
    refuse = message(wire.Refuse, text="a later start leads", is_left_out=True)
    for make in (made, joined):
        handed, part = make()
        part.refused(refuse)
        assert handed.outbox.take() == [End("a later start leads", code="E512")]


def test_a_child_that_knows_more_is_refused_when_the_parent_has_answered() -> None:
    """I2, I6. Goal: another switch may lead, which this one does not know: the parent is asked
    once, and the child is refused only if it has answered; each time anew."""
    handed, part = joined()
    knows = hello(RIGHT, step=5, generation=1)
    text = "right: Refuse text=the state"
    for roll in (2, 3):
        handed.play(
            part,
            [
                ("hello", ("right", knows, BYTES), [HELLO_UP.format(7, roll)]),
                ("hello", ("right", knows, BYTES), []),
            ],
        )
        assert part.awaits(welcome())
        assert not part.welcomed(welcome())
        handed.outbox.take()
        part.hello("right", knows, BYTES)
        note, refuse = handed.outbox.take()
        assert line(note) == "note switch.refused"
        assert line(refuse).startswith(text), line(refuse)
        assert "is_older=True" in line(refuse)

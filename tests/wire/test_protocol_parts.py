"""The small parts that all cores share, each built alone: events, their answers and messages."""

from __future__ import annotations

import pytest

from luwu.aggregate import make_aggregator
from luwu.protocol.children import Children, Outcomes, refusal_text
from luwu.protocol.contribution import PushForm
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from tests.helpers.switch_parts import DESCRIPTION, LEFT, RIGHT, hello, line, message
from tests.simulate.job import make_layout


def two_children() -> tuple[Outbox, Children]:
    """A parent at step 4 of attempt 2, with two children, who have joined."""
    outbox = Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=1)
    outbox.step, outbox.attempt = 4, 2
    children = Children(outbox, [LEFT, RIGHT])
    for peer, ranks in (("left", LEFT), ("right", RIGHT)):
        children.members.join(peer, hello(ranks), DESCRIPTION.to_bytes())
    return outbox, children


def taken(outbox: Outbox) -> list[str]:
    """The actions since the last call, as lines."""
    return [line(action) for action in outbox.take()]


# -------------------------------------------------------------------------- outcomes


def test_outcomes_are_known_by_their_step() -> None:
    """Goal: the last verdict and the last decision are found by the step they are about."""
    outcomes = Outcomes()
    assert outcomes.of(0) == []
    outcomes.decided = decided = message(wire.Decided, step=3, applied=True)
    outcomes.verdict = verdict = message(wire.Verdict, step=4, applied=True)
    assert (outcomes.of(3), outcomes.of(4), outcomes.of(5)) == ([decided], [verdict], [])
    assert (outcomes.is_judged(3), outcomes.is_judged(4)) == (False, True)


@pytest.mark.parametrize("step", [4, 5])
def test_an_outcome_is_undone_if_its_step_is_made_again(step: int) -> None:
    """Goal: a new attempt forgets the verdict, and a skip that is not before its step."""
    decided, skip = message(wire.Decided, step=3), message(wire.Verdict, step=4)
    outcomes = Outcomes(message(wire.Verdict, step=4), decided, skip, skipped_attempt=1)
    assert (outcomes.skip_into(2), outcomes.skip_into(1)) == (skip, None)
    outcomes.undo(step)
    assert outcomes.verdict is None
    assert outcomes.decided == decided
    assert outcomes.skip_into(2) == (skip if step > 4 else None)
    assert outcomes.skip_into(0) is None


# -------------------------------------------------------------------------- children


def test_a_child_is_welcomed_to_the_attempt_that_counts() -> None:
    """Goal: Welcome names the ranks, the window, and the skip that opened the attempt."""
    _, children = two_children()
    children.loaded = True
    plain = children.welcome(100)
    assert (plain.step, plain.attempt, plain.contributors) == (4, 2, LEFT | RIGHT)
    assert (plain.push_window_bytes, plain.loaded) == (100, True)
    assert (plain.began_with_skip, plain.skipped_step) == (False, 0)
    children.outcomes.skip = message(wire.Verdict, step=4, norms=(2.5,))
    children.outcomes.skipped_attempt = 1
    after_skip = children.welcome(100)
    assert (after_skip.began_with_skip, after_skip.skipped_step) == (True, 4)
    assert after_skip.norms == (2.5,)


def test_a_child_of_an_older_attempt_learns_what_it_missed() -> None:
    """Goal: Abort; the step's outcome, if it asks for that; the skip that ended its attempt."""
    outbox, children = two_children()
    children.outcomes.decided = message(wire.Decided, step=3, applied=True)
    children.outcomes.skip = message(wire.Verdict, step=4, norms=(2.5,))
    children.outcomes.skipped_attempt, outbox.attempt = 1, 3
    abort = "left: Abort step=4 contributors=7 text=attempt 0 is over, 3 counts"
    for late, expected in (
        (message(wire.Pull, attempt=0), abort),
        (message(wire.Commit, attempt=0, step=4), abort),
        (message(wire.Commit, attempt=0, step=3), "left: Decided step=3 applied=True"),
        (message(wire.Pull, attempt=1), "left: Verdict step=4 norms=(2.5,)"),
    ):
        children.answer_stale("left", late)
        assert taken(outbox) == [expected]
    outbox.generation = 1  # the node was started again, and the child did not hear of it
    children.answer_stale("left", message(wire.Commit, attempt=0, step=3))
    assert taken(outbox) == [abort]
    children.answer_stale("left", message(wire.Pull, attempt=1))
    assert taken(outbox) == [abort.replace("attempt 0", "attempt 1")]
    assert children.answer_commit("right", 3) is True
    assert taken(outbox) == ["right: Decided step=3 applied=True"]
    assert children.answer_commit("right", 4) is False
    assert taken(outbox) == []


def test_what_was_sent_before_a_skipped_step_is_not_answered_with_an_abort() -> None:
    """I2. Goal: all children had their part in the step, so what comes of an older attempt is late.
    The child may not know of the skip yet: an Abort that overtakes it would have it make the step
    again, in an attempt in which that is judged. Method: messages of older attempts and starts."""
    outbox, children = two_children()
    children.outcomes.skip = message(wire.Verdict, step=4, norms=(2.5,))
    children.outcomes.skipped_attempt = 1
    for late in (
        message(wire.Pull, attempt=1), message(wire.Pull, attempt=0),
        message(wire.Commit, attempt=0, step=3), message(wire.Cancel, generation=1),
    ):  # fmt: skip
        children.answer_stale("left", late)
        assert taken(outbox) == ["left: Verdict step=4 norms=(2.5,)"]


def test_all_children_that_count_are_sent_to() -> None:
    outbox, children = two_children()
    children.send_all(message(wire.Decided, step=3), "payload")
    assert taken(outbox) == ["left,right: Decided step=3 + 'payload'"]
    children.members.active = RIGHT
    children.send_all(message(wire.Decided, step=3))
    assert taken(outbox) == ["right: Decided step=3"]
    assert children.abort("x" * 5000).contributors == RIGHT


# -------------------------------------------------------------------------- lost steps


@pytest.mark.parametrize(
    ("found", "known", "expected"),
    [
        (0, 1, "has no decided step, but step 0 was announced as decided: step 0 is lost"),
        (2, 3, "ends with step 1, but step 2 was announced as decided: step 2 is lost"),
        (2, 4, "ends with step 1, but step 3 was announced as decided: steps 2 to 3 are lost"),
        (3, 3, "has 3 decided steps, as announced, but is an older copy: "
               "its workers know of later events that it does not contain"),
    ],
)  # fmt: skip
def test_lost_steps_are_named(found: int, known: int, expected: str) -> None:
    """Goal: the steps that are lost are exactly those from `found` up to before `known`."""
    refusal = refusal_text(found, known)
    assert refusal.startswith(f"the state of the optimizer node {expected}. ")
    assert f"recompute the steps from {found} on," in refusal
    for option in ("--state", "--resume"):
        assert option in refusal


# -------------------------------------------------------------------------- the form of a push


def test_an_encoded_push_is_as_its_aggregator_encodes_it() -> None:
    """Goal: neither a gradient in float nor one of another size is added to integers."""
    aggregator = make_aggregator("shared-exponent", 3)
    form, size = PushForm(make_layout(units=2), aggregator), aggregator.encoded_bytes(4096)
    encoded, plain = (message(wire.Push, dtype=dtype) for dtype in ("encoded", "float32"))
    assert form.fault(encoded, size, has_payload=True) == ""
    assert "as shared-exponent" in form.fault(encoded, size - 4, has_payload=True)
    assert "float32 are not" in form.fault(plain, 16384, has_payload=True)

"""The membership of a worker's core alone: what a parent's answer means, and what is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.nic.core.actions import Aborted, Refused
from luwu.nic.core.membership import Membership, Welcomed
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import CONTRIBUTORS, RANK, check, from_parent, make_ends, receipt

HELLO = "Hello 0 b'job'"


class Bench:
    """The membership of a worker that has just been started."""

    def __init__(self) -> None:
        self.outbox: Outbox
        self.uplink: Uplink
        self.outbox, self.uplink = make_ends()
        self.membership = Membership(self.outbox, self.uplink, world_size=3)

    def check(self, *triples: Any) -> None:
        """As `nic_parts.check`."""
        check(self.outbox, triples)

    def welcome(self, step: int = 0, **values: Any) -> tuple[Any, tuple[Any]]:
        """The event: the parent welcomes this worker."""
        given = {"contributors": CONTRIBUTORS, "loaded": True, "push_window_bytes": 50, **values}
        return self.membership.welcomed, (from_parent(wire.Welcome, step, **given),)

    def position(self) -> tuple[int, int, int]:
        return self.outbox.generation, self.outbox.attempt, self.outbox.step


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def member(bench: Bench) -> Bench:
    """It is a member of attempt 1, at step 3."""
    bench.membership.join(b"job", "hash")
    call, given = bench.welcome(3)
    call(*given)
    bench.outbox.take()
    return bench


def abort(step: int, attempt: int = 2, **values: Any) -> Any:
    given = {"contributors": CONTRIBUTORS, "loaded": True, "attempt": attempt, **values}
    return from_parent(wire.Abort, step, **given)


def test_a_worker_that_is_welcomed_takes_over_the_attempt(bench: Bench) -> None:
    """Goal: only the answer to its own Hello admits it."""
    bench.check(
        (bench.welcome(3), Welcomed.NOTHING, []),
        ((bench.membership.join, (b"job", "hash")), None, [HELLO]),
        (bench.welcome(3, attempt=4, generation=2), Welcomed.ADMITTED, ["Joined 3 True"]),
    )
    assert bench.position() == (2, 4, 3)
    assert bench.uplink.window_bytes == 50
    assert bench.membership.waits_for() == ""


def test_people_are_shown_which_ranks_are_missing(bench: Bench) -> None:
    """Goal: while the worker waits, and not after."""
    assert bench.membership.waits_for() == "Welcome: the parent waits for all ranks"
    note = f"Note worker.misses (('rank', {RANK}), ('text', 'ranks 0,2 have not joined')) WARNING"
    others = receipt(Verb.HELLO, contributors=CONTRIBUTORS)
    bench.check(
        ((bench.membership.join, (b"job", "hash")), None, [HELLO]),
        ((bench.membership.missing, (others,)), None, [note]),
        (bench.membership.waits_for, "ranks 0,2 have not joined", []),
        (bench.welcome(), Welcomed.ADMITTED, ["Joined 0 True"]),
        ((bench.membership.missing, (others,)), None, []),
    )


def test_a_parent_that_was_started_again_is_sent_one_hello(bench: Bench) -> None:
    """Goal: a Rejoin asks for it, a lost connection too; none is sent before the worker joins, nor
    for a Rejoin while one is under way."""
    rejoin = (bench.membership.rejoin, (from_parent(wire.Rejoin),))
    bench.check(
        (rejoin, None, []),
        (bench.membership.reconnected, None, []),
        ((bench.membership.join, (b"job", "hash")), None, [HELLO]),
        (rejoin, None, []),
        (bench.welcome(), Welcomed.ADMITTED, ["Joined 0 True"]),
        (rejoin, None, [HELLO]),
        (bench.membership.reconnected, None, [HELLO]),
    )


def test_what_a_welcome_means_to_a_member(member: Bench) -> None:
    """Goal: the attempt goes on, or a newer one, or an older copy of the state has begun; which of
    them, the caller learns from what is returned, and nothing has changed yet."""
    member.check(
        (member.welcome(3), Welcomed.RECONNECTED, []),
        (member.welcome(3, generation=2), Welcomed.OLDER_COPY, []),
        (member.welcome(3, attempt=2, generation=2), Welcomed.PEER_RESTARTED, []),
    )
    assert member.position() == (1, 1, 3)


def test_a_refusal_is_final(bench: Bench) -> None:
    """Goal: its text and reason reach the script."""
    refuse = from_parent(wire.Refuse, text="no", is_older=True)
    bench.check(((bench.membership.refused, (refuse,)), None, ["Refused no True"]))


def test_an_abort_begins_an_attempt(member: Bench) -> None:
    """Goal: the worker takes it over, and does not ask to cancel it for a reason of the old one."""
    member.check(((member.membership.cancel, ("oom",)), None, ["Cancel 3"]))
    expected = Aborted(3, "rank 0 ended", loaded=True)
    restarted = (member.membership.restarted, (abort(3), "rank 0 ended", 3))
    member.check((restarted, expected, []), (member.membership.repeat, None, []))
    assert member.position() == (1, 2, 3)


def test_a_skipped_step_does_not_withdraw_what_was_asked(member: Bench) -> None:
    """Goal: cancel and leave are sent again under the new attempt, the reason cut to its limit."""
    member.membership.cancel("x" * 2000)
    member.membership.leave()
    cancel, _ = member.outbox.take()
    assert len(cancel.message.text) == 900
    member.outbox.attempt = 2
    left = (member.membership.left, (receipt(Verb.LEAVE),))
    member.check(
        (member.membership.repeat, None, ["Cancel 3 @2", "Leave 3 @2"]),
        (left, None, ["Left"]),
        (left, None, []),
    )


def test_a_worker_that_is_left_out_asks_to_be_admitted_again(member: Bench) -> None:
    """Goal: it goes back to its first undecided step, and stays in the attempt that is over until
    one counts it again."""
    left_out = (member.membership.restarted, (abort(5, contributors=1), "rank 1 is late", 4))
    text = "the job goes on without this rank: rank 1 is late"
    member.check(
        (left_out, Aborted(4, text, loaded=True, counts=False), []),
        (member.membership.repeat, None, ["Hello 3 b'job'"]),
        (lambda: member.membership.is_left_out, True, []),
        (member.welcome(6, attempt=3), Welcomed.COUNTS_AGAIN, []),
        (lambda: member.membership.is_left_out, False, []),
    )
    assert member.position() == (1, 1, 3)


def test_decided_steps_are_not_lost_unnoticed(member: Bench) -> None:
    """Goal: a state without them is refused, unless the operator lets the job redo them."""
    refused = member.membership.restarted(abort(1), "older", None)
    assert isinstance(refused, Refused)
    assert refused.is_older
    assert member.position() == (1, 1, 3)
    redone = member.membership.restarted(abort(1, redoes=True), "older", None)
    assert isinstance(redone, Aborted)
    assert (redone.step, redone.is_older) == (1, True)
    assert redone.text.endswith("steps 1 to 2 are lost")
    assert member.position() == (1, 2, 1)

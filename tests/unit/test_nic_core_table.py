"""The worker's core: which messages of a parent it takes, and when."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from luwu.nic.core import NicCore
from luwu.nic.core.worker import Kind
from luwu.wire import messages as wire
from luwu.wire.kinds import PayloadRule, Verb
from tests.unit.nic_parts import CONTRIBUTORS, RANK, from_parent, receipt, short

OF_CHILDREN = {
    wire.Hello, wire.Load, wire.Begin, wire.Push, wire.Propose, wire.Pull,
    wire.Commit, wire.Keep, wire.Cancel, wire.Leave, wire.Present,
}  # fmt: skip
"""A worker or a switch sends these, and no parent."""
OF_NODES = {
    wire.Measured, wire.Prepared, wire.Resolved, wire.Standing, wire.Adopt, wire.Copy, wire.Page,
}  # fmt: skip
"""Several optimizer nodes, and the switch that leads them, send these."""
OF_READERS = {*get_args(wire.ReaderRequest), *get_args(wire.ReaderAnswer)}
OF_SWITCHES = {Verb.PRESENT, Verb.PAGE}
"""Receipts of what a worker never sends."""
TAKEN = sorted(NicCore.FROM_PARENT, key=str)
IGNORED = sorted(OF_CHILDREN | OF_NODES | OF_READERS | OF_SWITCHES, key=str)


def member(attempt: int = 2) -> NicCore:
    """It has joined at step 0."""
    core = NicCore(job=7, rank=RANK, world_size=3, incarnation=5)
    core.join(0, b"job", "hash")
    welcome = {"loaded": True, "push_window_bytes": 100, "contributors": CONTRIBUTORS}
    core.received(0, from_parent(wire.Welcome, attempt=attempt, **welcome))
    return core


def given(kind: Kind, **values: Any) -> tuple[Any, Any]:
    """A message of a kind, and its payload if it has one."""
    if isinstance(kind, Verb):
        return receipt(kind, **values), None
    payload = None if kind.PAYLOAD is PayloadRule.NONE else "payload"
    return from_parent(kind, **values), payload


def test_the_table_has_every_message_that_a_parent_sends() -> None:
    """Goal: a new message or verb is put into this table, or named here as somebody else's."""
    messages = set(wire.MESSAGE_TYPES) - OF_CHILDREN - OF_NODES - OF_READERS - {wire.Received}
    assert set(NicCore.FROM_PARENT) == messages | set(Verb) - OF_SWITCHES
    assert set(NicCore.FROM_PARENT) > NicCore.OF_ANY_ATTEMPT | NicCore.OF_A_NEWER_ATTEMPT


@pytest.mark.parametrize("kind", IGNORED)
def test_a_message_without_a_method_is_ignored(kind: Kind) -> None:
    """I7. Goal: whatever a parent sends that is not for a worker, a data payload is dropped and
    nothing else happens."""
    core = member()
    message, payload = given(kind, attempt=2)
    expected = ["Drop payload"] if message.IS_DATA and payload else []
    assert [short(each) for each in core.received(1, message, payload)] == expected


@pytest.mark.parametrize("kind", TAKEN)
def test_only_the_attempt_that_counts_is_taken(kind: Kind) -> None:
    """I6. Goal: each message is taken of the attempts that the table names, and of no other."""
    core = member()
    for attempt, is_taken in [
        (1, kind in NicCore.OF_ANY_ATTEMPT),
        (2, True),
        (3, kind in NicCore.OF_ANY_ATTEMPT | NicCore.OF_A_NEWER_ATTEMPT),
    ]:
        message, _ = given(kind, attempt=attempt)
        assert core._takes(kind, message) == is_taken, attempt
    fenced, _ = given(kind, attempt=2, generation=0)
    assert core._takes(kind, fenced) == (kind in NicCore.OF_ANY_ATTEMPT)


@pytest.mark.parametrize("kind", TAKEN)
def test_a_worker_that_has_not_joined_takes_the_answers_to_its_hello_alone(kind: Kind) -> None:
    """Goal: what a former start of this rank was sent does not reach it."""
    core = NicCore(job=7, rank=RANK, world_size=3, incarnation=5)
    message, _ = given(kind)
    assert core._takes(kind, message) == (kind in NicCore.OF_ANY_ATTEMPT)


def test_a_skipped_step_is_sent_again_part_by_part() -> None:
    """I6. Goal: a verdict that skips a step opens an attempt, in which open pulls, the commit, the
    attachment and the goodbye are sent again in this order, and nothing else."""
    core = member(attempt=1)
    core.pull(1, 1, 1, 0, [4])
    core.commit(2, 0, 1, b"hyper")
    core.attach(3, 0, [b"piece"])
    core.leave(4)
    skip = from_parent(wire.Verdict, attempt=2, applied=False)
    assert [short(each) for each in core.received(5, skip)] == [
        "Drop b'piece'",
        "Pull 1.0.4 @2",
        "Commit 0 b'hyper' @2",
        "Keep 0.0.0 b'piece' @2",
        "Leave 0 @2",
        "Judged 0 False (0.0,)",
    ]
    assert core.received(6, skip) == []


def test_an_abort_voids_everything_that_is_open() -> None:
    """I6. Goal: a push is dropped, its handle is never done; decisions that were lost on their way
    are requested again."""
    core = member(attempt=1)
    core.commit(1, 0, 1, b"hyper")
    core.attach(2, 0, [b"piece"])
    abort = {"attempt": 2, "contributors": CONTRIBUTORS, "loaded": True, "text": "lost"}
    assert [short(each) for each in core.received(3, from_parent(wire.Abort, 1, **abort))] == [
        "Drop b'piece'",
        "Aborted 1 lost True True False",
        "Commit 0 b'hyper' @2",
    ]
    decided = from_parent(wire.Decided, attempt=2, applied=True, norms=(1.0,))
    assert [short(each) for each in core.received(4, decided)] == ["StepDecided 0 True (1.0,)"]


def test_a_welcome_under_the_next_attempt_stands_for_a_lost_verdict() -> None:
    """I6. Goal: if the attempt began with a skip, only weights are void; else the step is."""
    values = {"attempt": 2, "contributors": CONTRIBUTORS, "loaded": True, "push_window_bytes": 9}
    for began_with_skip, expected in [
        (True, ["Commit 0 b'hyper' @2", "Judged 0 False (0.0,)"]),
        (False, ["Aborted 0 a peer was started again True True False"]),
    ]:
        core = member(attempt=1)
        core.commit(1, 0, 1, b"hyper")
        welcome = from_parent(wire.Welcome, **values, began_with_skip=began_with_skip)
        assert [short(each) for each in core.received(2, welcome)] == expected

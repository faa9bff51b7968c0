"""The steps of a worker's core alone: when they begin, and when they are committed."""

from __future__ import annotations

from luwu.nic.core.steps import Steps
from luwu.protocol.actions import Send
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import CONTRIBUTORS, check, make_ends, receipt


def make() -> tuple[Steps, Outbox, Uplink]:
    outbox, uplink = make_ends()
    return Steps(outbox, uplink), outbox, uplink


def test_a_step_begins_after_the_verdict_of_the_step_before() -> None:
    """Goal: that verdict may open a new attempt, so the hyper-parameters wait for it."""
    steps, outbox, uplink = make()
    check(outbox, [
        (lambda: steps.begin(0, b"0", judged=-1), None, ["Begin 0 b'0'"]),
        ((steps.begun, (receipt(Verb.BEGIN, step=0),)), None, []),
    ])  # fmt: skip
    assert len(uplink) == 0, "it is not repeated any more"
    check(outbox, [
        (lambda: steps.begin(1, b"1", judged=-1), None, []),
        ((steps.judged, (0,)), None, ["Begin 1 b'1'"]),
        ((steps.judged, (0,)), None, []),
    ])  # fmt: skip


def test_commits_follow_each_other() -> None:
    """Goal: one commit is under way at a time; the next is sent when it is decided."""
    steps, outbox, _ = make()
    check(outbox, [
        (lambda: steps.commit(0, 1, b"0", skip=False), None, ["Commit 0 b'0'"]),
        (lambda: steps.commit(1, 1, b"1", skip=False), None, []),
        (lambda: steps.committed, 0, []),
        (steps.decided, None, ["Commit 1 b'1'"]),
        (lambda: steps.committed, 1, []),
        (steps.decided, None, []),
        (lambda: steps.committed, None, []),
    ])  # fmt: skip


def test_a_commit_carries_what_it_was_given() -> None:
    """Goal: every field of the message."""
    steps, outbox, _ = make()
    steps.commit(3, 2, b"hyper", skip=True)
    [send] = outbox.take()
    assert isinstance(send, Send)
    m = send.message
    assert (m.step, m.contributors, m.parts, m.skip) == (3, CONTRIBUTORS, 2, True)
    assert send.payload == b"hyper"


def test_a_skipped_step_is_committed_again_under_the_new_attempt() -> None:
    """Goal: its decision is still awaited."""
    steps, outbox, _ = make()
    steps.commit(0, 1, b"0", skip=False)
    outbox.take()
    outbox.attempt = 2
    check(outbox, [(steps.repeat, None, ["Commit 0 b'0' @2"])])


def test_a_restart_voids_what_is_not_decided() -> None:
    """Goal: of the steps before, the decisions were lost on their way and are requested again."""
    steps, outbox, _ = make()
    for step in range(3):
        steps.commit(step, 1, b"%d" % step, skip=False)
    steps.begin(3, b"3", judged=0)
    outbox.take()
    outbox.attempt = 2
    check(outbox, [
        ((steps.restart, (2,)), None, ["Commit 0 b'0' @2"]),
        ((steps.judged, (2,)), None, []),
        (steps.decided, None, ["Commit 1 b'1' @2"]),
        (steps.decided, None, []),
        ((steps.restart, (0,)), None, []),
    ])  # fmt: skip

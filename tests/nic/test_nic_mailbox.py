"""The mailbox between a worker's I/O thread and its training thread, posted to by the tests."""

from __future__ import annotations

import threading

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    OlderStateError,
    StepAborted,
)
from luwu.base.events import Recorder
from luwu.nic.core.actions import Aborted, Joined, Judged, Left, Refused, StepDecided
from luwu.nic.threads import OVER_S, Mailbox

ANY_ERA = None


def mailbox_with(grace_s: float) -> Mailbox:
    recorder = Recorder(role="worker", printed=None)
    return Mailbox(rank=1, grace_s=grace_s, recorder=recorder, waits_for=lambda: "the script")


@pytest.fixture
def mailbox() -> Mailbox:
    """No wait in it ever lasts: a condition that does not hold ends at the deadline."""
    return mailbox_with(-1.0)


def test_a_step_has_a_verdict_before_it_is_decided(mailbox: Mailbox) -> None:
    """Goal: each wait ends with its own action; steps that were not committed here are ignored."""
    handle = mailbox.new_step(3)
    mailbox.post(Judged(2, applied=True, norms=(9.0,)))
    mailbox.post(Judged(3, applied=True, norms=(1.5,)))
    assert handle.verdict() == (True, (1.5,))
    with pytest.raises(DeadlineError, match=r"the decision of step 3 \(the script\)"):
        handle.decision()
    mailbox.post(StepDecided(3, applied=False, norms=(2.0,)))
    mailbox.post(StepDecided(4, applied=True, norms=(2.0,)))
    assert handle.decision() == (False, (2.0,))


def test_an_abort_is_raised_once(mailbox: Mailbox) -> None:
    """Goal: a new era begins; what was asked for in the older one is void, and the steps before the
    one to go back to are still decided."""
    decided, lost = mailbox.new_step(3), mailbox.new_step(4)
    mailbox.post(Aborted(4, "a peer was started again", loaded=True))
    with pytest.raises(StepAborted, match="a peer was started again") as caught:
        mailbox.raise_if_aborted()
    assert caught.value.step == 4
    mailbox.raise_if_aborted()
    assert (mailbox.era, mailbox.known_era) == (1, 1)
    assert mailbox.joined == Joined(4, loaded=True)
    with pytest.raises(StepAborted, match="the verdict of step 4 was lost with its attempt"):
        lost.verdict()
    mailbox.post(StepDecided(3, applied=True, norms=(1.0,)))
    assert decided.decision() == (True, (1.0,))


def test_the_first_error_counts(mailbox: Mailbox) -> None:
    """Goal: every later call raises it; a refusal is a fault of the configuration or the state."""
    for refused, kind in [(Refused("no"), ConfigError), (Refused("no", True), OlderStateError)]:
        each = mailbox_with(-1.0)
        each.post(refused)
        each.fail(ConnectionFailed("closed"))
        with pytest.raises(kind, match="worker 1 was rejected: no"):
            each.raise_if_aborted()
    mailbox.fail(ConnectionFailed("closed"))
    with pytest.raises(ConnectionFailed, match="closed"):
        mailbox.wait_until(lambda: False, "anything", ANY_ERA)


def test_a_condition_that_holds_does_not_wait(mailbox: Mailbox) -> None:
    """Goal: not even for an error, so that what was received is not lost."""
    mailbox.post(Left())
    mailbox.fail(ConnectionFailed("closed"))
    mailbox.wait_until(lambda: mailbox.has_left, "the parent", ANY_ERA)


def test_who_waits_is_not_woken_for_nothing() -> None:
    """Goal: the I/O thread asks whether the condition holds, and wakes the training thread then."""
    mailbox = mailbox_with(60.0)
    asking: list[int | None] = []
    here = threading.get_ident()
    waits, arrived = threading.Event(), False

    def has_arrived() -> bool:
        asking.append(threading.get_ident())
        waits.set()  # the mailbox is ours until we wait
        return arrived

    waiter = threading.Thread(
        target=mailbox.wait_until, args=(has_arrived, "weights", ANY_ERA), daemon=True
    )
    waiter.start()
    waits.wait()
    for count in range(1, 4):
        mailbox.notify()
        assert asking.count(here) == count
    arrived = True
    mailbox.notify()
    waiter.join()
    assert asking[-1] == waiter.ident
    asked_count = asking.count(here)
    mailbox.notify()
    assert asking.count(here) == asked_count  # no thread waits, so none is asked


def test_a_rank_that_was_left_out_does_not_wait_for_a_job_that_is_gone() -> None:
    """Goal: a worker that stood still (SIGSTOP, a laptop's sleep) while the job went on and ended
    ends soon, and not after the time to connect. Method: it wakes 10 s after the end."""
    mailbox = mailbox_with(60.0)
    mailbox.post(Aborted(4, "late", loaded=True, counts=False))
    with pytest.raises(StepAborted):
        mailbox.raise_if_aborted()
    mailbox.down_ns, mailbox.trouble = SYSTEM_CLOCK.now_ns() - int(OVER_S * 1e9) - 1, "refused"
    with pytest.raises(ConnectionFailed, match="worker 1 was left out"):
        mailbox.wait_until(lambda: False, "anything", ANY_ERA)

"""The NIC's core alone, with a parent's messages made by hand."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from luwu.aggregate import make_aggregator
from luwu.base.errors import RemoteProtocolError
from luwu.base.retry import RetryPolicy
from luwu.nic.core import NicCore
from luwu.nic.core.actions import Done, Encode, Gradient, Measure
from luwu.nic.core.reader import ReaderCore
from luwu.nic.core.requests import Encodings
from luwu.protocol.actions import Drop, Send
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.messages import Push, Role, Verb
from tests.helpers.local_job import MIB
from tests.helpers.switch_parts import message


def stamped(kind: type[Any], **values: Any) -> Any:
    """A message of the parent under attempt 1; fields that are not given are blank."""
    stamp = {"attempt": 1, "generation": 1, "role": Role.NODE, "incarnation": 9}
    return message(kind, **stamp | values)


def welcomed(*, loaded: bool = True, window_bytes: int = MIB) -> NicCore:
    """The core of a job's one worker, in attempt 1."""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=2)
    core.join(0, b"job", "hash")
    welcome = {"loaded": loaded, "push_window_bytes": window_bytes, "contributors": 1}
    core.received(1, stamped(wire.Welcome, **welcome))
    return core


def sent(actions: list[Any], kind: type[Any]) -> list[Any]:
    """The messages of a kind among what a core asks for."""
    messages = [each.message for each in actions if isinstance(each, Send)]
    return [each for each in messages if isinstance(each, kind)]


def test_a_worker_ahead_of_the_decision_asks_when_it_can_be_answered() -> None:
    """Goal: a fast worker pulls for step t + 2 before step t is decided (a slow disk); the parent
    would drop that, so it is asked when the decision comes, not at a repetition.
    Method: the NIC's core alone, with a parent's messages made by hand."""
    core = welcomed()

    def pulls(actions: list[Any]) -> list[tuple[int, int]]:
        asked = sent(actions, wire.Pull)
        return [(pull.step, pull.index + index) for pull in asked for index in range(pull.count)]

    assert pulls(core.pull(2, 1, 0, 0, [4])) == [(0, 4)]
    core.commit(3, 0, 1, b"hyper")
    assert pulls(core.pull(4, 2, 1, 0, [4])) == [(1, 4)]
    core.received(5, stamped(wire.Verdict, applied=True, norms=(1.0,)))
    assert pulls(core.pull(6, 3, 2, 0, [4, 5])) == []
    assert pulls(core.pull(7, 4, 2, 0, [6])) == []
    core.forget(4)
    actions = core.received(8, stamped(wire.Decided, applied=True, norms=(1.0,)))
    assert pulls(actions) == [(2, 4), (2, 5)]
    assert pulls(core.pull(9, 5, 2, 0, [7])) == [(2, 7)]


@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_worker_without_samples_is_not_ahead_of_a_verdict(is_skipped: bool) -> None:
    """Goal: a rank that needs no weights pushes for step t + 1 before the verdict of step t: it is
    held until then, and sent under the attempt that counts. (The parent dropped what was two steps
    ahead, for 10 s each time; after a skipped step it was never sent again, and all waited.)"""
    core, payloads = welcomed(), [object(), object(), object()]

    def pushes(actions: list[Any]) -> list[tuple[int, int]]:
        return [(each.step, each.attempt) for each in sent(actions, Push)]

    def push(handle: int, step: int) -> list[Any]:
        gradient = Gradient(index=0, payload=payloads[step], payload_bytes=100, dtype="float32")
        return core.push(9, handle, step, 0, [gradient], last=False)

    assert pushes(push(1, 0)) == [(0, 1)]
    core.received(2, stamped(wire.Received, verb=Verb.PUSH, contributors=1))
    core.commit(3, 0, 1, b"hyper")
    assert pushes(push(2, 1)) == []
    core.commit(4, 1, 1, b"hyper")
    assert pushes(push(3, 2)) == []
    counts = 2 if is_skipped else 1
    verdict = stamped(wire.Verdict, attempt=counts, applied=not is_skipped, norms=(1.0,))
    assert pushes(core.received(5, verdict)) == [(1, counts)]
    abort = stamped(wire.Abort, attempt=3, step=1, text="a test", contributors=1, loaded=True)
    aborted = core.received(6, abort)
    assert {id(a.payload) for a in aborted if isinstance(a, Drop)} == {id(p) for p in payloads[1:]}
    assert pushes(push(4, 1)) == [(1, 3)]


def test_a_receipt_for_what_was_not_sent_yet_is_nobodys() -> None:
    """Goal: rank 0 ends while it loads the first weights; a receipt of what its former start loaded
    reaches the next one before that has sent the chunk. It once waited for ever after."""
    core = welcomed(loaded=False, window_bytes=100)

    def receipt(chunk: int) -> Any:
        return stamped(wire.Received, index=chunk, verb=Verb.LOAD)

    chunks = [
        Gradient(index=chunk, payload=object(), payload_bytes=100, dtype="float32")
        for chunk in range(2)
    ]
    core.load(2, 1, chunks)
    assert Done(1) not in core.received(3, receipt(1))
    assert Done(1) not in core.received(4, receipt(0))
    assert Done(1) in core.received(5, receipt(1))


class Encoding:
    """The encodings alone, of a worker in attempt 1 whose aggregator asks all ranks."""

    def __init__(self) -> None:
        self.outbox = Outbox(job=1, role=Role.WORKER, rank=1, incarnation=5)
        self.outbox.attempt = self.outbox.generation = 1
        self.part = Encodings(self.outbox, Uplink(self.outbox.actions, RetryPolicy()))
        self.part.aggregator = make_aggregator("shared-exponent", 2)

    def push(self, payload: str) -> Push:
        """Push a gradient of extent 4; the message that would carry it as it is."""
        push: Push = stamped(Push, index=4, contributors=2, weight=1.0, raw=True, dtype="float32")
        entry = Gradient(index=4, payload=payload, payload_bytes=60, dtype="float32")
        self.part.push(push, entry)
        return push


def test_an_answer_of_another_size_is_an_error_of_the_parent() -> None:
    """I7. Goal: it is refused before anything is encoded with it."""
    bench = Encoding()
    bench.part.measured(Measure(bench.push("g4"), "g4"), b"ab")
    with pytest.raises(RemoteProtocolError, match="another layout"):
        bench.part.agreed(stamped(wire.Agreed, index=4), b"xyz")


def test_what_is_encoded_after_its_attempt_is_dropped() -> None:
    """Goal: a shell may be slow; neither its statement nor its encoding travels, also if the same
    extent was pushed again meanwhile."""
    bench = Encoding()
    old = bench.push("old")
    bench.part.clear()
    bench.push("new")
    bench.outbox.take()
    bench.part.measured(Measure(old, "old"), b"ab")
    bench.part.encoded(Encode(old, "old", b""), "encoded", 9)
    assert bench.outbox.take() == [Drop("encoded")]


def test_a_skipped_step_does_not_withdraw_what_was_asked() -> None:
    """I1. Goal: cancel and leave are sent again under the new attempt, the reason cut to its limit;
    until the attempt is given up no Commit is sent, which could decide what is to be dropped."""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=1)
    core.join(0, b"job", "hash")
    assert core.cancel(0, "of what counts nowhere") == []
    welcome = stamped(wire.Welcome, loaded=True, push_window_bytes=MIB, contributors=1)
    core.received(1, welcome)
    core.commit(2, 0, 1, b"hyper")
    core.cancel(2, "x" * 2000)
    core.leave(2)
    skipped = core.received(3, stamped(wire.Verdict, attempt=2, applied=False, norms=(1.0,)))
    (cancel,), (leave,) = sent(skipped, wire.Cancel), sent(skipped, wire.Leave)
    assert (len(cancel.text), cancel.attempt, leave.attempt) == (900, 2, 2)
    core.received(4, stamped(wire.Decided, attempt=2, applied=False, norms=(1.0,)))
    assert core.commit(5, 1, 1, b"hyper") == []


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
OF_SWITCHES = {Verb.PRESENT, Verb.PAGE, Verb.PULL}
"""Receipts of what a worker never sends; of pulls, of weights that the asker has."""


def test_every_message_has_a_place() -> None:
    """Goal: a new message or verb is put into the tables, or named here as somebody else's."""
    messages = set(wire.MESSAGE_TYPES) - OF_CHILDREN - OF_NODES - OF_READERS - {wire.Received}
    assert set(NicCore.FROM_PARENT) == messages | set(Verb) - OF_SWITCHES
    assert set(NicCore.FROM_PARENT) > NicCore.OF_ANY_ATTEMPT | NicCore.OF_A_NEWER_ATTEMPT
    assert set(ReaderCore.FROM_PARENT) == set(get_args(wire.ReaderAnswer))

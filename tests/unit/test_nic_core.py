"""The NIC's core alone, with a parent's messages made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.nic.core import NicCore
from luwu.nic.core.actions import Done, Gradient
from luwu.protocol.actions import Drop, Send
from luwu.wire.kinds import Role, Verb
from luwu.wire.messages import Abort, Decided, Pull, Push, Received, Verdict, Welcome
from tests.unit.local_job import MIB


def test_a_worker_ahead_of_the_decision_asks_when_it_can_be_answered() -> None:
    """Goal: a fast worker pulls for step t + 2 before step t is decided (a slow disk); the parent
    would drop that, so it is asked when the decision comes, not at a repetition.
    Method: the NIC's core alone, with a parent's messages made by hand."""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=1)
    stamp = {"job": 1, "epoch": 0, "attempt": 1, "generation": 1, "role": Role.NODE, "rank": 0}
    parent: dict[str, Any] = {**stamp, "incarnation": 9}

    def pulls(actions: list[Any]) -> list[tuple[int, int]]:
        sent = [action.message for action in actions if isinstance(action, Send)]
        return [
            (pull.step, pull.index + index)
            for pull in sent
            if isinstance(pull, Pull)
            for index in range(pull.count)
        ]

    core.join(0, b"job", "hash")
    core.received(1, Welcome(**parent, step=0, loaded=True, push_window_bytes=MIB, contributors=1))
    assert pulls(core.pull(2, 1, 0, 0, [4])) == [(0, 4)]
    core.commit(3, 0, 1, b"hyper")
    assert pulls(core.pull(4, 2, 1, 0, [4])) == [(1, 4)]
    core.received(5, Verdict(**parent, step=0, applied=True, norms=(1.0,)))
    assert pulls(core.pull(6, 3, 2, 0, [4, 5])) == []
    assert pulls(core.pull(7, 4, 2, 0, [6])) == []
    core.forget(4)
    actions = core.received(8, Decided(**parent, step=0, applied=True, norms=(1.0,)))
    assert pulls(actions) == [(2, 4), (2, 5)]
    assert pulls(core.pull(9, 5, 2, 0, [7])) == [(2, 7)]


@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_worker_without_samples_is_not_ahead_of_a_verdict(is_skipped: bool) -> None:
    """Goal: a rank that needs no weights pushes for step t + 1 before the verdict of step t: it is
    held until then, and sent under the attempt that counts. (The parent dropped what was two steps
    ahead, for 10 s each time; after a skipped step it was never sent again, and all waited.)"""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=1)
    stamp = {"job": 1, "epoch": 0, "generation": 1, "role": Role.NODE, "rank": 0}
    parent: dict[str, Any] = {**stamp, "attempt": 1, "incarnation": 9}
    payloads = [object(), object(), object()]

    def pushes(actions: list[Any]) -> list[tuple[int, int]]:
        sent = [action.message for action in actions if isinstance(action, Send)]
        return [(each.step, each.attempt) for each in sent if isinstance(each, Push)]

    def push(handle: int, step: int) -> list[Any]:
        gradient = Gradient(index=0, payload=payloads[step], payload_bytes=100, dtype="float32")
        return core.push(9, handle, step, 0, [gradient], last=False)

    core.join(0, b"job", "hash")
    core.received(1, Welcome(**parent, step=0, loaded=True, push_window_bytes=MIB, contributors=1))
    assert pushes(push(1, 0)) == [(0, 1)]
    core.received(2, Received(**parent, step=0, index=0, part=0, verb=Verb.PUSH, contributors=1))
    core.commit(3, 0, 1, b"hyper")
    assert pushes(push(2, 1)) == []
    core.commit(4, 1, 1, b"hyper")
    assert pushes(push(3, 2)) == []
    counts = {**parent, "attempt": 2 if is_skipped else 1}
    judged = core.received(5, Verdict(**counts, step=0, applied=not is_skipped, norms=(1.0,)))
    assert pushes(judged) == [(1, counts["attempt"])]
    aborted = core.received(
        6, Abort(**{**parent, "attempt": 3}, step=1, text="a test", contributors=1, loaded=True)
    )
    assert {id(a.payload) for a in aborted if isinstance(a, Drop)} == {id(p) for p in payloads[1:]}
    assert pushes(push(4, 1)) == [(1, 3)]


def test_a_receipt_for_what_was_not_sent_yet_is_nobodys() -> None:
    """Goal: rank 0 ends while it loads the first weights; a receipt of what its former start loaded
    reaches the next one before that has sent the chunk. It once waited for ever after."""
    core = NicCore(job=1, rank=0, world_size=1, incarnation=2)
    parent: dict[str, Any] = {
        "job": 1, "epoch": 0, "attempt": 1, "generation": 1, "role": Role.SWITCH, "rank": 0,
        "incarnation": 9, "step": 0,
    }  # fmt: skip

    def receipt(chunk: int) -> Received:
        return Received(**parent, index=chunk, part=0, verb=Verb.LOAD, contributors=0)

    core.join(0, b"job", "hash")
    core.received(1, Welcome(**parent, loaded=False, push_window_bytes=100, contributors=1))
    chunks = [
        Gradient(index=chunk, payload=object(), payload_bytes=100, dtype="float32")
        for chunk in range(2)
    ]
    core.load(2, 1, chunks)
    assert Done(1) not in core.received(3, receipt(1))
    assert Done(1) not in core.received(4, receipt(0))
    assert Done(1) in core.received(5, receipt(1))

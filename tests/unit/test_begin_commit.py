"""Begin and Commit at the switch, built alone: N statements of a step become one."""

from __future__ import annotations

from itertools import permutations

import pytest

from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.begin_commit import (
    AgreedStatement,
    BeginCommit,
    DisagreementError,
)
from tests.unit.switch_parts import LEFT, RIGHT, Handed, message

CHILDREN = (0b0011, 0b0100, 0b1000)


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_agreement_carries_the_bytes_of_rank_0(order: tuple[int, ...]) -> None:
    """Goal: the last one completes it, in any order, and rank 0's bytes travel on."""
    statement = AgreedStatement("hyper-parameters of step 3", CHILDREN)
    agreed = [statement.add(child, "same", f"bytes of {child}".encode()) for child in order]
    assert agreed == [False, False, True]
    assert statement.payload == b"bytes of 3"


def test_a_repetition_completes_nothing() -> None:
    """Goal: one child cannot speak for another by repeating itself."""
    statement = AgreedStatement("hyper-parameters of step 3", CHILDREN)
    for _ in range(5):
        assert not statement.add(CHILDREN[0], "same", b"x")
    assert not statement.add(CHILDREN[1], "same", b"y")


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_disagreement_names_the_ranks(order: tuple[int, ...]) -> None:
    """I6. Goal: who stated what, in rank order, whoever came last."""
    statement = AgreedStatement("hyper-parameters of step 3", CHILDREN)
    texts = {0b0011: "lr 0.1", 0b0100: "lr 0.2", 0b1000: "lr 0.1"}
    with pytest.raises(DisagreementError) as caught:
        for child in order:
            statement.add(child, texts[child], b"")
    assert (
        statement.refusal
        == str(caught.value)
        == (
            "the hyper-parameters of step 3 differ between ranks "
            "(ranks 0, 1, 3: lr 0.1; ranks 2: lr 0.2); every rank must use the same, "
            "and must have frozen the same parameters"
        )
    )


def test_disagreement_of_many_stays_short() -> None:
    """I5. Goal: a thousand ranks that all differ fit one refusal."""
    children = [1 << rank for rank in range(1024)]
    statement = AgreedStatement("hyper-parameters of step 3", children)
    with pytest.raises(DisagreementError) as caught:
        for rank, child in enumerate(children):
            statement.add(child, f"{rank % 5} and a long hash of it" * 3, b"")
    assert len(str(caught.value)) < 700


def begin(step: int = 0, **given: object) -> wire.Begin:
    made: wire.Begin = message(wire.Begin, step=step, **{"hyper_hash": "lr", **given})
    return made


def commit(step: int = 0, **given: object) -> wire.Commit:
    made: wire.Commit = message(wire.Commit, step=step, **{"hyper_hash": "lr", "parts": 1, **given})
    return made


def test_begin_from_all_children_to_the_parent_and_back() -> None:
    """Goal: one Begin goes up when all agree; children are answered when the parent has it, and
    then whoever asks again; who comes too early is not answered."""
    handed = Handed()
    part = BeginCommit(handed.outbox, handed.children, handed.uplink, None)
    received = message(wire.Received, verb=Verb.BEGIN)
    answered = "Received verb=BEGIN"
    handed.play(
        part,
        [
            ("begin", (handed.right, begin(), b"r"), []),
            ("begin", (handed.right, begin(), b"r"), []),
            ("begin", (handed.left, begin(), b"l"),
             ["parent: Begin contributors=7 hyper_hash=lr + b'l'"]),
            ("begin_received", (received,), [f"left,right: {answered}"]),
            ("begin_received", (received,), []),
            ("begin", (handed.right, begin(), b"r"), [f"right: {answered}"]),
            ("begin", (handed.right, begin(step=2), b"r"), []),
        ],
    )  # fmt: skip


def test_a_step_from_commit_to_decision() -> None:
    """Goal: one Commit goes up when all agree, a verdict and a decision go to all, and a child that
    asks late is sent both again."""
    handed = Handed()
    part = BeginCommit(handed.outbox, handed.children, handed.uplink, None)
    verdict = message(wire.Verdict, applied=True, grad_norm=0.5)
    decided = message(wire.Decided, applied=True, grad_norm=0.5)
    came_out = "applied=True grad_norm=0.5"
    handed.play(
        part,
        [
            ("commit", (handed.left, commit(), b"l"), []),
            ("commit", (handed.right, commit(skip=True), b"r"),
             ["parent: Commit contributors=7 hyper_hash=lr parts=1 skip=True + b'l'"]),
            ("judged", (verdict,), [f"left,right: Verdict {came_out}"]),
            ("commit", (handed.right, commit(), b"r"), [f"right: Verdict {came_out}"]),
            ("decided", (decided,), [f"left,right: Decided {came_out}"]),
            ("commit", (handed.right, commit(), b"r"),
             [f"right: Verdict {came_out}", f"right: Decided {came_out}"]),
        ],
    )  # fmt: skip
    assert not part.is_judged_by(decided)


def test_children_that_differ_are_refused() -> None:
    """Goal: all are sent the refusal, and a child that asks again is sent it again."""
    handed = Handed()
    part = BeginCommit(handed.outbox, handed.children, handed.uplink, None)
    text = (
        "the hyper-parameters of step 0 differ between ranks (ranks 0, 1: lr; ranks 2: other); "
        "every rank must use the same, and must have frozen the same parameters"
    )
    handed.play(
        part,
        [
            ("begin", (handed.left, begin(), b""), []),
            ("begin", (handed.right, begin(hyper_hash="other"), b""),
             [f"left,right: Refuse text={text}"]),
            ("begin", (handed.left, begin(), b""), [f"left: Refuse text={text}"]),
        ],
    )  # fmt: skip


def test_who_is_late_is_named_once() -> None:
    """Goal: after the patience the log names who has not committed; workers among them are
    returned, switches are not: they miss their own children."""
    patience_ns = 10**9
    for early, late, returned in ((LEFT, RIGHT, [RIGHT]), (RIGHT, LEFT, [])):
        handed = Handed()
        part = BeginCommit(handed.outbox, handed.children, handed.uplink, patience_ns)
        child = handed.left if early == LEFT else handed.right
        part.commit(child, commit(), b"")
        assert part.waits_for() == f"step 0: commit of ranks {'0, 1' if late == LEFT else '2'}"
        assert part.late_ns() == patience_ns
        assert part.name_late() == []
        handed.outbox.now_ns = patience_ns
        assert part.name_late() == returned
        assert [each.name for each in handed.outbox.take()] == ["switch.late"]
        assert part.late_ns() is None

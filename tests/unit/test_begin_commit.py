"""Begin and Commit at the switch, built alone: N statements of a step become one."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.wire import messages as wire
from luwu.wire.clips import Clip
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.kinds import Verb
from switch_emu.switch.core.begin_commit import (
    AgreedStatement,
    BeginCommit,
    Statement,
)
from tests.unit.switch_parts import LEFT, RIGHT, Handed, message

CHILDREN = (0b0011, 0b0100, 0b1000)


def lr(value: float, **more: Any) -> Statement:
    return Statement(encode_hyper(StepHyper(groups=({"lr": value},), **more)), 1)


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_the_last_of_all_completes_it(order: tuple[int, ...]) -> None:
    """Goal: in any order; one child cannot speak for another by repeating itself."""
    statement = AgreedStatement(3, CHILDREN)
    agreed = [statement.add(child, lr(0.1)) for child in (order[0], *order)]
    assert agreed == [False, False, False, True]
    assert statement.kept == [lr(0.1)]


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_disagreement_names_what_differs(order: tuple[int, ...]) -> None:
    """I6. Goal: each value and its ranks, in rank order, whoever came last."""
    statement = AgreedStatement(3, CHILDREN)
    clips = (Clip(2.0, 0.5), Clip(math.inf, 1.0))
    stated = {0b0011: lr(0.1, clips=clips[:1]), 0b0100: lr(0.2, clips=clips), 0b1000: lr(0.1)}
    assert not any(statement.add(child, stated[child]) for child in order)
    found = statement.refusal.removeprefix("the hyper-parameters of step 3 differ between ranks (")
    found = found.removesuffix("); every rank must call and set the same")
    assert sorted(each.replace("clip_grad_norm_", "clip") for each in found.split("; ")) == [
        "call 1 of clip is max_norm=0.5, norm_type=2 on ranks 0, 1, 2 and none on ranks 3",
        "call 2 of clip is none on ranks 0, 1, 3 and max_norm=1.0, norm_type=inf on ranks 2",
        "lr of group 0 is 0.1 on ranks 0, 1, 3 and 0.2 on ranks 2",
    ]


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        (Statement(b"", 1), Statement(b"", 2), ("number of backward passes", "1", "2")),
        (lr(0.1), lr(0.1, max_grad_norm=2.0), ("max_grad_norm", "None", "2.0")),
        (lr(0.1), lr(0.1, loss_scale=8.0), ("loss_scale", "1.0", "8.0")),
        (lr(0.1), lr(0.1, frozen="a"), ("the digest of frozen parameters", "none", "a")),
        (lr(0.1), lr(0.1, keeps=True), ("whether something is attached", "False", "True")),
        (lr(0.1), lr(0.1, measure=True), ("whether stats_every measures", "False", "True")),
        (lr(0.1, clips=(Clip(2.0, 1.0),)), lr(0.1, clips=(Clip(1.0, 1.0),)),
         ("call 1 of clip_grad_norm_", "max_norm=1.0, norm_type=2", "max_norm=1.0, norm_type=1")),
    ],
)  # fmt: skip
def test_every_setting_has_a_name(
    mine: Statement, theirs: Statement, found: tuple[str, str, str]
) -> None:
    """I6. Goal: whatever differs is named as the script knows it, and nothing else is."""
    statement = AgreedStatement(0, CHILDREN[:2])
    assert not statement.add(CHILDREN[1], theirs)
    name, one, other = found
    assert not statement.add(CHILDREN[0], mine)
    assert f"({name} is {one} on ranks 0, 1 and {other} on ranks 2);" in statement.refusal


def test_what_cannot_be_read_differs_too() -> None:
    statement = AgreedStatement(0, CHILDREN[:2])
    statement.add(CHILDREN[1], Statement(b"?", 1))
    assert not statement.add(CHILDREN[0], lr(0.1))
    assert "what was sent is none on ranks 0, 1 and hyper-parameters cannot" in statement.refusal


def test_disagreement_of_many_stays_short() -> None:
    """I5. Goal: a thousand ranks that all differ fit one refusal, and little of them is kept."""
    children = [1 << rank for rank in range(1024)]
    statement = AgreedStatement(3, children)
    for rank, child in enumerate(children):
        hyper = encode_hyper(StepHyper(groups=({"lr": rank},) * 99))
        assert not statement.add(child, Statement(hyper, 1))
    assert 700 < len(statement.refusal) < TEXT_CHARS_MAX
    assert len(statement.kept) == 4


def begin(step: int = 0, **given: object) -> wire.Begin:
    made: wire.Begin = message(wire.Begin, step=step, **given)
    return made


def commit(step: int = 0, **given: object) -> wire.Commit:
    made: wire.Commit = message(wire.Commit, step=step, **{"parts": 1, **given})
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
            ("begin", (handed.right, begin(), b"l"), []),
            ("begin", (handed.right, begin(), b"l"), []),
            ("begin", (handed.left, begin(), b"l"),
             ["parent: Begin contributors=7 + b'l'"]),
            ("begin_received", (received,), [f"left,right: {answered}"]),
            ("begin_received", (received,), []),
            ("begin", (handed.right, begin(), b"l"), [f"right: {answered}"]),
            ("begin", (handed.right, begin(step=2), b"l"), []),
        ],
    )  # fmt: skip


def test_a_step_from_commit_to_decision() -> None:
    """Goal: one Commit goes up when all agree, a verdict and a decision go to all, and a child that
    asks late is sent both again."""
    handed = Handed()
    part = BeginCommit(handed.outbox, handed.children, handed.uplink, None)
    verdict = message(wire.Verdict, applied=True, norms=(0.5,))
    decided = message(wire.Decided, applied=True, norms=(0.5,))
    came_out = "applied=True norms=(0.5,)"
    handed.play(
        part,
        [
            ("commit", (handed.left, commit(), b"l"), []),
            ("commit", (handed.right, commit(skip=True), b"l"),
             ["parent: Commit contributors=7 parts=1 skip=True + b'l'"]),
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
        "the hyper-parameters of step 0 differ between ranks (lr of group 0 is 0.1 on ranks 0, 1 "
        "and 0.2 on ranks 2); every rank must call and set the same"
    )
    handed.play(
        part,
        [
            ("begin", (handed.left, begin(), lr(0.1).hyper), []),
            ("begin", (handed.right, begin(), lr(0.2).hyper),
             [f"left,right: Refuse text={text}"]),
            ("begin", (handed.left, begin(), lr(0.1).hyper), [f"left: Refuse text={text}"]),
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

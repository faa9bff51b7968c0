"""The parts of the node's core, each built alone: events, their answers and their actions."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import pytest

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.counted_ranks import Change, CountedRanks
from luwu.protocol.epoch import Epoch
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from luwu.wire.squares import encode_squares
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core import node as tables
from switch_emu.node.core.alone import Alone
from switch_emu.node.core.attachments import Attachments
from switch_emu.node.core.filling import Filling
from switch_emu.node.core.first_weights import FirstWeights
from switch_emu.node.core.gathering import Gathering
from switch_emu.node.core.joint import Joint
from switch_emu.node.core.membership import Membership
from switch_emu.node.core.results import AbortRequest, Joined, Judgement
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.updates import Updates
from tests.simulate.job import JOB
from tests.unit.node_parts import CHILD, RANKS, Parts

SQUARES = {(2.0, 2.0): [8.0]}
"""Of a sum over two ranks: the mean gradient has the norm sqrt(8) / 2."""
NORM = math.sqrt(2.0)
RECEIVED = "Received index=0 part=0 verb="


def taken(parts: Parts, extent: int = 0) -> None:
    """A whole sum of an extent is in, and its Begin and Commit are."""
    step = parts.steps.at(parts.outbox.step)
    step.hyper, step.parts = parts.job.hyper, 1
    gathering_of(parts).push(*parts.push(extent), "g", parts.nbytes(extent))
    parts.lines()


def filling_of(parts: Parts, number: int = 0) -> Filling:
    filling = Filling(parts.outbox, parts.children, parts.shard)
    filling.begin(number)
    return filling


def gathering_of(parts: Parts, filling: Filling | None = None) -> Gathering:
    return Gathering(
        parts.outbox, parts.children, parts.shard, parts.steps, parts.budget, parts.serving,
        filling or filling_of(parts),
    )  # fmt: skip


def updates_of(parts: Parts, filling: Filling | None = None) -> Updates:
    filling = filling or filling_of(parts)
    return Updates(parts.outbox, parts.shard, parts.steps, parts.budget, parts.serving, filling, 1)


def alone_of(parts: Parts) -> Alone:
    return Alone(parts.outbox, parts.shard, parts.state, parts.steps)


def joint_of(parts: Parts, filling: Filling | None = None) -> Joint:
    filling = filling or filling_of(parts)
    joint = Joint(
        parts.outbox, parts.children, parts.shard, parts.state, parts.steps, filling,
        do.NodeLimits(), RetryPolicy(),
    )  # fmt: skip
    assert joint.opened(do.StoreFacts(
        description=b"", generation=1, attempt=1, epoch=0, job=JOB, version=0,
        recorded=Epoch(4, 0b11, 20),
    )) is None  # fmt: skip
    return joint


# -------------------------------------------------------------------------- state and first weights


def test_state_prepares_decides_and_announces() -> None:
    """Goal: a version is announced only after its Decide."""
    parts = Parts()
    state = parts.state
    verdict = parts.m(wire.Verdict, applied=True, norms=(1.5,))
    prepare = do.Prepare(
        version=1, attempt=1, epoch=0, contributors=RANKS, applied=True, norms=(1.5,),
        hyper=b"h", kept_attempt=None,
    )  # fmt: skip
    prepared = do.PreparedVersion(1, 1, True, (1.5,), RANKS)
    parts.check(
        (lambda: state.prepare(1, verdict, b"h"), None,
         ["Prepare version=1 attempt=1 epoch=0 contributors=3 applied=True norms=1.5 "
          "hyper=b'h'"]),
        (lambda: state.is_sealing, True, []),
        (lambda: state.was_prepared(prepare), None, []),
        (lambda: state.is_sealing, False, []),
        (state.decide, None, ["Decide version=1 attempt=1"]),
        (parts.steps.close, None, []),
        (state.was_decided, prepared,
         ["switch: Decided applied=True norms=1.5 step=0",
          "note node.step {'step': 0, 'applied': True, 'grad_norm': 1.5, 'ranks': '0-1'}"]),
        (lambda: state.version, 1, []),
    )  # fmt: skip


def test_state_raises_the_attempt_durably_and_forgets_what_was_prepared() -> None:
    parts = Parts()
    state = parts.state
    state.prepared = do.PreparedVersion(1, 1, True, 0.0, RANKS)
    parts.check(
        (lambda: state.raise_attempt(2), None, ["RecordAttempt attempt=2"]),
        (lambda: (parts.outbox.attempt, state.must_discard), (2, True), []),
        (state.forget, None, []),
        (lambda: state.prepared, None, []),
        (state.discard, None, ["Discard attempt=2"]),
        (lambda: state.must_discard, False, []),
    )


def test_first_weights_are_written_once_and_then_prepared() -> None:
    """Goal: repetitions are dropped or confirmed; the last page prepares version 0."""
    parts = Parts(version=None)
    first = FirstWeights(parts.outbox, parts.children, parts.shard, parts.state)

    def load(chunk: int, payload: str, nbytes: int | None = None) -> None:
        m = parts.m(wire.Load, index=chunk, part=0)
        first.load(CHILD, m, payload, parts.nbytes(chunk) if nbytes is None else nbytes)

    received = "switch: Received index={} part=0 verb=LOAD contributors=0"
    parts.check(
        (lambda: load(0, "w0"), None, ["LoadPage chunk=0 attempt=1 payload=w0"]),
        (lambda: load(0, "again"), None, ["drop again"]),
        (lambda: load(1, "short", 8), None,
         ["note node.misfit {'chunk': 1, 'bytes': 8}", "drop short"]),
        (lambda: load(1, "w1"), None, ["LoadPage chunk=1 attempt=1 payload=w1"]),
        (lambda: first.page_loaded(do.LoadPage(1, 0, "old")), True, []),
        (lambda: first.page_loaded(do.LoadPage(0, 1, "w0")), False, [received.format(0)]),
        (lambda: load(0, "late"), None, [received.format(0), "drop late"]),
        (lambda: first.page_loaded(do.LoadPage(1, 1, "w1")), False,
         [received.format(1),
          "Prepare version=0 attempt=1 epoch=0 contributors=3 applied=True norms=0.0"]),
        (lambda: first.is_loading, True, []),
        (first.forget, None, []),
        (lambda: first.is_loading, False, []),
    )  # fmt: skip


def test_first_weights_wait_until_older_pages_are_discarded() -> None:
    parts = Parts(version=None)
    first = FirstWeights(parts.outbox, parts.children, parts.shard, parts.state)
    parts.state.must_discard = True
    m = parts.m(wire.Load, index=0, part=0)
    parts.check(
        (lambda: first.load(CHILD, m, "w0", parts.nbytes(0)), None, []),
        (first.start, None, []),
        (parts.state.discard, None, ["Discard attempt=1"]),
        (first.start, None, ["LoadPage chunk=0 attempt=1 payload=w0"]),
        (lambda: first.under_way_count, 1, []),
    )


# -------------------------------------------------------------------------- steps and gathering


@pytest.mark.parametrize("end", ["close", "forget"])
def test_steps_drop_their_gradients_when_they_close_or_are_forgotten(end: str) -> None:
    parts = Parts(update="at_step", bytes_max=1)
    gathering_of(parts).push(*parts.push(0, 0b01), "g0", parts.nbytes(0))
    parts.check(
        (lambda: None, None,
         [f"switch: {RECEIVED}PUSH contributors=1", "Spill payload=g0 is_raw=True"]),
        (getattr(parts.steps, end), None, ["drop g0"]),
        (lambda: parts.steps.open, None, []),
    )  # fmt: skip
    assert parts.outbox.step == (end == "close")


def test_a_streaming_sum_is_ready_when_all_ranks_are_in() -> None:
    """Goal: each gradient is confirmed once it is kept; a repetition is dropped and counted."""
    parts = Parts()
    gathering, nbytes = gathering_of(parts), parts.nbytes(0)
    parts.check(
        (lambda: gathering.push(*parts.push(0, 0b01), "g0", nbytes), True,
         [f"switch: {RECEIVED}PUSH contributors=1"]),
        (lambda: gathering.push(*parts.push(0, 0b01), "again", nbytes), False,
         [f"switch: {RECEIVED}PUSH contributors=1", "drop again"]),
        (lambda: list(parts.steps.at(0).ready), [], []),
        (lambda: gathering.push(*parts.push(0, 0b10), "g1", nbytes), True,
         [f"switch: {RECEIVED}PUSH contributors=2"]),
        (lambda: list(parts.steps.at(0).ready), [0], []),
        (gathering.duplicates.total, 1, []),
        (lambda: parts.budget.bytes_used, 2 * nbytes, []),
    )  # fmt: skip


def test_gathering_refuses_what_does_not_fit() -> None:
    """Goal: two contributions that overlap ask for an abort; another size is a note."""
    parts = Parts()
    gathering, nbytes = gathering_of(parts), parts.nbytes(0)
    gathering.push(*parts.push(0, 0b01), "g0", nbytes)
    parts.lines()
    overlap = AbortRequest("extent 0: ranks 0b1 are in two different contributions")
    parts.check(
        (lambda: gathering.push(*parts.push(0, 0b11), "sum", nbytes), overlap, ["drop sum"]),
        (lambda: gathering.push(*parts.push(0, step=2), "ahead", nbytes), False, ["drop ahead"]),
    )
    assert gathering.push(*parts.push(0, 0b10), "short", 4) is False
    (note, drop) = parts.lines()
    assert note.startswith("note node.misfit {'extent': 0, 'dtype': 'float32', 'bytes': 4, ")
    assert drop == "drop short"


def test_gathering_folds_the_parts_of_an_extent_in_order() -> None:
    """Goal: `at_step`, part 1 waits for the fold of part 0, whose total it is added to."""
    parts = Parts(update="at_step")
    gathering, nbytes = gathering_of(parts), parts.nbytes(0)
    push = [parts.push(0, part=part, last=part == 1) for part in (0, 1)]
    first = do.Fold(0, 0, 1, 0, None, (), 0, (2.0,))
    assert gathering.push(*push[1], "g1", nbytes) is True
    assert parts.lines() == ["switch: Received index=0 part=1 verb=PUSH contributors=3"]
    assert gathering.push(*push[0], "g0", nbytes) is True
    (fold,) = [each for each in parts.outbox.take() if isinstance(each, do.Fold)]
    assert (fold.part, fold.total, [c.payload for c in fold.contributions]) == (0, None, ["g0"])
    parts.check(
        (lambda: gathering.folded(fold, {2.0: (1.0,)}, "t0", nbytes), None,
         ["drop g0",
          "Fold extent=0 step=0 attempt=1 part=1 total=t0 contributions=g1 absent=0 "
          "norm_types=2.0"]),
        (lambda: parts.steps.at(0).sums.extents[0].folded_count, 1, []),
    )  # fmt: skip
    parts.outbox.attempt = 2
    parts.check((lambda: gathering.folded(first, {2.0: (1.0,)}, "old", nbytes), None, ["drop old"]))


def test_begin_and_commit_make_a_step() -> None:
    """Goal: Begin brings the hyper-parameters of a step that streams; a decided one is answered."""
    parts = Parts()
    gathering = gathering_of(parts)
    begin = parts.m(wire.Begin, contributors=RANKS)
    commit = parts.m(wire.Commit, contributors=RANKS, parts=1, skip=False)
    far = parts.m(wire.Begin, contributors=RANKS, step=2)
    parts.check(
        (lambda: gathering.begin(CHILD, far, b"x"), False, []),
        (lambda: gathering.begin(CHILD, begin, b"h"), True,
         [f"switch: {RECEIVED}BEGIN contributors=0"]),
        (lambda: gathering.commit(CHILD, commit, b"c"), True, []),
        (lambda: (parts.steps.at(0).hyper, parts.steps.at(0).parts), (b"h", 1), []),
    )  # fmt: skip
    verdict = parts.m(wire.Verdict, role=Role.NODE, applied=True, norms=(1.0,))
    parts.children.outcomes.verdict = verdict
    parts.check(
        (lambda: gathering.commit(CHILD, commit, b"c"), False,
         ["switch: Verdict applied=True norms=1.0"]),
    )  # fmt: skip


def test_attachments_are_confirmed_when_they_are_put_aside() -> None:
    parts = Parts(keeps=True)
    attachments = Attachments(parts.outbox, parts.children, parts.steps)
    m = parts.m(wire.Keep, index=0, part=0, contributors=0b01, pieces=1)
    both = parts.m(wire.Keep, index=0, part=0, contributors=0b11, pieces=1)
    piece = do.KeepPiece(0, 1, 0b01, 0, 1, "k")
    received = f"switch: {RECEIVED}KEEP contributors=1"
    parts.check(
        (lambda: attachments.keep(CHILD, both, "both"), None, ["drop both"]),
        (lambda: attachments.keep(CHILD, m, "k"), None,
         ["KeepPiece step=0 attempt=1 ranks=1 piece=0 pieces=1 payload=k"]),
        (lambda: attachments.keep(CHILD, m, "again"), None, ["drop again"]),
        (lambda: attachments.piece_kept(piece), None, ["drop k", received]),
        (lambda: attachments.keep(CHILD, m, "late"), None, ["drop late", received]),
        (lambda: parts.steps.at(0).kept_ranks, 0b01, []),
    )  # fmt: skip


def test_what_was_attached_late_to_a_decided_step_is_replaced() -> None:
    """Goal: beside the decided version alone, by the newest part alone; every one is confirmed, but
    none of a step that is not decided here yet: it is sent again."""
    parts = Parts(keeps=True)
    attachments = Attachments(parts.outbox, parts.children, parts.steps)
    first, second = (
        parts.m(wire.Keep, index=0, part=part, contributors=0b10, pieces=1) for part in (1, 2)
    )
    received = f"switch: {RECEIVED}KEEP contributors=2 step=0".replace("part=0", "part={}")
    parts.check((lambda: attachments.keep(CHILD, first, "1"), None, ["drop 1"]))
    parts.outbox.step = 1
    replaced = "ReplaceAttached version=1 rank=1 payload={}"
    parts.check(
        (lambda: attachments.keep(CHILD, second, "2"), None,
         [replaced.format(2), "drop 2", received.format(2)]),
        (lambda: attachments.keep(CHILD, second, "again"), None,
         ["drop again", received.format(2)]),
        (lambda: attachments.keep(CHILD, first, "1"), None, ["drop 1", received.format(1)]),
    )  # fmt: skip
    parts.outbox.step = 2
    parts.check(
        (lambda: attachments.keep(CHILD, second, "2"), None, ["drop 2", received.format(2)])
    )


# -------------------------------------------------------------------------- updates and serving


def test_an_update_hands_out_weights_that_are_waited_for() -> None:
    """Goal: Update -> updated -> written; a read of step t - 1 holds it up."""
    parts = Parts()
    updates = updates_of(parts)
    taken(parts)
    step = parts.steps.at(0)
    pull = parts.m(wire.Pull, index=0, part=0, step=1)
    parts.check(
        (lambda: parts.serving.pull(CHILD, pull), None, []),
        (lambda: updates.start(step), None,
         ["Update extent=0 step=0 attempt=1 contributions=g absent=0 divisor=2.0 "
          f"hyper={parts.job.hyper} publish=True"]),
    )  # fmt: skip
    (update,) = updates.under_way.values()
    parts.check(
        (lambda: updates.updated(update, (8.0,)), True, ["drop g"]),
        (lambda: parts.serving.publish(update, "w", in_place=False), None,
         ["switch: Weights index=0 part=0 dtype=float32 in_place=False checksum=0 step=1 + w"]),
        (lambda: len(updates.under_way), 1, []),
        (lambda: updates.written(update), None, []),
        (lambda: len(updates.under_way), 0, []),
        (lambda: parts.serving.pull(CHILD, pull), None,
         ["ReadWeights extent=0 step=1 version=1 attempt=1 parts=0"]),
    )  # fmt: skip


def test_a_read_that_is_asked_for_again_counts_twice() -> None:
    """P1. Goal: pages are not written again while the second of two equal reads is under way."""
    parts = Parts()
    serving = parts.serving = Serving(
        parts.outbox, parts.children, parts.shard, parts.steps, reads_max=2
    )
    pull = parts.m(wire.Pull, index=0, part=0, count=1)
    for _ in range(2):
        serving.pull(CHILD, pull)
    read = do.ReadWeights(0, 0, 0, 1, (0,))
    parts.lines()
    serving.weights_read(read, None, in_place=False)
    assert (serving.is_reading, serving.reads_before(1)) == (True, True)
    serving.weights_read(read, None, in_place=False)
    assert (serving.is_reading, serving.reads_before(1)) == (False, False)


def test_serving_reads_a_few_at_a_time_and_nothing_of_an_older_attempt() -> None:
    parts = Parts()
    serving = parts.serving
    pulls = [parts.m(wire.Pull, index=extent, part=0) for extent in (0, 1, 7)]
    read = do.ReadWeights(0, 0, 0, 1, (0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[2]), None, []),
        (lambda: serving.pull(CHILD, pulls[0]), None,
         ["ReadWeights extent=0 step=0 version=0 attempt=1 parts=0"]),
        (lambda: serving.reads_before(1), True, []),
        (lambda: serving.pull(CHILD, pulls[1]), None, []),
        (lambda: serving.weights_read(read, "w0", in_place=True), None,
         ["switch: Weights index=0 part=0 dtype=float32 in_place=True checksum=0 + w0", "drop w0",
          "ReadWeights extent=1 step=0 version=0 attempt=1 parts=0"]),
        (serving.forget, None, []),
    )  # fmt: skip
    parts.outbox.attempt = 2
    old = do.ReadWeights(1, 0, 0, 1, (0,))
    parts.check((lambda: serving.weights_read(old, "w1", in_place=False), None, ["drop w1"]))


def test_weights_of_a_page_without_gradients_are_those_of_both_versions() -> None:
    parts = Parts()
    gathering, pull = gathering_of(parts), parts.m(wire.Pull, index=0, part=0, step=1)
    parts.check(
        (lambda: parts.serving.pull(CHILD, pull), None, []),
        (lambda: gathering.push(*parts.push(0), None, 0), True,
         [f"switch: {RECEIVED}PUSH contributors=3",
          "ReadWeights extent=0 step=1 attempt=1 parts=0"]),
        (lambda: parts.steps.at(0).written, {0}, []),
    )  # fmt: skip


# -------------------------------------------------------------------------- the child


def test_a_child_waits_for_the_store_and_joins() -> None:
    """Goal: one OpenStore for a new job; then the child joins, and is welcomed by the core."""
    parts = Parts(version=None)
    parts.shard.description = None
    members = Membership(parts.outbox, parts.children, parts.shard, parts.steps)
    hello = parts.hello()
    parts.check(
        (members.admit, None, []),
        (lambda: members.hello(CHILD, hello, parts.description), None,
         [f"OpenStore description={parts.description!r}"]),
        (lambda: members.hello(CHILD, hello, parts.description), None, []),
        (lambda: parts.shard.open(parts.description), None, []),
        (members.admit, Joined(CHILD, hello, is_restarted=False), []),
        (members.admit, None, []),
        (lambda: members.hello(CHILD, hello, parts.description), None, []),
        (lambda: members.store_refused("no room"), None,
         ["switch: Refuse text=no room is_older=False is_left_out=False"]),
    )  # fmt: skip


@pytest.mark.parametrize("redoes", [False, True])
def test_a_child_that_knows_more_steps_ends_the_node_or_its_attempt(redoes: bool) -> None:
    """I2. Goal: a state that lacks decided steps is never used silently."""
    parts = Parts()
    parts.children.redoes = redoes
    members = Membership(parts.outbox, parts.children, parts.shard, parts.steps)
    hello = parts.hello(step=3, attempt=4, generation=2)
    members.hello(CHILD, hello, parts.description)
    joined = members.admit()
    lines = parts.lines()
    if not redoes:
        assert joined is None
        assert [line.split()[:2] for line in lines] == [
            ["note", "node.refused"], ["switch:", "Refuse"], ["GiveUp", lines[2].split()[1]],
        ]  # fmt: skip
        assert lines[2].endswith("code=E508")
        return
    assert joined is not None
    assert joined.lost_text.endswith("steps 0 to 2 are lost")
    assert (parts.outbox.generation, parts.outbox.attempt) == (3, 4)


def test_ranks_of_the_next_attempt() -> None:
    """Goal: an older report does not undo a later one; too few ranks are only noted."""
    parts = Parts()
    counted = CountedRanks(parts.outbox, RANKS, ranks_min=1)

    def reported(present: int, roll: tuple[int, int]) -> Change | None:
        counted.report(present, roll)
        return counted.change()

    parts.check(
        (lambda: reported(0b11, (5, 1)), None, []),
        (lambda: reported(0b01, (5, 2)), Change("ranks 1 are lost", 0b10), []),
        (lambda: reported(0b11, (5, 1)), None, []),
        (lambda: counted.wanted, 0b01, []),
        (lambda: reported(0, (5, 3)), None,
         ["note node.too_few {'ranks': '', 'least': 1}"]),
        (lambda: reported(0b11, (5, 4)), Change("ranks 1 are back", 0), []),
    )  # fmt: skip


def test_ranks_that_never_came() -> None:
    """Goal: they are waited for, unless the job grows; then the first time they are there is no
    return."""
    parts = Parts()
    for grows, expected in ((False, None), (True, Change("ranks 1 are not there yet", 0b10))):
        counted = CountedRanks(parts.outbox, RANKS, ranks_min=1, grows=grows)
        counted.report(0b01, (5, 1))
        assert counted.change() == expected
    for present, text in ((0b11, "ranks 1 have joined"), (0b01, "ranks 1 are lost"),
                          (0b11, "ranks 1 are back")):  # fmt: skip
        counted.report(present, (6, 1))
        change = counted.change()
        assert change is not None
        assert change.text == text


# -------------------------------------------------------------------------- several nodes


def test_a_single_node_judges_and_decides_by_itself() -> None:
    """Goal: a norm that is not finite skips the step under the next attempt."""
    parts = Parts()
    alone = alone_of(parts)
    parts.steps.at(0)
    parts.state.prepared = do.PreparedVersion(1, 1, True, (NORM,), RANKS)
    parts.check(
        (lambda: alone.measured(0, [SQUARES]), Judgement(True, (NORM,), 2), []),
        (lambda: alone.measured(0, [None]), Judgement(False, (math.inf,), 2), []),
        (lambda: alone.prepared(1, b""), None, ["Decide version=1 attempt=1"]),
    )


def test_an_abort_waits_for_the_decision_unless_what_came_in_is_lost() -> None:
    """Goal: after the verdict an abort waits; if what is attached is lost, only for the store."""
    parts = Parts()
    alone = alone_of(parts)
    parts.steps.at(0).verdict = parts.m(wire.Verdict, applied=True, norms=(1.0,))
    asked, lost = AbortRequest("asked"), AbortRequest("ranks 1 are lost", is_lost=True)
    parts.check(
        (alone.waiting, None, []),
        (lambda: alone.request_abort(asked), False, []),
        (alone.waiting, asked, []),
        (lambda: alone.request_abort(lost), True, []),
    )
    parts.state.is_sealing = True
    parts.check(
        (lambda: alone.request_abort(lost), False, []),
        (lambda: alone.prepared(1, b""), AbortRequest("ranks 1 are lost"), []),
        (alone.forget, None, []),
        (alone.waiting, None, []),
    )


def adopt_of(parts: Parts, **values: Any) -> wire.Adopt:
    stamp = {"attempt": 2, "epoch": 5, "incarnation": 30}
    fields = {"members": 0b01, "contributors": RANKS, "loaded": True, "text": "t"}
    found: wire.Adopt = parts.m(wire.Adopt, **{**stamp, **fields, **values})
    return found


def test_one_of_several_follows_the_switch() -> None:
    """I2, E2. Goal: it states what it has, and decides only when the switch says so."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    parts.steps.at(0).is_stated = True
    adopt = adopt_of(parts)
    verdict = parts.m(wire.Verdict, attempt=2, applied=True, norms=(2.0,))
    resolved = parts.m(wire.Resolved, attempt=2, version=1)
    parts.check(
        (lambda: joint.verdict(verdict), None, []),
        (lambda: joint.adopt(adopt), adopt, []),
        (lambda: joint.taken_over(adopt), Epoch(5, 0b01, 30), []),
    )
    parts.outbox.attempt = 2
    parts.check(
        (lambda: joint.measured(0, [SQUARES]), None,
         [f"switch: Measured + {encode_squares(SQUARES)!r}"]),
        (lambda: joint.verdict(verdict), Judgement(True, (2.0,), 2), []),
        (lambda: joint.prepared(1, b"d" * 16), None,
         [f"switch: Prepared version=1 + {b'd' * 16!r}"]),
        (lambda: joint.resolved(resolved), None, []),
    )  # fmt: skip
    parts.state.prepared = do.PreparedVersion(1, 2, True, 2.0, RANKS)
    parts.check((lambda: joint.resolved(resolved), None, ["Decide version=1 attempt=2"]))


def test_an_attempt_waits_for_the_version_that_it_goes_on_from() -> None:
    """E5. Goal: what is decided elsewhere is decided before the attempt is taken over."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    parts.state.prepared = do.PreparedVersion(1, 1, True, (2.0,), RANKS)
    adopt = adopt_of(parts, step=1)
    parts.check(
        (lambda: joint.adopt(adopt), None, ["Decide version=1 attempt=1"]),
        (parts.steps.close, None, []),
        (lambda: parts.state.was_decided().version, 1,
         ["switch: Decided applied=True norms=2.0 step=0",
          "note node.step {'step': 0, 'applied': True, 'grad_norm': 2.0, 'ranks': '0-1'}"]),
        (joint.waiting, adopt, []),
    )  # fmt: skip


def test_a_state_of_another_version_is_given_up() -> None:
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    joint.is_enlisted = True
    assert joint.adopt(adopt_of(parts, step=4)) is None
    (line,) = parts.lines()
    assert "node 1 is at version 0, those of the others at version 4" in line


def test_an_attempt_that_was_sent_to_its_former_start_is_not_followed() -> None:
    """E4. Goal: a node that was started again, on another version or on an empty directory, waits
    for what the switch makes of where it stands. Method: the Adopt was repeated before that, and
    came after the Hello."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    assert joint.adopt(adopt_of(parts, step=4)) is None
    assert parts.lines() == []
    assert joint.waiting() is None
    adopt = adopt_of(parts)
    assert joint.adopt(adopt) is adopt


def test_an_older_switch_is_refused_after_a_newer_one_was_answered() -> None:
    """E3. Goal: also by a process that was started since, and the promise is durable before the
    answer."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    older = parts.hello(RANKS, incarnation=19)
    joint.hello("old", older, parts.shard.description_bytes)
    refusal = parts.lines()[-1]
    assert "a later start of the switch leads" in refusal
    assert "is_left_out=True" in refusal
    newer = parts.hello(RANKS, incarnation=21)
    joint.hello("new", newer, parts.shard.description_bytes)
    recorded, standing = parts.lines()
    assert recorded == "RecordAttempt attempt=1 epoch=4+3+21"
    assert standing.startswith("new: Standing members=3 loaded=True")


def test_a_node_that_is_refused_ends_with_the_code_of_the_reason() -> None:
    parts = Parts(number=1, count=2)
    joint = joint_of(parts)
    for fields, code in (
        ({}, "E500"),
        ({"is_older": True}, "E508"),
        ({"is_left_out": True}, "E510"),
    ):
        joint.refused(parts.m(wire.Refuse, text="why", **fields))
        (line,) = parts.lines()
        assert f"code={code}" in line
        assert "optimizer node 1: why" in line


# -------------------------------------------------------------------------- the tables

NOT_FOR_NODES = {
    wire.Weights, wire.Content, wire.Agreed, wire.Decided, wire.Opened, wire.Gone,
    wire.Welcome, wire.Abort, wire.Received, wire.Rejoin, wire.Measured, wire.Prepared,
    wire.Standing,
}  # fmt: skip
"""What only a node sends, to children, to a switch that leads it, and to readers."""


@pytest.mark.parametrize("count", [1, 2])
def test_every_message_has_a_place(count: int) -> None:
    """Goal: no message is forgotten, and each entry is a documented method."""
    core = NodeCore(job=JOB, incarnation=1, ranks=RANKS, node=do.NodeNumber(count=count))
    every = [tables.FROM_ANYONE, tables.FROM_MEMBER, tables.FROM_CHILD, tables.FROM_LEAD]
    for table in every if count > 1 else every[:-1]:
        for path in table.values():
            method: Any = attrgetter(path)(core)
            assert callable(method)
            assert path.startswith("_") or method.__doc__
    placed = {kind for table in every for kind in table}
    assert placed.isdisjoint(NOT_FOR_NODES)
    assert placed | NOT_FOR_NODES == set(wire.MESSAGE_TYPES)

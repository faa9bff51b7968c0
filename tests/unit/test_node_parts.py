"""The parts of the node's core, each built alone: events, their answers and their actions."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import pytest

from luwu.base.outstanding import RetryPolicy
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from luwu.wire.squares import encode_squares
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core import node as tables
from switch_emu.node.core.attachments import Attachments
from switch_emu.node.core.first_weights import FirstWeights
from switch_emu.node.core.following import Following
from switch_emu.node.core.gathering import Gathering
from switch_emu.node.core.joint import Joint
from switch_emu.node.core.membership import Membership
from switch_emu.node.core.presence import Presence
from switch_emu.node.core.results import AbortRequest, Joined, Judgement
from switch_emu.node.core.updates import Updates
from tests.simulate.job import JOB
from tests.unit.node_parts import CHILD, RANKS, Parts

SQUARES = {2.0: [8.0]}
"""Of a sum over two ranks: the mean gradient has the norm sqrt(8) / 2."""
NORM = math.sqrt(2.0)
RECEIVED = "Received index=0 part=0 verb="


def taken(parts: Parts, extent: int = 0) -> None:
    """A whole sum of an extent is in, and its Begin and Commit are."""
    step = parts.steps.at(parts.outbox.step)
    step.hyper, step.parts = parts.job.hyper, 1
    gathering_of(parts).push(*parts.push(extent), "g", parts.nbytes(extent))
    parts.lines()


def gathering_of(parts: Parts) -> Gathering:
    return Gathering(
        parts.outbox, parts.children, parts.shard, parts.steps, parts.budget, parts.serving
    )


def joint_of(parts: Parts) -> Joint:
    return Joint(parts.outbox, parts.children, parts.shard, parts.state, parts.steps)


def following_of(parts: Parts) -> Following:
    return Following(
        parts.outbox, parts.children, parts.shard, parts.state, parts.steps, RetryPolicy()
    )


# -------------------------------------------------------------------------- state and first weights


def test_state_prepares_decides_and_announces() -> None:
    """Goal: a version is announced only after its Decide."""
    parts = Parts()
    state = parts.state
    verdict = parts.m(wire.Verdict, applied=True, grad_norm=1.5)
    prepare = do.Prepare(
        version=1, attempt=1, epoch=0, contributors=RANKS, applied=True, grad_norm=1.5,
        hyper=b"h", kept_attempt=None,
    )  # fmt: skip
    prepared = do.PreparedVersion(1, 1, True, 1.5, RANKS)
    parts.check(
        (lambda: state.prepare(1, verdict, b"h"), None,
         ["Prepare version=1 attempt=1 epoch=0 contributors=3 applied=True grad_norm=1.5 "
          "hyper=b'h'"]),
        (lambda: state.is_sealing, True, []),
        (lambda: state.was_prepared(prepare), None, []),
        (lambda: state.is_sealing, False, []),
        (state.decide, None, ["Decide version=1 attempt=1"]),
        (parts.steps.close, None, []),
        (state.was_decided, prepared,
         ["switch: Decided applied=True grad_norm=1.5 step=0",
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
          "Prepare version=0 attempt=1 epoch=0 contributors=3 applied=True grad_norm=0.0"]),
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
    first = do.Fold(0, 0, 1, 0, None, (), 0)
    assert gathering.push(*push[1], "g1", nbytes) is True
    assert parts.lines() == ["switch: Received index=0 part=1 verb=PUSH contributors=3"]
    assert gathering.push(*push[0], "g0", nbytes) is True
    (fold,) = [each for each in parts.outbox.take() if isinstance(each, do.Fold)]
    assert (fold.part, fold.total, [c.payload for c in fold.contributions]) == (0, None, ["g0"])
    parts.check(
        (lambda: gathering.folded(fold, (1.0,), "t0", nbytes), None,
         ["drop g0",
          "Fold extent=0 step=0 attempt=1 part=1 total=t0 contributions=g1 absent=0"]),
        (lambda: parts.steps.at(0).sums.extents[0].folded_count, 1, []),
    )  # fmt: skip
    parts.outbox.attempt = 2
    parts.check((lambda: gathering.folded(first, (1.0,), "old", nbytes), None, ["drop old"]))


def test_gathering_inspects_encoded_sums_and_asks_again_for_those_that_overflow() -> None:
    parts = Parts(aggregate="fixed-scale:1e-6")
    gathering = gathering_of(parts)
    nbytes = parts.shard.aggregator.encoded_bytes(4096)
    push = parts.push(0, dtype="encoded", raw=False)
    gathering.push(*push, "g0", nbytes)
    (_, inspect) = parts.outbox.take()
    assert isinstance(inspect, do.Inspect)
    confirm = parts.m(wire.Confirm, index=0, part=0)
    parts.check(
        (lambda: gathering.confirm(CHILD, confirm), None, []),
        (lambda: gathering.inspected(inspect, fits=False), None,
         ["drop g0", "note node.overflow {'step': 0, 'extent': 0}",
          "switch: Confirmed index=0 part=0 fits=False"]),
        (lambda: gathering.confirm(CHILD, confirm), None,
         ["switch: Confirmed index=0 part=0 fits=False"]),
        (lambda: gathering.push(*push, "integers", nbytes), False,
         ["drop integers", f"switch: {RECEIVED}PUSH contributors=3"]),
        (lambda: gathering.overflow_count, 1, []),
    )  # fmt: skip


def test_begin_and_commit_make_a_step() -> None:
    """Goal: Begin brings the hyper-parameters of a step that streams; a decided one is answered."""
    parts = Parts()
    gathering = gathering_of(parts)
    begin = parts.m(wire.Begin, contributors=RANKS, hyper_hash="h")
    commit = parts.m(wire.Commit, contributors=RANKS, hyper_hash="h", parts=1, skip=False)
    far = parts.m(wire.Begin, contributors=RANKS, hyper_hash="h", step=2)
    parts.check(
        (lambda: gathering.begin(CHILD, far, b"x"), False, []),
        (lambda: gathering.begin(CHILD, begin, b"h"), True,
         [f"switch: {RECEIVED}BEGIN contributors=0"]),
        (lambda: gathering.commit(CHILD, commit, b"c"), True, []),
        (lambda: (parts.steps.at(0).hyper, parts.steps.at(0).parts), (b"h", 1), []),
    )  # fmt: skip
    verdict = parts.m(wire.Verdict, role=Role.NODE, applied=True, grad_norm=1.0)
    parts.children.outcomes.verdict = verdict
    parts.check(
        (lambda: gathering.commit(CHILD, commit, b"c"), False,
         ["switch: Verdict applied=True grad_norm=1.0"]),
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


# -------------------------------------------------------------------------- updates and serving


def test_an_update_hands_out_weights_that_are_waited_for() -> None:
    """Goal: Update -> updated -> written; a read of step t - 1 holds it up."""
    parts = Parts()
    updates = Updates(parts.outbox, parts.shard, parts.steps, parts.budget, parts.serving, 1)
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
         ["switch: Weights index=0 part=0 dtype=float32 in_place=False step=1 + w"]),
        (lambda: len(updates.under_way), 1, []),
        (lambda: updates.written(update), None, []),
        (lambda: len(updates.under_way), 0, []),
        (lambda: parts.serving.pull(CHILD, pull), None,
         ["ReadWeights extent=0 step=1 version=1 attempt=1 parts=0"]),
    )  # fmt: skip


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
         ["switch: Weights index=0 part=0 dtype=float32 in_place=True + w0", "drop w0",
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
    members = Membership(parts.outbox, parts.children, parts.shard.node, parts.shard, parts.steps)
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
         ["switch: Refuse text=no room is_older=False"]),
    )  # fmt: skip


@pytest.mark.parametrize("redoes", [False, True])
def test_a_child_that_knows_more_steps_ends_the_node_or_its_attempt(redoes: bool) -> None:
    """I2. Goal: a state that lacks decided steps is never used silently."""
    parts = Parts()
    parts.children.redoes = redoes
    members = Membership(parts.outbox, parts.children, parts.shard.node, parts.shard, parts.steps)
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


def test_presence_counts_the_ranks_of_the_next_attempt() -> None:
    """Goal: an older report does not undo a later one; too few ranks are only noted."""
    parts = Parts()
    presence = Presence(parts.outbox, parts.children, parts.steps, ranks_min=1)
    lost, back = AbortRequest("ranks 1 are lost"), AbortRequest("ranks 1 are back")
    parts.check(
        (lambda: presence.report(0b11, (5, 1)), None, []),
        (lambda: presence.report(0b01, (5, 2)), lost, []),
        (lambda: presence.report(0b11, (5, 1)), None, []),
        (presence.apply, None, []),
        (lambda: (parts.children.members.active, parts.outbox.epoch), (0b01, 1), []),
        (lambda: presence.report(0, (5, 3)), None,
         ["note node.too_few {'ranks': '', 'least': 1}"]),
        (lambda: presence.report(0b11, (5, 4)), back, []),
    )  # fmt: skip


# -------------------------------------------------------------------------- several nodes


def test_a_single_node_judges_and_decides_by_itself() -> None:
    """Goal: a ballot of one; a norm that is not finite skips the step under the next attempt."""
    parts = Parts()
    joint = joint_of(parts)
    parts.steps.at(0)
    parts.state.prepared = do.PreparedVersion(1, 1, True, NORM, RANKS)
    parts.check(
        (lambda: joint.measured(0, [SQUARES]), Judgement(True, NORM, 2), []),
        (lambda: joint.measured(0, [None]), Judgement(False, math.inf, 2), []),
        (lambda: joint.prepared(1, b""), None, ["Decide version=1 attempt=1"]),
        (lambda: joint.was_decided(1), None, []),
    )


def test_node_0_decides_when_all_nodes_are_prepared() -> None:
    """I2. Goal: verdict and decision wait for the other node, which then receives Resolved."""
    parts = Parts(count=2)
    joint = joint_of(parts)
    parts.steps.at(0)
    hello = parts.hello(0b10, role=Role.NODE)
    measured = parts.m(wire.Measured, role=Role.NODE)
    prepared = parts.m(wire.Prepared, role=Role.NODE, version=1)
    squares = encode_squares(SQUARES, 2.0)
    parts.state.prepared = do.PreparedVersion(1, 1, True, 2.0, RANKS)
    parts.check(
        (lambda: joint.node_at("n1", 5), None, []),
        (lambda: joint.hello("n1", hello, parts.description), Joined("n1", hello, False), []),
        (lambda: joint.welcome_node("n1"), None,
         ["n1: Welcome contributors=3 loaded=True push_window_bytes=0 began_with_skip=False "
          "skipped_step=0 grad_norm=0.0 redoes=False"]),
        (lambda: joint.node_at("n1", 5), 1, []),
        (lambda: joint.measured(0, [SQUARES]), None, []),
        (lambda: joint.node_measured("n1", 1, measured, squares), Judgement(True, 2.0, 2), []),
        (lambda: joint.prepared(1, b""), None, []),
        (lambda: joint.node_prepared("n1", 1, prepared), None, ["Decide version=1 attempt=1"]),
        (parts.steps.close, None, []),
        (lambda: joint.was_decided(1), None, ["n1: Resolved version=1"]),
        (lambda: joint.node_prepared("n1", 1, prepared), None, ["n1: Resolved version=1"]),
        (lambda: joint.has_left, False, []),
        (lambda: joint.node_leaves("n1", 1, parts.m(wire.Leave, contributors=2)), None,
         [f"n1: {RECEIVED}LEAVE contributors=0"]),
        (lambda: joint.has_left, True, []),
    )  # fmt: skip


def test_an_abort_waits_for_the_decision_unless_what_came_in_is_lost() -> None:
    """Goal: after the verdict an abort waits; if a node lost its gradients, only for the store."""
    parts = Parts(count=2)
    joint = joint_of(parts)
    parts.steps.at(0).verdict = parts.m(wire.Verdict, applied=True, grad_norm=1.0)
    asked, lost = AbortRequest("asked"), AbortRequest("a node was started again", is_lost=True)
    parts.check(
        (joint.waiting, None, []),
        (lambda: joint.request_abort(asked), False, []),
        (joint.waiting, asked, []),
        (lambda: joint.request_abort(lost), True, []),
    )
    parts.state.is_sealing = True
    parts.check(
        (lambda: joint.request_abort(lost), False, []),
        (lambda: joint.welcome_node("n1"), None, []),
        (lambda: joint.prepared(1, b""), AbortRequest("a node was started again"), []),
        (lambda: joint.was_aborted("x"), None,
         ["n1: Welcome contributors=3 loaded=True push_window_bytes=0 began_with_skip=False "
          "skipped_step=0 grad_norm=0.0 redoes=False"]),
        (joint.waiting, None, []),
    )  # fmt: skip


def test_a_following_node_asks_and_follows() -> None:
    """I2. Goal: it decides only what node 0 has decided, and takes an attempt over when the store
    has time for it."""
    parts = Parts(number=1, count=2)
    following = following_of(parts)
    parts.steps.at(0).is_stated = True
    welcome = parts.m(
        wire.Welcome, role=Role.NODE, attempt=2, contributors=RANKS, loaded=True,
        push_window_bytes=0,
    )  # fmt: skip
    verdict = parts.m(wire.Verdict, role=Role.NODE, applied=True, grad_norm=2.0)
    resolved = parts.m(wire.Resolved, role=Role.NODE, version=1)
    hello, _ = following.opened(), parts.lines()
    assert hello == []
    parts.check(
        (lambda: following.is_current(verdict), False, []),
        (lambda: following.welcome(welcome), welcome, []),
        (lambda: following.taken_over(welcome), None, []),
        (lambda: following.is_current(verdict), True, []),
        (lambda: following.measured(0, [SQUARES]), None,
         [f"parent: Measured + {encode_squares(SQUARES, 2.0)!r}"]),
        (lambda: following.verdict(verdict), Judgement(True, 2.0, 1), []),
        (lambda: following.prepared(1, b""), None, ["parent: Prepared version=1"]),
        (lambda: following.resolved(resolved), None, []),
    )  # fmt: skip
    parts.state.prepared = do.PreparedVersion(1, 1, True, 2.0, RANKS)
    abort = parts.m(
        wire.Abort, role=Role.NODE, attempt=3, step=1, contributors=RANKS, loaded=True, text="t"
    )
    parts.check(
        (lambda: following.resolved(resolved), None, ["Decide version=1 attempt=1"]),
        (lambda: following.abort(abort), None, []),
        (parts.steps.close, None, []),
        (lambda: parts.state.was_decided().version, 1,
         ["switch: Decided applied=True grad_norm=2.0 step=0",
          "note node.step {'step': 0, 'applied': True, 'grad_norm': 2.0, 'ranks': '0-1'}"]),
        (lambda: following.was_decided(1), None, []),
        (following.waiting, abort, []),
    )  # fmt: skip


def test_a_following_node_gives_up_on_a_state_of_another_version() -> None:
    parts = Parts(number=1, count=2)
    following = following_of(parts)
    abort = parts.m(
        wire.Abort, role=Role.NODE, attempt=3, step=4, contributors=RANKS, loaded=True, text="t"
    )
    assert following.abort(abort) is None
    (line,) = parts.lines()
    assert "node 0 is at version 4, that of node 1 at version 0" in line


# -------------------------------------------------------------------------- the tables

NOT_FOR_NODES = {
    wire.Weights, wire.Content, wire.Agreed, wire.Confirmed, wire.Decided, wire.Opened, wire.Gone,
}  # fmt: skip
"""What only a node sends, to children and readers."""


@pytest.mark.parametrize("number", [0, 1])
def test_every_message_has_a_place(number: int) -> None:
    """Goal: no message is forgotten, and each entry is a documented method."""
    core = NodeCore(job=JOB, incarnation=1, ranks=RANKS, node=do.NodeNumber(number=number, count=2))
    first = [tables.FROM_NODES] if number == 0 else [tables.FROM_FIRST, tables.FROM_FIRST_CURRENT]
    for table in (tables.FROM_ANYONE, tables.FROM_MEMBER, tables.FROM_CHILD, *first):
        for path in table.values():
            method: Any = attrgetter(path)(core)
            assert callable(method)
            assert path.startswith("_") or method.__doc__
    every = (
        tables.FROM_ANYONE, tables.FROM_MEMBER, tables.FROM_CHILD, tables.FROM_NODES,
        tables.FROM_FIRST, tables.FROM_FIRST_CURRENT,
    )  # fmt: skip
    placed = {kind for table in every for kind in table}
    assert placed.isdisjoint(NOT_FOR_NODES)
    assert placed | NOT_FOR_NODES == set(wire.MESSAGE_TYPES)

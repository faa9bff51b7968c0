"""The node's core: what simulated histories do not show, or too rarely.

What comes before the initial weights are decided, what is refused and in which words, and what was
found once: whole cores that are told by hand what their pipeline has done, and parts alone.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import Drop, Send
from luwu.protocol.epoch import Epoch
from luwu.wire import messages as wire
from luwu.wire.messages import Role, Verb
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core import node as tables
from switch_emu.node.core.deciding import AbortRequest, Alone, Joint
from switch_emu.node.core.gathering import Gathering, Updates
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.step import GradientBudget
from switch_emu.node.core.whole_pages import Early, Filling, FirstWeights
from tests.helpers.node_parts import CHILD, RANKS, Parts
from tests.helpers.switch_parts import message
from tests.simulate.job import JOB, Job, make_layout


def filling_of(parts: Parts, number: int = 0) -> Filling:
    filling = Filling(parts.outbox, parts.children, parts.shard)
    filling.begin(number)
    return filling


def gathering_of(parts: Parts) -> Gathering:
    return Gathering(
        parts.outbox, parts.children, parts.shard, parts.steps, parts.budget, parts.serving,
        filling_of(parts),
    )  # fmt: skip


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


def adopt_of(parts: Parts, **values: Any) -> wire.Adopt:
    stamp = {"attempt": 2, "epoch": 5, "incarnation": 30}
    fields = {
        "members": 0b01, "contributors": RANKS, "loaded": True, "decided_attempt": 1, "text": "t",
    }  # fmt: skip
    found: wire.Adopt = parts.m(wire.Adopt, **{**stamp, **fields, **values})
    return found


def said(kind: type[Any], **given: Any) -> Any:
    """A message of the child of a node that is alone, in attempt 1; other fields are blank."""
    stamp = {"job": JOB, "attempt": 1, "role": Role.SWITCH, "incarnation": 5, "generation": 1}
    return message(kind, **stamp | given)


def hello(job: Job, ranks: int, **given: Any) -> Any:
    """Hello of the child, before it knows of a start of the node."""
    return said(
        wire.Hello, generation=0, protocol=PROTOCOL_VERSION, world_size=ranks.bit_count(),
        contributors=ranks, present=ranks, description_hash=job.description.hash, **given,
    )  # fmt: skip


def push(index: int = 0) -> Any:
    return said(
        wire.Push, index=index, contributors=1, last=True, weight=1.0, raw=True, dtype="float32"
    )


def loaded(job: Job) -> tuple[NodeCore, do.Prepare]:
    """A node with all initial weights in their pages, and the version that it prepares."""
    description = job.description
    core = NodeCore(job=JOB, incarnation=9, ranks=1)
    core.store_opened(
        do.StoreFacts(
            description=description.to_bytes(), generation=1, attempt=1, epoch=0, job=JOB,
            version=None,
        )
    )  # fmt: skip
    core.received(0, "child", hello(job, 1), description.to_bytes())
    actions: list[Any] = []
    for chunk in job.layout.chunks:
        core.received(0, "child", said(wire.Load, index=chunk.index), object(), chunk.sum_bytes)
        actions = core.page_loaded(do.LoadPage(chunk.index, 1, None))
    (prepare,) = (each for each in actions if isinstance(each, do.Prepare))
    return core, prepare


def test_a_run_without_steps_ends_when_its_first_weights_are_decided() -> None:
    """I2. Goal: a child that loads weights and leaves at once loses nothing: the node goes on until
    version 0 is decided. Method: the child leaves while the version is being prepared."""
    core, prepare = loaded(Job(make_layout(units=1, frozen=False), world_size=1))

    core.received(0, "child", said(wire.Leave, contributors=1))

    assert not core.finished
    (decide,) = core.prepared(prepare)
    assert isinstance(decide, do.Decide)
    assert not core.finished
    core.decided(decide)
    assert core.finished


def test_a_gradient_before_the_weights_are_decided_need_not_be_repeated() -> None:
    """I1. Goal: a worker that pulls nothing before it pushes loses no time: its gradients, and its
    Commit, count once, as soon as there are weights, also if it has sent one of them twice."""
    job = Job(make_layout(units=1, frozen=False), world_size=1)
    core, prepare = loaded(job)
    chunk = job.layout.chunks[0]
    core.received(0, "child", said(wire.Begin, contributors=1), job.hyper)
    assert core.received(0, "child", push(), "g0", 4 * chunk.elems) == []
    assert core.received(0, "child", push(), "again", 4 * chunk.elems) == [Drop("again")]
    (decide,) = core.prepared(prepare)
    assert isinstance(decide, do.Decide)
    actions = core.decided(decide)

    (receipt,) = [
        each.message for each in actions if isinstance(each, Send)
        and isinstance(each.message, wire.Received) and each.message.verb == Verb.PUSH
    ]  # fmt: skip
    assert receipt.index == 0
    (update,) = [each for each in actions if isinstance(each, do.Update)]
    assert [each.payload for each in update.contributions] == ["g0"]


def test_early_keeps_no_more_than_the_window_and_nothing_of_an_older_attempt() -> None:
    """I6. Goal: what a child sends too early takes no more memory than its window."""
    parts = Parts(version=None)
    early = Early(parts.outbox, parts.nbytes(0))
    first, second = parts.push(0, 0b01), parts.push(0, 0b10)
    commit = parts.m(wire.Commit, contributors=RANKS, parts=1, skip=False, held=0)
    parts.check(
        (lambda: early.is_early(commit), True, []),
        (lambda: early.is_early(parts.m(wire.Pull, index=0, part=0, count=1)), False, []),
        (lambda: early.keep(*first, "g0", parts.nbytes(0)), None, []),
        (lambda: early.keep(*second, "g1", parts.nbytes(0)), None, ["drop g1"]),
        (lambda: early.keep(CHILD, commit, b"hyper", 0), None, []),
        (early.take, [(*first, "g0", parts.nbytes(0)), (CHILD, commit, b"hyper", 0)], []),
        (early.take, [], []),
        (lambda: early.keep(*first, "g0", parts.nbytes(0)), None, []),
        (early.forget, None, ["drop g0"]),
        (early.take, [], []),
    )


def test_a_step_without_gradients_waits_for_its_hyper_parameters() -> None:
    """I1, O3. Goal: a step that streams, of which no rank has a gradient, is not judged before its
    Begin came, which was lost and is sent again: it says that ranks attach something to the step.
    (The version was prepared without that: history 6028927.)"""
    job = Job(make_layout(units=1, frozen=False), world_size=1, keeps=True)
    core, prepare = loaded(job)
    (decide,) = core.prepared(prepare)
    actions = list(core.decided(decide))
    for extent in job.layout.extents:
        actions += core.received(0, "child", push(extent.index), None, 0)
    commit = said(wire.Commit, contributors=1, parts=1)
    actions += core.received(0, "child", commit, b"")
    assert not verdicts(actions)

    begin = said(wire.Begin, contributors=1)
    (verdict,) = verdicts(core.received(0, "child", begin, job.hyper))
    assert verdict.applied


def verdicts(actions: list[Any]) -> list[wire.Verdict]:
    sent = [each.message for each in actions if isinstance(each, Send)]
    return [message for message in sent if isinstance(message, wire.Verdict)]


def test_first_weights_are_written_once_and_then_prepared() -> None:
    """Goal: repetitions are dropped or confirmed; the last page prepares version 0."""
    parts = Parts(version=None)
    first = FirstWeights(parts.outbox, parts.children, parts.shard, parts.state)

    def load(chunk: int, payload: str, nbytes: int | None = None) -> None:
        m = parts.m(wire.Load, index=chunk, part=0)
        first.load(CHILD, m, payload, parts.nbytes(chunk) if nbytes is None else nbytes)

    received = "switch: Received{} verb=LOAD"
    parts.check(
        (lambda: load(0, "w0"), None, ["LoadPage chunk=0 attempt=1 payload=w0"]),
        (lambda: load(0, "again"), None, ["drop again"]),
        (lambda: load(1, "short", 8), None,
         ["note node.misfit", "drop short"]),
        (lambda: load(1, "w1"), None, ["LoadPage chunk=1 attempt=1 payload=w1"]),
        (lambda: first.page_loaded(do.LoadPage(1, 0, "old")), True, []),
        (lambda: first.page_loaded(do.LoadPage(0, 1, "w0")), False, [received.format("")]),
        (lambda: load(0, "late"), None, [received.format(""), "drop late"]),
        (lambda: first.page_loaded(do.LoadPage(1, 1, "w1")), False,
         [received.format(" index=1"),
          "Prepare version=0 attempt=1 epoch=0 contributors=3 applied=True norms=0.0"]),
        (lambda: first.is_loading, True, []),
        (first.forget, None, []),
        (lambda: first.is_loading, False, []),
    )  # fmt: skip


def test_first_weights_wait_until_older_pages_are_discarded() -> None:
    """Goal: a page is not written while pages of the attempt before are being forgotten."""
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
    assert parts.lines() == ["note node.misfit", "drop short"]


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


@pytest.mark.parametrize(("attempt", "is_decided"), [(1, True), (2, False)])
def test_a_version_that_was_made_again_is_not_decided(attempt: int, is_decided: bool) -> None:
    """E2. Goal: a node that has a version prepared decides it if that is the one that the others
    have; if it was made again since, under another attempt, it waits, or hears no decision.
    Method: it has version 1 prepared under attempt 1."""
    for adopts in (True, False):
        parts = Parts(number=1, count=2)
        joint = joint_of(parts)
        parts.state.was_prepared(do.Prepare(
            version=1, attempt=1, epoch=0, contributors=RANKS, hyper=b"", applied=True,
            norms=(1.0,), kept_attempt=None,
        ))  # fmt: skip
        if adopts:
            joint.adopt(adopt_of(parts, step=1, attempt=3, decided_attempt=attempt))
        else:
            joint.is_enlisted = True
            joint.resolved(parts.m(wire.Resolved, version=1, attempt=attempt))
        assert parts.lines() == ["Decide version=1 attempt=1"] * is_decided


def test_a_node_says_under_which_attempts_its_versions_were_made() -> None:
    """E2. Goal: the attempts of what is decided and of what is prepared, which are not always the
    last that it has recorded: after it was opened, and once it has decided more."""
    parts = Parts(number=1, count=2)
    joint, hello = joint_of(parts), parts.hello(RANKS, incarnation=20)
    prepared = do.PreparedVersion(2, 4, applied=True, norms=(1.0,), contributors=RANKS)
    parts.state.opened(do.StoreFacts(
        description=b"", generation=1, attempt=5, epoch=0, job=JOB, version=1, decided_attempt=3,
        prepared=prepared,
    ))  # fmt: skip
    joint.hello("switch", hello, parts.shard.description_bytes)
    assert parts.lines()[-1].endswith("decided_attempt=3 prepared_attempt=4")
    parts.state.was_decided()
    joint.hello("switch", hello, parts.shard.description_bytes)
    assert parts.lines()[-1].endswith("decided_attempt=4")


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


def test_what_is_over_the_budget_is_spilled() -> None:
    """I5. Goal: payloads count until they are released; raw ones have a smaller budget."""
    parts = Parts()
    budget = GradientBudget(parts.outbox, parts.children, bytes_max=100, raw_bytes_max=40)
    parts.check(
        (lambda: budget.add("r0", 40, is_raw=True), None, []),
        (lambda: budget.add("r1", 1, is_raw=True), None, ["Spill payload=r1 is_raw=True"]),
        (lambda: budget.add("s0", 60, is_raw=False), None, []),
        (lambda: budget.add("s1", 1, is_raw=False), None, ["Spill payload=s1 is_raw=False"]),
        (lambda: (budget.bytes_used, budget.spilled_count), (100, 2), []),
        (lambda: budget.release("s1"), None, ["drop s1"]),
        (lambda: budget.bytes_used, 100, []),
        (lambda: budget.release("r0"), None, ["drop r0"]),
        (lambda: budget.add("r2", 40, is_raw=True), None, []),
        (lambda: budget.bytes_used, 100, []),
    )  # fmt: skip


def test_serving_reads_a_few_at_a_time_and_nothing_of_an_older_attempt() -> None:
    """I6. Goal: weights that were read in an older attempt are dropped."""
    parts = Parts()
    serving = parts.serving
    pulls = [parts.m(wire.Pull, index=extent, part=0) for extent in (0, 1, 7)]
    read = do.ReadWeights(0, 0, 0, 1, (0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[2]), False, []),
        (lambda: serving.pull(CHILD, pulls[0]), False,
         ["ReadWeights extent=0 step=0 version=0 attempt=1 parts=0"]),
        (lambda: serving.reads_before(1), True, []),
        (lambda: serving.pull(CHILD, pulls[1]), False, []),
        (lambda: serving.weights_read(read, "w0", in_place=True), None,
         ["switch: Weights dtype=float32 in_place=True + 'w0'", "drop w0",
          "ReadWeights extent=1 step=0 version=0 attempt=1 parts=0"]),
        (serving.forget, None, []),
    )  # fmt: skip
    parts.outbox.attempt = 2
    old = do.ReadWeights(1, 0, 0, 1, (0,))
    parts.check((lambda: serving.weights_read(old, "w1", in_place=False), None, ["drop w1"]))


def test_the_weights_after_a_skipped_step_are_those_before_it() -> None:
    """Goal: what streamed ahead of a step that is skipped is void."""
    parts = Parts()
    serving = parts.serving
    step = parts.steps.at(0)
    step.written.update((0, 1))
    pulls = [parts.m(wire.Pull, index=extent, part=0, step=1) for extent in (0, 1)]
    read = do.ReadWeights(0, 1, 1, 1, (0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[0]), False,
         ["ReadWeights extent=0 step=1 version=1 attempt=1 parts=0"]),
        (lambda: serving.pull(CHILD, pulls[1]), False, []),
        (serving.was_skipped, None, []),
        (lambda: serving.weights_read(read, None, in_place=False), None, []),
    )  # fmt: skip
    step.verdict = parts.m(wire.Verdict, role=Role.NODE, applied=False, norms=(0.0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[0]), False,
         ["ReadWeights extent=0 step=1 attempt=1 parts=0"]),
    )  # fmt: skip


def test_who_has_weights_that_no_update_touches_is_sent_none() -> None:
    """Goal: a receipt, before anything is read; whoever does not have them has them read; and of a
    step that is skipped everybody does, as weights elsewhere are void."""
    parts = Parts()
    serving, step = parts.serving, parts.steps.at(0)
    step.unchanged.add(0)
    has = parts.m(wire.Pull, index=0, part=0, step=1, has=True)
    lacks = parts.m(wire.Pull, index=0, part=1, step=1)
    read = "ReadWeights extent=0 step=1 attempt=1 parts={}"
    parts.check(
        (lambda: serving.pull(CHILD, has), False,
         ["switch: Received step=1 verb=PULL"]),
        (lambda: serving.awaits(1, 0), False, []),
        (lambda: serving.pull(CHILD, lacks), False, [read.format(1)]),
        (lambda: serving.weights_read(do.ReadWeights(0, 1, None, 1, (1,)), None, in_place=0), None,
         []),
    )  # fmt: skip
    step.verdict = parts.m(wire.Verdict, role=Role.NODE, applied=False, norms=(0.0,))
    parts.check((lambda: serving.pull(CHILD, has), False, [read.format(0)]))


def test_in_place_a_page_is_overwritten_when_nobody_reads_it() -> None:
    """P8. Goal: an update waits for reads of the version that it overwrites, and none of them
    begins after it."""
    parts = Parts(update="at_step")
    parts.shard.is_in_place = True
    updates = Updates(
        parts.outbox, parts.shard, parts.steps, parts.budget, parts.serving, None, updates_max=2
    )
    pull, step = parts.m(wire.Pull, index=0, part=0), parts.steps.at(0)
    read = do.ReadWeights(0, 0, 0, 1, (0,))
    step.hyper, step.verdict = (
        b"",
        parts.m(wire.Verdict, role=Role.NODE, applied=True, norms=(1.0,)),
    )
    step.part(0, 0)
    step.ready.append(0)
    step.verdict = None
    parts.check(
        (lambda: parts.serving.pull(CHILD, pull), False,
         ["ReadWeights extent=0 step=0 version=0 attempt=1 parts=0"]),
    )  # fmt: skip
    step.verdict = parts.m(wire.Verdict, role=Role.NODE, applied=True, norms=(1.0,))
    parts.check(
        (lambda: updates.start(step), None, []),
        (lambda: parts.serving.pull(CHILD, pull), False, []),
        (lambda: parts.serving.weights_read(read, None, in_place=False), None, []),
    )
    updates.start(step)
    assert [line.split()[0] for line in parts.lines()] == ["Update"]


def test_in_place_no_reader_begins_while_pages_are_overwritten() -> None:
    """P8. Goal: a reader that asks then is answered when it asks again, after the decision."""
    core, prepare = loaded(Job(make_layout(units=1, frozen=False), world_size=1))
    (decide,) = core.prepared(prepare)
    core.decided(decide)
    core.shard.is_in_place = True
    verdict = said(wire.Verdict, applied=True, norms=(1.0,))
    opening = said(wire.Open, role=Role.READER, reader=7)
    core.steps.at(0).verdict = verdict
    assert core.received(0, "reader", opening, None, 0) == []
    core.steps.at(0).verdict = None
    assert core.received(0, "reader", opening, None, 0) == [do.PinVersion(7)]


def test_a_receipt_waits_for_room_or_for_its_page() -> None:
    """Goal: what waits is not spilled, and is answered in the order of arrival as room is made, or
    when its page has been updated; a smaller one does not overtake it, a new attempt answers none.
    """
    parts = Parts()
    budget = GradientBudget(parts.outbox, parts.children, bytes_max=100, raw_bytes_max=None)

    def owe(name: str, nbytes: int, extent: int) -> None:
        _, push = parts.push(extent)
        budget.add_or_owe(name, nbytes, parts.outbox.receipt(push, Verb.PUSH, RANKS))

    def answered(extent: int) -> str:
        return f"{CHILD}: Received index={extent} verb=PUSH contributors={RANKS}"

    parts.check(
        (lambda: owe("a", 80, 1), None, [answered(1)]),
        (lambda: owe("b", 60, 2), None, []),
        (lambda: owe("c", 10, 3), None, []),
        (lambda: owe("d", 50, 4), None, []),
        (lambda: [budget.owes(0, 0, extent) for extent in (1, 2, 3)], [False, True, True], []),
        (lambda: budget.release("c"), None, [answered(3), "drop c"]),
        (lambda: budget.release("a"), None, ["drop a", answered(2)]),
        (lambda: (budget.bytes_used, budget.owed_count, budget.spilled_count), (60, 3, 0), []),
        (budget.forget, None, []),
        (lambda: budget.release("d"), None, ["drop d"]),
        (lambda: budget.release("b"), None, ["drop b"]),
        (lambda: budget.bytes_used, 0, []),
    )  # fmt: skip


def test_a_node_that_is_to_count_and_lacks_pages_gives_up() -> None:
    """E8. Goal: a switch that takes it for whole is contradicted."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts, filling_of(parts, 2))
    joint.is_enlisted = True
    joint.adopt(adopt_of(parts, members=0b11))
    assert any("GiveUp" in line for line in parts.lines())


def test_a_page_that_is_to_come_holds_up_the_step() -> None:
    """E8. Goal: no version is prepared by a node that is being filled while a page of it is still
    to come or under way to the store."""
    parts = Parts(number=1, count=2)
    filling = filling_of(parts, 2)
    page = parts.m(wire.Page, index=1, part=0)
    received = "switch: Received index=1 verb=PAGE"
    parts.check(
        (lambda: filling.page(page, "page", parts.shard.stored_bytes(1)), None,
         ["FillPage chunk=1 payload=page"]),
        (lambda: (filling.has(1), filling.has_held), (False, False), []),
        (lambda: filling.page_filled(do.FillPage(1, "page")), None, [received]),
        (lambda: (filling.has(1), filling.has_held), (True, True), []),
    )  # fmt: skip


def test_a_page_is_copied_before_its_side_is_written_again() -> None:
    """P1. Goal: a copy of version t ends before the updates of step t + 1 begin."""
    parts = Parts(number=1, count=2)
    copy = parts.m(wire.Copy, index=1, part=0)
    action = do.CopyPage(1, 0)
    parts.check(
        (lambda: parts.serving.copy(parts.m(wire.Copy, index=0, part=0)), None, []),  # another's
        (lambda: parts.serving.copy(copy), None, ["CopyPage chunk=1 step=0"]),
        (lambda: parts.serving.copy(copy), None, []),
        (lambda: parts.serving.reads_before(1), True, []),
        (lambda: parts.serving.page_copied(action, "page"), None,
         ["switch: Page index=1 + 'page'", "drop page"]),
        (lambda: parts.serving.reads_before(1), False, []),
        (lambda: parts.serving.copy(copy), None, ["CopyPage chunk=1 step=0"]),
        (lambda: parts.serving.page_copied(action, None), None, []),
    )  # fmt: skip


@pytest.mark.parametrize(("keeps", "max_grad_norm"), [(False, None), (True, None), (False, 1.0)])
def test_no_receipt_waits_for_what_may_be_behind_its_gradient(
    keeps: bool, max_grad_norm: float | None
) -> None:
    """Goal: what ranks attach to the open step may come behind gradients of the next, in the window
    of the child: these are spilled, and their receipts do not wait for the open step to end. Nor do
    those of gradients that are kept until a verdict, by which they may be clipped."""
    parts = Parts(keeps=keeps, bytes_max=1, max_grad_norm=max_grad_norm)
    gathering = gathering_of(parts)
    for step in (0, 1):
        parts.steps.at(step).hyper = parts.job.hyper
    gathering.push(*parts.push(0, step=1), "g", parts.nbytes(0))
    lines = parts.lines()
    is_spilled = keeps or max_grad_norm is not None
    assert any("Received" in line for line in lines) == is_spilled
    assert any("Spill" in line for line in lines) == is_spilled


def test_a_store_is_emptied_when_nothing_reads_it() -> None:
    """E8. Goal: weights that are being read of a version are read to the end before its pages go.
    Method: the whole core of a node that counts, and is then to be filled."""
    job = Job(make_layout(units=1, frozen=False, optimizer_nodes=2), world_size=2)
    description = job.description.to_bytes()
    node = do.NodeNumber(number=1, count=2, replicas=2)
    core = NodeCore(job=JOB, incarnation=9, ranks=RANKS, node=node)
    core.store_opened(
        do.StoreFacts(description=description, generation=1, attempt=1, epoch=0, job=JOB, version=3)
    )
    core.received(0, CHILD, hello(job, RANKS, step=3, attempt=0, incarnation=30), description)
    of_three = {"step": 3, "epoch": 5, "incarnation": 30, "generation": 0}
    adopt = said(
        wire.Adopt, **of_three, attempt=2, members=0b11, contributors=RANKS, loaded=True,
        decided_attempt=1, text="t",
    )  # fmt: skip
    core.received(0, CHILD, adopt)
    pull = said(wire.Pull, **of_three, attempt=2, index=1)
    (read,) = (each for each in core.received(0, CHILD, pull) if isinstance(each, do.ReadWeights))
    found = core.received(0, CHILD, replace(adopt, attempt=3, filling=3))
    assert not any(isinstance(each, do.BeginFilling) for each in found)
    found = core.weights_read(read, None)
    assert any(isinstance(each, do.BeginFilling) for each in found)


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


def test_a_sheet_is_updated_when_all_its_pages_are_there() -> None:
    """E8. Goal: at a node that is filled, the pages of its last extent do not do."""
    parts = Parts(number=0, count=2, replicas=2)
    filling = Filling(parts.outbox, parts.children, parts.shard)
    parts.shard.layout = layout = make_layout(optimizer_nodes=2, sheets=True)
    filling.begin(1)
    sheet = layout.sheet(next(iter(layout.sheets)))
    assert len(sheet) == 2
    for extent in reversed(sheet):
        assert not any(map(filling.has, sheet))
        (chunk,) = layout.extents[extent].chunks
        filling.page_filled(do.FillPage(chunk, None))
    assert all(map(filling.has, sheet))

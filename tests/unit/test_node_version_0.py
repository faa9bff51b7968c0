"""What waits until the initial weights are decided: the real core, told by hand what its pipeline
has done."""

from __future__ import annotations

from typing import Any

from luwu.base.limits import PROTOCOL_VERSION
from luwu.protocol.actions import Drop, Send
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core.early import Early
from tests.simulate.job import JOB, Job, make_layout
from tests.unit.node_parts import CHILD, RANKS, Parts

STAMP = {
    "job": JOB, "epoch": 0, "step": 0, "attempt": 1, "role": Role.SWITCH, "rank": 0,
    "incarnation": 5, "generation": 1,
}  # fmt: skip


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
    hello = wire.Hello(
        **{**STAMP, "generation": 0}, protocol=PROTOCOL_VERSION, world_size=1, contributors=1,
        present=1, roll=0, description_hash=description.hash,
    )  # fmt: skip
    core.received(0, "child", hello, description.to_bytes())
    actions: list[Any] = []
    for chunk in job.layout.chunks:
        load = wire.Load(**STAMP, index=chunk.index, part=0)
        core.received(0, "child", load, object(), chunk.sum_bytes)
        actions = core.page_loaded(do.LoadPage(chunk.index, 1, None))
    (prepare,) = (each for each in actions if isinstance(each, do.Prepare))
    return core, prepare


def test_a_run_without_steps_ends_when_its_first_weights_are_decided() -> None:
    """I2. Goal: a child that loads weights and leaves at once loses nothing: the node goes on until
    version 0 is decided. Method: the child leaves while the version is being prepared."""
    core, prepare = loaded(Job(make_layout(units=1, frozen=False), world_size=1))

    core.received(0, "child", wire.Leave(**STAMP, contributors=1))

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
    push = wire.Push(
        **STAMP, index=0, part=0, contributors=1, absent=0, last=True, weight=1.0, raw=True,
        dtype="float32",
    )  # fmt: skip

    core.received(0, "child", wire.Begin(**STAMP, contributors=1), job.hyper)
    assert core.received(0, "child", push, "g0", 4 * chunk.elems) == []
    assert core.received(0, "child", push, "again", 4 * chunk.elems) == [Drop("again")]
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
        push = wire.Push(
            **STAMP, index=extent.index, part=0, contributors=1, absent=0, last=True, weight=1.0,
            raw=True, dtype="float32",
        )  # fmt: skip
        actions += core.received(0, "child", push, None, 0)
    commit = wire.Commit(
        **STAMP, contributors=1, parts=1, skip=False, held=0
    )  # fmt: skip
    actions += core.received(0, "child", commit, b"")
    assert not verdicts(actions)

    begin = wire.Begin(**STAMP, contributors=1)
    (verdict,) = verdicts(core.received(0, "child", begin, job.hyper))
    assert verdict.applied


def verdicts(actions: list[Any]) -> list[wire.Verdict]:
    sent = [each.message for each in actions if isinstance(each, Send)]
    return [message for message in sent if isinstance(message, wire.Verdict)]

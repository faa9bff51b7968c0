"""A node that is being filled, by its parts: events, their answers and their actions (E8)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from luwu.base.limits import PROTOCOL_VERSION
from luwu.protocol.epoch import Epoch
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core.gathering import Gathering
from switch_emu.node.core.results import Judgement
from tests.simulate.job import JOB, Job, make_layout
from tests.unit.node_parts import CHILD, RANKS, Parts
from tests.unit.test_node_parts import (
    adopt_of,
    filling_of,
    gathering_of,
    joint_of,
    taken,
    updates_of,
)


def page_of(parts: Parts, chunk: int = 0, **own: Any) -> tuple[wire.Page, str, int]:
    """The arguments of a page that comes from another node."""
    m = parts.m(wire.Page, index=chunk, part=0, **own)
    return m, f"page-{chunk}", parts.shard.stored_bytes(chunk)


def test_a_node_that_does_not_count_is_emptied_and_filled() -> None:
    """E8. Goal: it begins without a page of its own, as soon as nothing is under way to its store;
    it says that it has no state; a page is written once, of the open step alone."""
    parts = Parts(number=1, count=2)
    filling = filling_of(parts)
    joint = joint_of(parts, filling)
    adopt = adopt_of(parts, step=3, filling=2)
    begins = f"BeginFilling description={parts.description!r} version=3"
    parts.check(
        (lambda: joint.awaits_filling, False, []),
        (lambda: joint.adopt(adopt), True, []),
        (lambda: joint.awaits_filling, True, []),
        (joint.begin_filling, None, [begins]),
        (joint.begin_filling, None, []),
        (lambda: joint.awaits_filling, True, []),
    )
    facts = do.StoreFacts(
        description=parts.description, generation=1, attempt=1, epoch=0, job=JOB, version=3
    )
    parts.state.opened(facts)
    parts.check(
        (lambda: joint.opened(facts), adopt, []),
        (lambda: joint.taken_over(adopt), Epoch(5, 0b01, 30), []),
        (lambda: (filling.number, filling.is_whole), (2, False), []),
    )
    joint.hello(CHILD, parts.hello(incarnation=30), parts.description)
    assert "Standing members=1 is_prepared=False" in parts.lines()[-1].replace("loaded=False ", "")
    done = do.FillPage(1, "page-1")
    received = "switch: Received index=1 part=0 verb=PAGE contributors=0"
    parts.check(
        (lambda: filling.page(*page_of(parts, 1, step=2)), None, ["drop page-1"]),
        (lambda: filling.page(*page_of(parts, 0)), None, ["drop page-0"]),  # another's
        (lambda: filling.page(*page_of(parts, 1)), None, ["FillPage chunk=1 payload=page-1"]),
        (lambda: filling.page(*page_of(parts, 1)), None, ["drop page-1"]),
        (lambda: (filling.has(1), filling.has_held), (False, False), []),
        (lambda: filling.page_filled(done), None, [received]),
        (lambda: (filling.has(1), filling.has_held, filling.is_whole), (True, True, True), []),
        (lambda: filling.page(*page_of(parts, 1)), None, [received, "drop page-1"]),
    )  # fmt: skip


def test_a_node_that_is_to_count_and_lacks_pages_gives_up() -> None:
    """E8. Goal: a switch that takes it for whole is contradicted."""
    parts = Parts(number=1, count=2)
    joint = joint_of(parts, filling_of(parts, 2))
    joint.is_enlisted = True
    joint.adopt(adopt_of(parts, members=0b11))
    assert any("GiveUp" in line for line in parts.lines())


def test_an_update_waits_for_its_pages() -> None:
    """E8. Goal: a gradient that is there before the page is kept; others are updated meanwhile."""
    parts = Parts(number=1, count=2)
    filling, step = filling_of(parts, 2), parts.steps.at(0)
    updates = updates_of(parts, filling)
    taken(parts, 1)
    parts.shard.hold(1)
    parts.check((lambda: updates.start(step), None, []))
    filling.page_filled(do.FillPage(1, "page"))
    parts.lines()
    updates.start(step)
    (line,) = parts.lines()
    assert line.startswith("Update extent=1")


def test_a_verdict_that_skips_reaches_a_node_whose_sums_are_not_complete() -> None:
    """E8, I2. Goal: they never will be, as all others have theirs; its Commit may come later."""
    parts = Parts(number=1, count=2, replicas=2)
    filling = filling_of(parts, 2)
    joint, gathering = joint_of(parts, filling), gathering_of(parts, filling)
    adopt = adopt_of(parts, filling=2)
    assert joint.adopt(adopt) is adopt
    joint.taken_over(adopt)
    parts.outbox.attempt = 2
    skip = parts.m(wire.Verdict, attempt=3, applied=False, norms=(math.inf,))
    parts.lines()
    assert joint.verdict(skip) == Judgement(False, (math.inf,), 3)
    step = parts.steps.at(0)
    step.verdict = parts.children.outcomes.verdict = skip
    commit = parts.m(wire.Commit, contributors=RANKS, parts=1, skip=False, held=1)
    assert gathering.commit(CHILD, commit, parts.job.hyper)
    assert (step.parts, step.hyper, parts.shard.trainable) == (1, parts.job.hyper, (1,))


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
         ["switch: Page index=1 part=0 + page", "drop page"]),
        (lambda: parts.serving.reads_before(1), False, []),
        (lambda: parts.serving.copy(copy), None, ["CopyPage chunk=1 step=0"]),
        (lambda: parts.serving.page_copied(action, None), None, []),
    )  # fmt: skip


@pytest.mark.parametrize("keeps", [False, True])
def test_no_receipt_waits_for_what_may_be_behind_its_gradient(keeps: bool) -> None:
    """Goal: what ranks attach to the open step may come behind gradients of the next, in the window
    of the child: these are spilled, and their receipts do not wait for the open step to end."""
    parts = Parts(keeps=keeps, bytes_max=1)
    gathering = Gathering(
        parts.outbox, parts.children, parts.shard, parts.steps, parts.budget, parts.serving,
        filling_of(parts), owes=True,
    )  # fmt: skip
    parts.steps.at(0).hyper = parts.job.hyper
    gathering.push(*parts.push(0, step=1), "g", parts.nbytes(0))
    lines = parts.lines()
    assert any("Received" in line for line in lines) == keeps
    assert any("Spill" in line for line in lines) == keeps


def test_a_store_is_emptied_when_nothing_reads_it() -> None:
    """E8. Goal: weights that are being read of a version are read to the end before its pages go.
    Method: the whole core of a node that counts, and is then to be filled."""
    job = Job(make_layout(units=1, frozen=False, node_count=2), world_size=2)
    description = job.description.to_bytes()
    node = do.NodeNumber(number=1, count=2, replicas=2)
    core = NodeCore(job=JOB, incarnation=9, ranks=RANKS, node=node)
    core.store_opened(
        do.StoreFacts(description=description, generation=1, attempt=1, epoch=0, job=JOB, version=3)
    )
    stamp = {
        "job": JOB, "epoch": 0, "step": 3, "attempt": 0, "role": Role.SWITCH, "rank": 0,
        "incarnation": 30, "generation": 0,
    }  # fmt: skip
    hello = wire.Hello(
        **stamp, protocol=PROTOCOL_VERSION, world_size=2, contributors=RANKS, present=RANKS, roll=0,
        description_hash=job.description.hash,
    )  # fmt: skip
    core.received(0, CHILD, hello, description)
    values = {
        **stamp, "epoch": 5, "attempt": 2, "members": 0b11, "contributors": RANKS, "loaded": True,
        "text": "t", "filling": 0,
    }  # fmt: skip
    core.received(0, CHILD, wire.Adopt(**values))
    pull = wire.Pull(**{**stamp, "epoch": 5, "attempt": 2}, index=1, part=0)
    (read,) = (each for each in core.received(0, CHILD, pull) if isinstance(each, do.ReadWeights))
    found = core.received(0, CHILD, wire.Adopt(**{**values, "attempt": 3, "filling": 3}))
    assert not any(isinstance(each, do.BeginFilling) for each in found)
    found = core.weights_read(read, None)
    assert any(isinstance(each, do.BeginFilling) for each in found)

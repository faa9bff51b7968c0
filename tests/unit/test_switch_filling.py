"""The parts of the switch's core that fill a node, each built alone."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.base.outstanding import RetryPolicy
from luwu.layout import Share
from luwu.protocol.actions import End
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.kinds import Role
from luwu.wire.stored import stored_bytes
from switch_emu.switch.core.ballot import Ballot
from switch_emu.switch.core.filled_node import STEP_MAX_S, FilledNode
from switch_emu.switch.core.filling import PAGES_MAX, Filling
from switch_emu.switch.core.parents import Parents
from switch_emu.switch.core.refusals import Refusals
from switch_emu.switch.core.standings import Position, Standings
from tests.simulate.job import make_layout
from tests.unit.switch_parts import LEFT, line, message

S = 10**9
JOB = Description(layout=make_layout(node_count=2), optimizer="test")
CHUNKS = range(len(JOB.layout.chunks))


def outbox_of() -> Outbox:
    return Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=9)


def filled_node(outbox: Outbox, bytes_per_s: float) -> FilledNode:
    """Node 1 of 2, which hold all pages, from step 5 on."""
    return FilledNode(
        outbox, Share(JOB.layout, 1, 2), 3, first_step=5, job=JOB,
        bytes_per_s=bytes_per_s, since_ns=outbox.now_ns,
    )  # fmt: skip


def test_extents_count_as_fast_as_their_pages_may_be_copied() -> None:
    """E8. Goal: one at least, else as many as the time since the last step has room for; a long
    pause counts as a shorter one; what counts in a step stays so."""
    outbox, count = outbox_of(), len(JOB.layout.extents)
    nbytes = sum(stored_bytes(JOB, chunk) for chunk in CHUNKS)
    slow, fast = filled_node(outbox, nbytes / 100 / STEP_MAX_S), filled_node(outbox, nbytes)
    assert slow.held(4) == 0
    assert (slow.held(5), fast.held(5)) == (1, 1)
    outbox.now_ns += S // 2
    half = fast.held(6)
    assert 1 < half < count
    outbox.now_ns += 1000 * S
    assert (slow.held(6), fast.held(7)) == (2, count)
    assert (slow.held(5), slow.held(6), fast.held(6)) == (1, 2, half)
    assert not set(slow.held_chunks(6)) & set(slow.chunks[len(slow.held_chunks(6)) :])
    assert sorted(fast.held_chunks(7)) == list(CHUNKS)
    held = [each.index for each in JOB.layout.extents if slow.holds(each.index, 6)]
    assert len(held) == 2
    assert all(JOB.layout.extent_stripe(extent) == 1 for extent in held)  # its own stripe first


class Bench:
    """Two nodes; the second has come back empty."""

    def __init__(self, bytes_per_s: float = 1e12) -> None:
        self.outbox = outbox_of()
        parents = Parents(2, 2)
        parents.learn(JOB.layout)
        ballot = Ballot(2, 2)
        self.at = Standings(self.outbox, Children(self.outbox, [LEFT]), ballot, 2, None)
        self.at.now = Position(members=0b01, version=5)
        self.refusals = Refusals(self.outbox, parents)
        self.filling = Filling(
            self.outbox, parents, self.at, ballot, self.refusals, bytes_per_s, RetryPolicy()
        )
        parents.count_only(0b01)
        self.filling.waiting.add(1)
        self.at.nodes[1].is_away = False

    def lines(self) -> list[str]:
        return [line(each) for each in self.outbox.take()]

    def m(self, kind: type[Any], **values: Any) -> Any:
        return message(kind, role=Role.NODE, step=5, **values)


def test_pages_are_asked_for_a_few_at_a_time_and_again() -> None:
    """E8. Goal: each comes from a node that counts, and is asked for until the other has it."""
    bench = Bench()
    filling = bench.filling
    assert filling.choose(0b01, 2, 5, goes_on=True) == 0  # the job is not known
    filling.learn(JOB)
    assert filling.choose(0b01, 2, 5, goes_on=True) == 0b10
    bench.outbox.now_ns += S
    filling.opens(5, 0)
    first = bench.lines()
    assert len(first) == PAGES_MAX
    assert all(each.startswith("parent-0: Copy step=5") for each in first)
    bench.outbox.now_ns += 20 * S
    assert filling.tick() == PAGES_MAX
    assert bench.lines() == first
    page = bench.m(wire.Page, index=1)
    filling.page(0, page, "page")
    assert bench.lines() == ["parent-1: Page step=5 index=1 + 'page'", "drop page"]
    filling.received(bench.m(wire.Received, index=1, attempt=1))  # of a filling before
    assert bench.lines() == []
    filling.received(bench.m(wire.Received, index=1, attempt=2))
    (fifth,) = bench.lines()
    assert fifth.startswith("parent-0: Copy")
    assert fifth not in first
    filling.page(0, page, "again")
    assert bench.lines() == ["drop again"]
    filling.hurry()
    assert filling.tick() == PAGES_MAX


@pytest.mark.parametrize("opened_ago_s", [0, 1])
def test_the_first_step_copies_what_a_step_has_time_for(opened_ago_s: int) -> None:
    """E8. Goal: no step is lost at the beginning, where steps take long beside the filling: it may
    begin as a step is opened, or as one is over that followed on a short attempt."""
    nbytes = sum(stored_bytes(JOB, chunk) for chunk in CHUNKS)
    bench = Bench(bytes_per_s=nbytes / 2)
    filling = bench.filling
    filling.learn(JOB)
    for step in (3, 4):
        bench.outbox.now_ns += S if not opened_ago_s else S // 100
        filling.opens(step, 0)
    bench.outbox.now_ns += S * opened_ago_s
    filling.choose(0b01, 2, 5, goes_on=True)
    assert filling.node is not None
    copied = sum(stored_bytes(JOB, chunk) for chunk in filling.node.held_chunks(5))
    assert nbytes / 4 < copied <= nbytes / 2


def test_what_was_filled_counts_as_long_as_the_node_and_its_version_do() -> None:
    """E8. Goal: the same filling goes on in another attempt; of another version, or a node that was
    started again, a new one begins; a node that is gone is none."""
    bench = Bench()
    filling, known = bench.filling, bench.at.nodes[1]
    filling.learn(JOB)

    def number(attempt: int, *, goes_on: bool = True) -> int | None:
        filling.choose(0b01, attempt, 5, goes_on=goes_on)
        return None if filling.node is None else filling.node.filling

    assert number(2) == 2
    assert number(3) == 2
    assert number(4, goes_on=False) == 4
    known.standing = bench.m(wire.Standing)
    assert number(5) == 5
    known.standing, known.is_away = None, True
    assert number(6) is None


def test_a_refusal_says_what_to_do() -> None:
    """Goal: the node, why, and the way out."""
    bench = Bench()
    bench.refusals.leave_out(1, bench.at.now)
    (text,) = bench.lines()
    assert text.startswith("parent-1: Refuse")
    assert "step 5 and later): start it again to have it filled by the others" in text
    bench.refusals.refuse_all({0: 3, 1: -1})
    *refused, end = bench.outbox.take()
    assert len(refused) == 2
    assert isinstance(end, End)
    assert "node 0 at version 3, node 1 at no version" in end.text

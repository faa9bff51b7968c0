"""The lead of several optimizer nodes: nodes and switches that were started again, or answer late,
twice or not at all. Most was found by histories (`python -m tests.simulate --with LoseNode`)."""

from __future__ import annotations

import pytest

from luwu.protocol.epoch import UNKNOWN_EPOCHS
from luwu.wire import messages as wire
from tests.switch.test_lead import DIGEST, PATIENCE_NS, Bench, asked, starts

READY = {
    "attempt": 4, "loaded": True, "epoch": 2, "members": 7, "prepared_attempt": 4,
}  # fmt: skip
"""A node that is decided at version 0, and has version 1 prepared."""


def test_no_two_epochs_of_one_switch_have_one_number() -> None:
    """E3. Goal: a node that is lost again as soon as it is to count, which the others may have
    recorded: the epoch without it is a later one."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    found, version = bench.fill(), 1
    bench.outbox.now_ns += 10**9
    while not any("Adopt" in each for each in found):
        for chunk in asked(found):
            found = bench.copied(chunk, version)
        version += 1
        found = bench.decide(version)
    proposed = bench.lead.at.next
    assert proposed is not None
    assert (proposed.members, proposed.epoch) == (3, bench.lead.at.now.epoch + 1)
    bench.welcome(0, 4, step=version)
    bench.says(1, wire.Rejoin, incarnation=3)
    bench.lines()
    starts(bench.says(1, wire.Standing, incarnation=3), f"parent-0: Adopt step={version} members=1")
    assert bench.lead.at.next is not None
    assert bench.lead.at.next.epoch == proposed.epoch + 1


def test_what_a_lost_node_may_have_decided_alone_is_named() -> None:
    """E3, E6. Goal: of two nodes one came back empty, and the switch is another: nobody knows
    whether it had gone on alone, so the log says which steps are lost then. One that only missed
    the newest epoch is no such node."""
    newest = {"attempt": 3, "loaded": True, "epoch": 2, "members": 3, "step": 7}
    for other, is_named in (({}, True), ({**newest, "epoch": 1}, False)):
        bench = Bench()
        bench.greet()
        bench.says(0, wire.Standing, **newest)
        found = bench.says(1, wire.Standing, **other)
        assert ("without node 0 before, steps from 7 on are lost" in found[0]) == is_named


def test_a_node_that_was_given_up_is_not_followed() -> None:
    """E3. Goal: an operator went on without it, in an epoch beyond all that it may know, and its
    directory is found after all: though it is ahead, the job goes on from what the others have. If
    it comes first, it goes on alone until one of the others comes: the job ends then, and nothing
    of these is lost."""
    given_up = {"attempt": 9, "loaded": True, "epoch": 4, "members": 2, "step": 9}
    others = {"attempt": 5, "loaded": True, "epoch": 4 + UNKNOWN_EPOCHS, "members": 3, "step": 7}
    bench = Bench()
    bench.greet()
    bench.says(0, wire.Standing, **others)
    starts(bench.says(1, wire.Standing, **given_up), "parent-0: Adopt step=7 members=1")
    for has_begun in (False, True):
        bench = Bench(fill_rate_bytes_per_s=1e9)
        bench.greet()
        starts(bench.says(1, wire.Standing, **given_up), "parent-1: Adopt step=9 members=2")
        if has_begun:
            bench.welcome(1, 10, step=9)
        assert bench.says(0, wire.Standing, **others) == ["End E500"]
        assert bench.lead.at.nodes[0].standing is None


def test_of_two_epochs_with_one_number_the_members_of_both_must_have_answered() -> None:
    """E3. Goal: one of two switches proposed its epoch to a single node and was lost, and the other
    leads the rest, or what is left of it: a third switch does not go on without that."""
    for number in (0, 2):
        bench = Bench(3, 3)
        bench.greet()
        where = {"attempt": 3, "loaded": True, "epoch": 2}
        bench.says(number, wire.Standing, members=1 << number | 0b010, **where)
        bench.says(1, wire.Standing, members=0b111 & ~(1 << number), **where)
        bench.outbox.now_ns += PATIENCE_NS
        bench.lead.tick()
        assert not any("Adopt" in line for line in bench.lines())
        assert bench.says(2 - number, wire.Standing, members=0b111 & ~(1 << number), **where)


def test_what_is_proposed_goes_with_the_directories_that_know_of_it() -> None:
    """E3, E6. Goal: nodes that are asked to take an attempt over, and all come back with older
    directories, go on from these: none of them knows the newest epoch any more."""
    bench = Bench()
    bench.greet()
    for node, step, epoch in ((0, 6, 4), (1, 6, 4), (0, 3, 2), (1, 3, 2)):
        bench.reconnect(node)
        found = bench.says(node, wire.Standing, step=step, loaded=True, epoch=epoch, members=3)
    starts(found, "parent-0: Adopt step=3 members=3", "parent-1: Adopt step=3 members=3")


def test_what_is_said_twice_changes_nothing() -> None:
    """E5. Goal: a switch that has asked for a version as all have it prepared goes not back to the
    one before as an answer comes again: a node may have decided it. Method: the third node came
    back empty."""
    bench = Bench(3, 3)
    bench.greet()
    bench.says(2, wire.Standing)
    bench.says(0, wire.Standing, DIGEST * 3, **READY)
    found = bench.says(1, wire.Standing, DIGEST * 3, **READY)
    starts(found, "parent-0: Adopt step=1 members=3", "parent-1: Adopt step=1 members=3")
    assert bench.says(1, wire.Standing, DIGEST * 3, **READY) == []
    assert bench.says(2, wire.Standing) == []
    bench.welcome(0, 5, step=1)
    bench.welcome(1, 5, step=1)
    assert bench.lead.at.now.version.number == 1


def test_a_switch_that_began_goes_not_back_without_a_node() -> None:
    """E5. Goal: a node may have decided the proposed version, which all had prepared, when
    another is lost: the rest goes on from it."""
    bench = Bench(3, 3)
    bench.greet()
    for node in range(3):
        bench.says(node, wire.Standing, DIGEST * 3, **READY)
    found = bench.lose(1)
    starts(found, "parent-0: Adopt step=1 members=5", "parent-2: Adopt step=1 members=5")


def test_a_node_that_came_back_empty_does_not_begin_again_alone() -> None:
    """E6. Goal: of two nodes one is lost with its directory, while the other is away for too long:
    the job waits for the one that has the state, and goes on with it."""
    bench = Bench()
    bench.join(version=4)
    bench.lead.lost(1)
    bench.says(0, wire.Rejoin, incarnation=2)
    bench.lines()
    bench.says(0, wire.Standing, incarnation=2)
    bench.outbox.now_ns += PATIENCE_NS
    bench.lead.tick()
    assert not any("Adopt" in each or "Refuse" in each for each in bench.lines())
    assert "node" in bench.lead.waits_for()
    bench.reconnect(1, ends=False)
    found = bench.says(1, wire.Standing, step=4, loaded=True, attempt=1, epoch=1, members=3)
    starts(found, "parent-1: Adopt step=4 members=2")


def test_a_node_that_is_about_to_decide_is_not_older() -> None:
    """E2. Goal: one that has prepared what the others of its epoch have decided can go on with it,
    whatever happens to a node that is being filled meanwhile. Method: node 1 was lost and waits to
    be filled; node 0 is connected again, and has not said where it stands, as it turns out to have
    prepared version 1, which is decided with that."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    bench.join()
    bench.lose(1)
    bench.welcome(0, 2)
    bench.lead.reconnected(1)
    bench.says(1, wire.Standing, incarnation=2)
    bench.measure(0, attempt=2)
    bench.lead.reconnected(0)
    bench.prepare(0, attempt=2)
    assert bench.lead.at.now.version.number == 1
    bench.welcome(1, 3, incarnation=2, step=1)
    ready = {**READY, "attempt": 2, "prepared_attempt": 2, "members": 1}
    starts(bench.says(0, wire.Standing, DIGEST * 2, **ready), "parent-0: Adopt step=1 members=1")
    bench.lead.lost(1)
    found = bench.lines()
    assert not any("Refuse" in each for each in found)
    starts([each for each in found if "Adopt" in each], "parent-0: Adopt step=1 members=1")


MADE_AGAIN = {"attempt": 1, "loaded": True, "prepared_attempt": 1, "epoch": 1, "members": 3}
"""A node of an older copy: it is decided at version 0, and has version 1 prepared under attempt 1,
which was given up."""


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_version_that_was_made_again_is_another(is_announced: bool) -> None:
    """E2. Goal: version 1 is decided under attempt 2, and both nodes come back with older copies,
    one of which has it prepared under attempt 1: nobody decides that. The step is made again, or if
    workers know of it, both are refused."""
    bench = Bench()
    bench.join()
    bench.says(0, wire.Rejoin, incarnation=2)
    for node in (0, 1):
        bench.says(node, wire.Standing, attempt=1, loaded=True, incarnation=2)
    for node in (0, 1):
        bench.welcome(node, 2, incarnation=2)
    for node in (0, 1):
        bench.says(node, wire.Prepared, DIGEST * 2, attempt=2, version=1, incarnation=2)
    assert bench.lead.at.now.version == (1, 2)
    bench.outbox.step = int(is_announced)
    bench.reconnect(0, 1)
    bench.says(1, wire.Standing, DIGEST * 2, **MADE_AGAIN, incarnation=3)
    where = {**MADE_AGAIN, "attempt": 2, "prepared_attempt": 0, "incarnation": 3}
    found = bench.says(0, wire.Standing, **where)
    if is_announced:
        starts(found, "parent-0: Refuse", "parent-1: Refuse", "core: Refuse")
    else:
        starts(found, "parent-0: Adopt members=3", "parent-1: Adopt members=3")


def test_less_than_half_of_the_nodes_do_not_go_on_as_the_others_come_back_older() -> None:
    """E3. Goal: one of three nodes has version 1, the others came back with older copies. If it is
    only prepared there, and nobody was told of it, the step is made again by all; one that has
    decided it, or was not lost, is no state together with the others, and the job ends."""
    older = {"loaded": True, "attempt": 1, "epoch": 1, "members": 7, "incarnation": 2}
    known = {"step": 1, "decided_attempt": 1}
    for first, expected in (
        ({"prepared_attempt": 1}, [f"parent-{node}: Adopt members=7" for node in range(3)]),
        (known, [*(f"parent-{node}: Refuse" for node in range(3)), "End E500"]),
        (None, [*(f"parent-{node}: Refuse" for node in range(3)), "End E500"]),
    ):
        bench = Bench(3, 3)
        bench.join()
        for node in range(3):
            bench.prepare(node)
        bench.reconnect(*range(first is None, 3))
        if first is not None:
            bench.says(0, wire.Standing, DIGEST * 3, **older, **first)
        bench.says(1, wire.Standing, **older)
        starts(bench.says(2, wire.Standing, **older), *expected)


def test_a_node_that_can_decide_is_gone_on_with_though_the_other_is_empty() -> None:
    """E2, E6. Goal: both of two nodes were started again, one with its directory lost: the job goes
    on from the version that the other has prepared, which was decided."""
    bench = Bench()
    bench.greet()
    for node in (0, 1):
        bench.says(node, wire.Standing)
    for node in (0, 1):
        bench.welcome(node, 1)
    for node in (0, 1):
        bench.prepare(node, version=0)
    assert bench.lead.at.now.version.number == 0
    for node in (0, 1):
        bench.says(node, wire.Rejoin, incarnation=2)
    ready = {"attempt": 1, "epoch": 1, "members": 3, "prepared_attempt": 1}
    bench.says(1, wire.Standing, DIGEST * 2, incarnation=2, **ready)
    bench.lines()
    found = bench.says(0, wire.Standing, incarnation=2)
    starts(found, "parent-1: Adopt members=2")
    assert "loaded=True" in found[0]


def test_a_node_that_has_been_filled_is_so_whatever_it_says_of_before() -> None:
    """E8. Goal: until it has taken the next epoch over, it says that it has nothing, also when only
    its connection was lost: both go on from the version with which it was whole."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    found = bench.fill()
    bench.outbox.now_ns += 10**9
    for chunk in asked(found):
        bench.copied(chunk)
    found = bench.decide(2)
    while chunks := asked(found):
        found = [each for chunk in chunks for each in bench.copied(chunk, 2)]
    bench.measure(0, attempt=3, step=2)
    bench.says(1, wire.Prepared, DIGEST * 2, attempt=3, version=3, incarnation=2)
    for node in (0, 1):
        bench.lead.reconnected(node)
    bench.prepare(0, attempt=3, version=3)
    assert bench.lead.at.next is not None
    assert (bench.lead.at.next.version.number, bench.lead.at.next.members) == (3, 3)
    bench.lines()
    where = {"attempt": 3, "epoch": 2, "members": 1, "step": 2}
    found = bench.says(1, wire.Standing, incarnation=2, **where)
    starts(found, "parent-1: Adopt step=3 members=3")
    ready = {**where, "loaded": True, "prepared_attempt": 3}
    starts(bench.says(0, wire.Standing, DIGEST * 2, **ready), "parent-0: Adopt step=3 members=3")

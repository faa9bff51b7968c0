"""The lead of several optimizer nodes: epochs, and nodes or switches that were started again."""

from __future__ import annotations

from luwu.protocol.epoch import UNKNOWN_EPOCHS
from luwu.wire import messages as wire
from tests.switch.test_lead import PATIENCE_NS, Bench, asked, starts


def test_a_job_that_may_make_lost_steps_again_is_not_refused_if_a_node_is_lost_meanwhile() -> None:
    """Goal: all nodes came back older, which the operator allows, and one is lost before the epoch
    counts: the others, which have recorded it, go on. Method: steps 3 and 4 are lost."""
    bench = Bench(3, 3)
    bench.join(version=5)
    bench.outbox.step = 5
    for node in range(3):
        bench.says(node, wire.Rejoin, incarnation=2)
    where = {"attempt": 1, "step": 3, "loaded": True, "epoch": 1, "members": 7, "redoes": True}
    for node in range(3):
        found = bench.says(node, wire.Standing, incarnation=2, **where)
    starts(found, *(f"parent-{node}: Adopt step=3" for node in range(3)))
    for node in range(2):
        bench.welcome(node, 2, step=3, generation=1, redoes=True, incarnation=2)
    starts(bench.lose(2), *(f"parent-{node}: Adopt step=3 members=3" for node in range(2)))


def test_a_start_that_was_heard_of_too_early_is_a_start_all_the_same() -> None:
    """E4. Goal: where a node stands is told before its connection is there: what counts is that it
    was started again, and has lost what it knew of the attempt."""
    bench = Bench()
    bench.join()
    bench.lead.lost(1)
    where = {"attempt": 1, "loaded": True, "epoch": 1, "members": 3, "incarnation": 2}
    bench.lines()
    assert bench.says(1, wire.Standing, **where) == []
    bench.reconnect(1, ends=False)
    starts(bench.says(1, wire.Standing, **where), "parent-0: Adopt", "parent-1: Adopt")


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

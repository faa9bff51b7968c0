"""Statements of several nodes about a version, and where nodes stand: each part alone."""

from __future__ import annotations

import math

import pytest

from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from switch_emu.switch.core.ballot import DIGEST_BYTES, Ballot
from switch_emu.switch.core.standings import Standings
from tests.unit.switch_parts import LEFT, message

ONE, TWO = b"1" * DIGEST_BYTES, b"2" * DIGEST_BYTES


@pytest.mark.parametrize("members", [0b111, 0b110, 0b011])
def test_each_stripe_counts_once_in_the_norm(members: int) -> None:
    """E4. Goal: of three nodes with two copies, whichever counts. Stripe s has the square s + 1."""
    ballot = Ballot(3, 2)
    ballot.members = members
    for node in range(3):
        if members >> node & 1:
            assert ballot.norms(2.0, ()) is None
            ballot.measured(node, [{(2.0, 1.0): [float((node - i) % 3 + 1)]} for i in range(2)])
    assert ballot.norms(2.0, ()) == (math.sqrt(1 + 2 + 3),)


def test_the_odd_one_of_three_and_the_one_of_two_that_changes() -> None:
    """E7. Goal: who is wrong, where that can be known."""
    ballot = Ballot(3, 3)
    for node, digest in ((0, ONE), (1, TWO), (2, ONE)):
        ballot.prepared(node, ONE + digest + ONE)
    found = ballot.differing_pages()
    assert found is not None
    assert str(found) == "pages of stripe 0 differ between nodes 0 and 1 and 2"
    assert found.odd == 0b010

    first, second = Ballot(2, 2), Ballot(2, 2)
    for ballot, other in ((first, TWO), (second, b"3" * DIGEST_BYTES)):
        ballot.prepared(0, ONE * 2)
        ballot.prepared(1, other * 2)
    before, after = first.differing_pages(), second.differing_pages()
    assert before is not None
    assert after is not None
    assert (before.odd, after.changed(before), before.changed(before)) == (0, 0b10, 0)


def test_a_node_is_lost_when_its_connection_is_gone_for_long() -> None:
    """E4. Goal: one that is merely asked, or was started again, is not."""
    outbox = Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=1)
    at = Standings(outbox, Children(outbox, [LEFT]), Ballot(2, 2), 2, patience_ns=10)
    at.away(0)
    at.nodes[1].absent_ns = 5
    assert (at.lost, at.next_lost_ns()) == (0, 15)
    outbox.now_ns = 15
    assert (at.lost, at.next_lost_ns()) == (0b10, None)


def test_where_nodes_stand() -> None:
    """E5. Goal: a version that is prepared can be decided; and is, if all have it so."""
    outbox = Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=1)
    at = Standings(outbox, Children(outbox, [LEFT]), Ballot(2, 1), 2, patience_ns=None)
    ready = {"loaded": True, "is_prepared": True, "prepared_attempt": 4, "attempt": 4}
    at.nodes[0].standing = message(wire.Standing, step=3, **ready)
    at.nodes[1].standing = message(wire.Standing, step=4, loaded=True, attempt=4)
    assert [at.version_of(node) for node in range(2)] == [3, 4]
    assert (at.are_at(0b11, 4), at.are_at(0b11, 3)) == (True, False)
    assert not at.finishes(0b11, 3)
    at.nodes[1].standing = message(wire.Standing, step=3, **ready)
    assert at.finishes(0b11, 3)

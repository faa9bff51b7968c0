"""A switch between children and a parent that agree on an extent, with messages made by hand."""

from __future__ import annotations

from typing import Any

from luwu.base.limits import PROTOCOL_VERSION
from luwu.protocol.actions import PARENT, Send
from luwu.wire.description import Description
from luwu.wire.kinds import Role
from luwu.wire.messages import (
    Agreed,
    Cancel,
    Hello,
    Message,
    Propose,
    Refuse,
    Welcome,
)
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.agreement import Agreement
from tests.simulate.job import make_layout
from tests.unit.switch_parts import Handed, message

STAMP: dict[str, Any] = {"job": 1, "epoch": 0, "step": 0, "attempt": 0, "generation": 0}
CHILDREN = {"left": 0b0011, "right": 0b0100}
"""Another switch, which speaks for two ranks, and a worker."""
PLACE = {"part": 0, "index": 2}


def described(aggregate: str) -> Description:
    return Description(layout=make_layout(), optimizer="test").aggregated_by(aggregate)


def hello(name: str, aggregate: str) -> tuple[Hello, bytes]:
    job = described(aggregate)
    message = Hello(
        **child(name), protocol=PROTOCOL_VERSION, world_size=3, contributors=CHILDREN[name],
        present=CHILDREN[name], roll=0,
        description_hash=job.hash,
    )  # fmt: skip
    return message, job.to_bytes()


def child(name: str) -> dict[str, Any]:
    return {**STAMP, "role": Role.WORKER, "rank": 0, "incarnation": 7}


def parent() -> dict[str, Any]:
    return {**STAMP, "role": Role.NODE, "rank": 0, "incarnation": 9}


def said(actions: list[Any], kind: type[Message]) -> list[tuple[tuple[str, ...], Any, Any]]:
    """Messages of a kind: to whom, what, with which payload."""
    sends = [each for each in actions if isinstance(each, Send)]
    return [
        (each.peers, each.message, each.payload) for each in sends if type(each.message) is kind
    ]


def joined(aggregate: str) -> SwitchCore:
    core = SwitchCore(job=1, incarnation=1, children=list(CHILDREN.values()))
    for name in CHILDREN:
        core.received(0, name, *hello(name, aggregate))
    core.received(
        0, PARENT, Welcome(**parent(), loaded=True, push_window_bytes=2**20, contributors=0b111)
    )
    assert core.is_joined
    return core


def propose(core: SwitchCore, name: str, statement: bytes) -> list[Any]:
    message = Propose(**child(name), **PLACE, contributors=CHILDREN[name])
    return core.received(1, name, message, statement)


def test_statements_are_folded_and_the_answer_goes_to_all() -> None:
    """Goal: one Propose goes up when all children have said theirs, the largest of each block;
    what the parent answers is handed to all, and again to whoever asks again."""
    core = joined("shared-exponent")
    assert not said(propose(core, "right", bytes([3, 200])), Propose)
    assert not said(propose(core, "right", bytes([3, 200])), Propose)  # a repetition is not a child
    ((peers, message, folded),) = said(propose(core, "left", bytes([9, 100])), Propose)
    assert (peers, message.contributors, message.index) == ((PARENT,), 0b111, 2)
    assert folded == bytes([9, 200])
    answer = Agreed(**parent(), **PLACE)
    ((peers, _, agreed),) = said(core.received(2, PARENT, answer, bytes([9, 210])), Agreed)
    assert (set(peers), agreed) == ({"left", "right"}, bytes([9, 210]))
    ((peers, _, agreed),) = said(propose(core, "left", bytes([9, 100])), Agreed)
    assert (peers, agreed) == (("left",), bytes([9, 210]))


def test_a_child_without_a_gradient_leaves_the_others_alone() -> None:
    """Goal: empty statements count as said, and are no zeros; if all are empty, so is the fold."""
    core = joined("shared-exponent")
    propose(core, "left", b"")
    ((_, _, folded),) = said(propose(core, "right", bytes([5, 6])), Propose)
    assert folded == bytes([5, 6])
    core = joined("shared-exponent")
    propose(core, "left", b"")
    ((_, _, folded),) = said(propose(core, "right", b""), Propose)
    assert folded == b""


def test_statements_that_do_not_fit_end_the_attempt() -> None:
    """Goal: children that measure different extents are not folded, and the reason is said."""
    core = joined("shared-exponent")
    propose(core, "left", bytes([1, 2]))
    actions = propose(core, "right", bytes([1, 2, 3]))
    assert not said(actions, Propose)
    ((_, cancel, _),) = said(actions, Cancel)
    assert "extent 2" in cancel.text


def test_a_switch_that_lacks_the_aggregator_says_so() -> None:
    """Goal: a package that is not installed on the switch's host is named to the child."""
    core = SwitchCore(job=1, incarnation=1, children=list(CHILDREN.values()))
    ((peers, refusal, _),) = said(core.received(0, "left", *hello("left", "unheard-of")), Refuse)
    assert peers == ("left",)
    assert "the switch cannot add: aggregate: 'unheard-of'" in refusal.text


def test_the_part_alone() -> None:
    """Goal: what goes up and what comes back; of a step that is too far ahead nothing is taken."""
    handed = Handed()
    handed.children.members.description = described("shared-exponent").to_bytes()
    part = Agreement(handed.outbox, handed.children, handed.uplink, handed.attempts)
    part.learn("left")
    propose = message(Propose, index=2)
    low, high = bytes([1, 9]), bytes([5, 6])
    handed.play(
        part,
        [
            ("propose", (handed.left, message(Propose, step=2), low), []),
            ("propose", (handed.left, propose, low), []),
            ("propose", (handed.right, propose, high),
             [f"parent: Propose index=2 contributors=7 + {bytes([5, 9])!r}"]),
            ("agreed", (message(Agreed, index=2), high),
             [f"left,right: Agreed index=2 + {high!r}"]),
            ("propose", (handed.left, propose, low), [f"left: Agreed index=2 + {high!r}"]),
        ],
    )  # fmt: skip

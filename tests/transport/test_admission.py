"""What a key allows: roles, and the rank that a worker claims when it joins."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.base.keys import Identity
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from switch_emu.process.admission import Admission, RateLimit
from tests.helpers.switch_parts import message

WORKER_ROLES = (Role.WORKER, Role.READER)


def said(kind: type[wire.Message], **given: Any) -> Any:
    """A message of rank 0, where it says whose it is; with these fields."""
    own = {"contributors": 1} if "contributors" in kind.__dataclass_fields__ else {}
    return message(kind, **(own | {"incarnation": 5} | given))


def hello(rank: int, incarnation: int = 5, **fields: Any) -> wire.Hello:
    """A worker's Hello."""
    given = {"rank": rank, "contributors": 1 << rank, "incarnation": incarnation}
    return said(wire.Hello, **(given | fields))


@pytest.fixture
def admission() -> Admission:
    """Two workers are connected, and a third key; the first has joined as rank 0."""
    made = Admission()
    for number, name in enumerate(("a", "b", "spare")):
        made.up(f"p-{number}", Identity(name, "worker"))
    join(made, "p-0", hello(0))
    return made


def join(admission: Admission, peer: str, greeting: wire.Hello) -> None:
    assert admission.fault(peer, greeting) == ""
    admission.joined(peer, greeting)


def test_who_has_no_key_is_not_judged() -> None:
    """Goal: Unix sockets and shared memory are as they were."""
    admission = Admission()
    admission.up("p-0", None)
    for kind in wire.MESSAGE_TYPES:
        assert admission.fault("p-0", said(kind, role=Role.NODE)) == ""
    admission.joined("p-0", hello(0))
    assert admission.has_claimed("p-0")


@pytest.mark.parametrize("kind", wire.MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("key", "may_be"),
    [
        ("worker", WORKER_ROLES),
        ("reader", (Role.READER,)),
        ("switch", (Role.SWITCH, Role.READER)),
        ("node", (Role.NODE,)),
    ],
)
def test_a_key_speaks_for_its_role(
    kind: type[wire.Message], key: str, may_be: tuple[Role, ...]
) -> None:
    """Goal: every kind of message as every role: only the key's own; and a reader only reads."""
    admission = Admission()
    admission.up("p-0", Identity("x", key))
    is_request = issubclass(kind, wire.Open | wire.Read | wire.Shut)
    for role in Role:
        is_allowed = role in may_be and (role is Role.READER) == is_request
        fault = admission.fault("p-0", said(kind, role=role))
        assert (fault == "") == is_allowed, (role, fault)


@pytest.mark.feature("claiming the rank of another key")
def test_a_rank_is_its_holders_while_it_lives(admission: Admission) -> None:
    """Goal: another key cannot have it, however late its start; once the connection is gone it can,
    for launchers give ranks anew."""
    fault = admission.fault("p-2", hello(0, incarnation=99))
    assert (
        fault == "ranks 0 are those of 'a', which is connected; the key of 'spare' cannot have them"
    )
    admission.down("p-0")
    join(admission, "p-2", hello(0, incarnation=99))
    admission.up("p-3", Identity("a", "worker"))
    assert "are those of 'spare'" in admission.fault("p-3", hello(0, incarnation=100))


def test_a_later_start_of_the_same_key_replaces_it(admission: Admission) -> None:
    admission.up("p-3", Identity("a", "worker"))
    join(admission, "p-3", hello(0, incarnation=6))
    assert admission.has_claimed("p-3")
    assert not admission.has_claimed("p-0")
    admission.down("p-0")
    assert "are those of 'a'" in admission.fault("p-2", hello(0, incarnation=7))


def test_one_start_has_one_rank(admission: Admission) -> None:
    """Goal: a key does not collect ranks; started again it may have another."""
    fault = admission.fault("p-0", hello(1))
    assert fault == (
        "the key of 'a' has claimed ranks 0, and claims 1 without a restart; "
        "give each worker its own key"
    )
    admission.up("p-3", Identity("a", "worker"))
    join(admission, "p-3", hello(1, incarnation=6))
    join(admission, "p-1", hello(0, incarnation=7))


def test_what_was_refused_claims_nothing(admission: Admission) -> None:
    """Goal: a Hello that the core refuses does not keep the right one out. Method: it is judged,
    and `joined` is not called."""
    assert admission.fault("p-1", hello(1)) == ""
    assert admission.fault("p-2", hello(1)) == ""


def test_a_workers_key_is_one_worker(admission: Admission) -> None:
    assert "is that of one worker" in admission.fault("p-1", hello(1, contributors=0b110))
    assert "is that of one worker" in admission.fault("p-1", hello(1, contributors=0b100))


@pytest.mark.parametrize("kind", wire.MESSAGE_TYPES, ids=lambda kind: kind.__name__)
def test_no_message_speaks_for_another_rank(admission: Admission, kind: type[wire.Message]) -> None:
    """Goal: rank and contributors of every kind are those that were claimed."""
    if issubclass(kind, wire.Open | wire.Read | wire.Shut | wire.Hello):
        return  # of readers, and where ranks are claimed
    own = {"rank": 0, "contributors": 1} if "contributors" in kind.__dataclass_fields__ else {}
    assert admission.fault("p-0", said(kind, **own)) == ""
    assert f"sent {kind.__name__} for 1" in admission.fault("p-0", said(kind, rank=1))
    if own:
        fault = admission.fault("p-0", said(kind, contributors=0b11))
        assert fault == f"'a' has claimed ranks 0, and sent {kind.__name__} for 1"


def test_nobody_declares_another_rank_lost(admission: Admission) -> None:
    assert admission.fault("p-0", said(wire.Cancel, lost=0b01)) == ""
    fault = admission.fault("p-0", said(wire.Cancel, lost=0b10))
    assert fault == "'a' has claimed ranks 0, and sent Cancel for 1"


def test_a_switch_speaks_for_those_below_it() -> None:
    admission = Admission()
    admission.up("p-0", Identity("s", "switch"))
    greeting = hello(0, role=Role.SWITCH, contributors=0b110)
    join(admission, "p-0", greeting)
    assert admission.fault("p-0", said(wire.Push, role=Role.SWITCH, contributors=0b100)) == ""
    assert admission.fault("p-0", said(wire.Push, role=Role.SWITCH, contributors=0b001)) != ""


def test_a_flood_is_told_of_in_part() -> None:
    """Goal: what was left out is counted, and the next window speaks again."""
    limit = RateLimit(most=2, window_ns=10)
    assert [limit.allow(100)[0] for _ in range(5)] == [True, True, False, False, False]
    assert limit.allow(110) == (True, 3)
    assert limit.allow(120) == (True, 0)

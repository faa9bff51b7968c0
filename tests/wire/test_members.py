"""Who is a child: every rank once, one job, later starts replace earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luwu.base.limits import CHUNK_BYTES_STEP, PROTOCOL_VERSION, TEXT_CHARS_MAX, WORLD_SIZE_MAX
from luwu.launch.entry import count_start
from luwu.launch.processes.run_directory import RunDirectory
from luwu.layout import Layout, Parameter, Unit
from luwu.protocol.children import (
    RANKS_SHOWN_MAX,
    Members,
    RefusedError,
    SupersededError,
    ranks_text,
)
from luwu.wire.description import Description, description_hash
from luwu.wire.messages import Hello
from tests.helpers.switch_parts import hello as greeting

JOB = 77


def description(elems: int = 100) -> bytes:
    layout = Layout(
        parameters=(Parameter(name="w", shape=(elems,)),),
        units=(Unit(name="u", parameters=(0,)),),
        chunk_bytes=CHUNK_BYTES_STEP,
    )
    return Description(layout=layout, optimizer="sgd").to_bytes()


def hello(rank: int, encoded: bytes | None = None, **changes: Any) -> Hello:
    own = {
        "job": JOB, "rank": rank, "incarnation": 5, "world_size": 2,
        "description_hash": description_hash(encoded or description()),
    }  # fmt: skip
    said: Hello = greeting(1 << rank, **(own | changes))
    return said


def two() -> Members:
    return Members(job=JOB, children=[0b10, 0b01])


def refusal(members: Members, said: Hello, encoded: bytes | None = None) -> str:
    before = (members.peers, members.complete, members.first)
    with pytest.raises(RefusedError) as caught:
        members.join("stranger", said, description() if encoded is None else encoded)
    assert (members.peers, members.complete, members.first) == before
    assert members.of("stranger", said.incarnation) is None
    text = str(caught.value)
    assert len(text) <= TEXT_CHARS_MAX
    return text


def test_two_children_join() -> None:
    """Goal: complete when each rank has said Hello; peers in rank order, not in that of arrival."""
    members = two()
    assert members.children == (0b01, 0b10)
    assert members.ranks == 0b11
    assert members.missing() == "0, 1"
    assert not members.join("late", hello(1), description())
    assert (members.complete, members.missing()) == (False, "0")
    assert not members.join("early", hello(0), description())
    assert members.complete
    assert members.peers == ("early", "late")
    assert members.first == hello(1)
    assert members.description == description()


@pytest.mark.parametrize(
    ("peer", "incarnation", "is_later"), [("a", 5, False), ("a2", 5, False), ("b", 6, True)]
)
def test_a_child_that_comes_again(peer: str, incarnation: int, is_later: bool) -> None:
    """I1. Goal: Hello is repeated until it is answered; a child that connects again is the same
    under another name, and the old is void; a later start replaces it, and True tells the core
    that what the former one pushed must be given up."""
    members = two()
    assert members.join("a", hello(0), description()) is False
    again = hello(0, incarnation=incarnation)
    assert members.join(peer, again, description()) is is_later
    assert (members.peers, members.complete) == ((peer,), False)
    for each in ("a", "a2", "b"):
        for number in (5, 6):  # the incarnation counts, not the connection alone
            is_it = (each, number) == (peer, incarnation)
            assert (members.of(each, number) is not None) is is_it


def test_an_earlier_start_is_a_zombie() -> None:
    """Goal: a process that was thought dead cannot take its place back."""
    members = two()
    members.join("a", hello(0), description())
    assert "a later start of ranks 0 has joined" in refusal(members, hello(0, incarnation=4))
    with pytest.raises(SupersededError):
        members.join("stranger", hello(0, incarnation=4), description())
    assert members.of("a", 5) is not None


def test_leaving() -> None:
    """Goal: all have left only when all were there; a new start is back."""
    members = two()
    members.join("a", hello(0), description())
    member = members.of("a", 5)
    assert member is not None
    member.left = True
    assert not members.all_left
    members.join("b", hello(1), description())
    assert not members.all_left
    other = members.of("b", 5)
    assert other is not None
    other.left = True
    assert members.all_left
    members.join("c", hello(0, incarnation=6), description())
    assert not members.all_left


def test_missing_among() -> None:
    """I6. Goal: reports name the ranks that are late."""
    assert two().missing([0b01]) == "1"
    assert two().missing([]) == "0, 1"
    assert two().missing([0b01, 0b10]) == ""


@pytest.mark.parametrize("children", [[0b01, 0b11], [1, 1], [0], [1, 0]])
def test_children_must_be_disjoint(children: list[int]) -> None:
    """I1. Goal: no rank is expected from two children, and each child speaks for one at least."""
    with pytest.raises(ValueError, match="disjoint"):
        Members(job=JOB, children=children)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "install the same luwu"),
        ({"job": JOB + 1}, "you belong to another run"),
        ({"contributors": 0b100}, "you serve ranks 2, expected is one child each for ranks 0"),
        ({"contributors": 0b11}, "you serve ranks 0, 1"),
        ({"contributors": 0}, "you serve ranks"),
        ({"description_hash": "0" * 64}, "does not have the hash you state"),
    ],
)
def test_strangers_are_refused(changes: dict[str, Any], text: str) -> None:
    """I6. Goal: each reason is told, and our state is untouched."""
    assert text in refusal(two(), hello(0, **changes))


def test_children_must_train_the_same() -> None:
    """I6. Goal: the second child that differs is told where, and both are named."""
    members = two()
    members.join("a", hello(0), description())
    assert "world size is 3, that of the others is 2" in refusal(members, hello(1, world_size=3))
    other = description(101)
    text = refusal(members, hello(1, other), other)
    assert "ranks 0, 1 do not train the same" in text
    assert '["w", [101], "float32", "float32", true, 0]' in text


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"[]", b"[" * 100_000, b"\xff"])
def test_a_description_of_garbage(garbage: bytes) -> None:
    """I6. Goal: a peer that states the right hash of nonsense is refused like any other, whether
    it comes second or first."""
    members = two()
    members.join("a", hello(0), description())
    stated = description_hash(garbage)
    text = refusal(members, hello(1, description_hash=stated), garbage)
    assert "do not train the same" in text
    members = two()
    members.join("a", hello(0, description_hash=stated), garbage)
    assert "do not train the same" in refusal(members, hello(1))


def test_refusals_stay_short() -> None:
    """I5. Goal: with the most ranks there can be, every refusal still fits its message."""
    everyone = (1 << WORLD_SIZE_MAX) - 1
    members = Members(job=JOB, children=[1 << rank for rank in range(WORLD_SIZE_MAX)])
    refusal(members, hello(0, contributors=everyone))
    members = Members(job=JOB, children=[everyone >> 1, 1 << WORLD_SIZE_MAX - 1])
    members.join("a", hello(0, contributors=everyone >> 1), description())
    refusal(members, hello(0, contributors=everyone >> 1, incarnation=1))
    long = description().replace(b'"sgd"', b'"' + b"s" * 5000 + b'"')
    refusal(members, hello(0, long, contributors=1 << WORLD_SIZE_MAX - 1), long)


def test_ranks_text() -> None:
    """Goal: ranks for people; of many, the first few and how many more."""
    assert ranks_text([]) == ranks_text([0]) == ""
    assert ranks_text([0b1101]) == ranks_text([0b1000, 0b0101, 0b0001]) == "0, 2, 3"
    exactly = ranks_text([(1 << RANKS_SHOWN_MAX) - 1])
    assert exactly.endswith(", 15")
    assert ranks_text([(1 << WORLD_SIZE_MAX) - 1]) == f"{exactly} and 1008 more"


@pytest.mark.faults(33)
def test_a_later_start_is_taken_in_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """Goal: a worker that is started again on its host is the later one, an hour back or not, as
    the records of the run say. Method: three starts by a clock that is set back in between."""
    hour_ns = 3600 * 10**9
    times = iter([10 * hour_ns, 9 * hour_ns, 9 * hour_ns + 1])
    run = RunDirectory.create(tmp_path / "run")
    numbers = [count_start(run, "worker-0", lambda: next(times)) for _ in range(3)]
    assert numbers[0] == 10 * hour_ns
    members = two()
    for count, number in enumerate(numbers):
        is_later = members.join("first", hello(0, incarnation=number), description())
        assert is_later == (count > 0)
    assert count_start(run, "worker-1", lambda: hour_ns) == hour_ns


def test_a_place_is_taken_while_its_connection_lives() -> None:
    """Goal: another start is told from the holder of a place by its connection, until that ends;
    the same start may come by another connection at any time."""
    members = two()
    assert not members.is_taken("a", hello(0))
    members.join("a", hello(0), description())
    assert members.is_taken("b", hello(0, incarnation=6))
    assert not members.is_taken("b", hello(0))
    assert not members.is_taken("b", hello(1, incarnation=6))
    members.lost("b")
    assert members.is_taken("b", hello(0, incarnation=6))
    members.lost("a")
    assert not members.is_taken("b", hello(0, incarnation=6))

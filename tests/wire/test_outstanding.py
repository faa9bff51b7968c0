"""Requests are repeated at the right times, and never after their answer."""

from __future__ import annotations

from random import Random

import pytest

from luwu.base.retry import RetryPolicy
from luwu.protocol.uplink import Outstanding

POLICY = RetryPolicy(first_ns=100, most_ns=350)


def test_the_pause_doubles_up_to_its_cap() -> None:
    """Goal: repeated after 100, then 200, then 350 for ever."""
    asked: Outstanding[str] = Outstanding(POLICY)
    asked.add("k", "request", 1000)
    times = []
    for _ in range(6):
        due_ns = asked.next_due_ns()
        assert due_ns is not None
        assert asked.due(due_ns - 1) == []
        assert asked.due(due_ns) == ["request"]
        times.append(due_ns)
    assert times == [1100, 1300, 1650, 2000, 2350, 2700]


def test_a_late_caller_repeats_once() -> None:
    """Goal: a process that was stopped for a while does not send everything it missed."""
    asked: Outstanding[str] = Outstanding(POLICY)
    asked.add("k", "request", 0)
    assert asked.due(10**9) == ["request"]
    assert asked.due(10**9) == []
    assert asked.next_due_ns() == 10**9 + 200


def test_ties_go_by_age() -> None:
    """I3. Goal: what is due together is sent in the order it was asked, so histories replay."""
    asked: Outstanding[int] = Outstanding(POLICY)
    for number in range(20):
        asked.add((number * 7 % 20, "any", None), number, 0)
    assert asked.due(100) == list(range(20))


def test_clear_keeps_some() -> None:
    """Goal: a new attempt forgets all but what outlives it; the rest goes on in its rhythm."""
    asked: Outstanding[str] = Outstanding(POLICY)
    for key in ("push", "leave", "pull"):
        asked.add(key, key.upper(), 0)
    assert asked.clear(lambda key: key == "leave") == ["PUSH", "PULL"]
    assert asked.due(100) == ["LEAVE"]
    assert asked.clear() == ["LEAVE"]
    assert asked.next_due_ns() is None


def test_hurry_makes_everything_due() -> None:
    """Goal: after a lost connection all is said again at once, and then in the first rhythm."""
    asked: Outstanding[str] = Outstanding(POLICY)
    asked.add("a", "A", 0)
    asked.due(100)
    asked.due(300)
    asked.add("b", "B", 390)
    asked.hurry(400)
    assert asked.next_due_ns() == 400
    assert asked.due(400) == ["A", "B"]
    assert asked.due(599) == []
    assert asked.due(600) == ["A", "B"]


@pytest.mark.parametrize("seed", range(20))
def test_any_history(seed: int) -> None:
    """I5, I6. Goal: every unanswered request is said again within its pause, no answered one ever
    is, and the books of answered requests do not pile up. Method: a seeded history against a plain
    dictionary of last times."""
    rng = Random(seed)
    asked: Outstanding[int] = Outstanding(POLICY)
    last_said: dict[int, int] = {}
    now_ns = 0
    for _ in range(3000):
        now_ns += rng.randrange(20)
        key = rng.randrange(12)
        match rng.randrange(4):
            case 0:
                asked.add(key, key, now_ns)
                last_said[key] = now_ns
            case 1:
                assert (asked.pop(key) is not None) is (last_said.pop(key, None) is not None)
            case _:
                repeated = asked.due(now_ns)
                assert len(set(repeated)) == len(repeated)
                for again in repeated:
                    assert now_ns - last_said[again] >= POLICY.first_ns
                    last_said[again] = now_ns
                assert all(now_ns - said < POLICY.most_ns for said in last_said.values())
        assert len(asked) == len(last_said)
        assert len(asked._due) <= 2 * len(asked) + 64 + 12


def test_bytes_under_way_make_the_first_pause_longer() -> None:
    """Goal: on a link with a rate nothing is repeated before it can have been answered; doubling
    goes on from there, and never below."""
    slow = RetryPolicy(first_ns=100, most_ns=350, ns_per_byte=2.0)
    asked: Outstanding[str] = Outstanding(slow)
    asked.add("small", "small", 0)
    asked.add("large", "large", 0, nbytes=200)
    assert asked.due(100) == ["small"]
    assert asked.due(499) == ["small"]
    assert asked.due(500) == ["large"]
    assert asked.pop("small") == "small"
    assert asked.next_due_ns() == 1000

"""What a child has under way: within its window, repeated until answered at the right times, and
dropped once."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import PARENT, Drop, Send
from luwu.protocol.uplink import Cargo, Outstanding, Uplink
from luwu.wire.messages import Pull, Push, Rejoin
from tests.helpers.switch_parts import message

RETRY = RetryPolicy(first_ns=100, most_ns=350)


def push(extent: int) -> Push:
    pushed: Push = message(Push, index=extent, contributors=1, dtype="float32")
    return pushed


def cargo(extent: int, payload_bytes: int = 100, on_way: Any = None) -> Cargo:
    payload = f"payload {extent}" if payload_bytes else None
    return Cargo(push(extent), payload, payload_bytes, on_way)


class Bench:
    """An uplink and what it asked for."""

    def __init__(self, window_bytes: int) -> None:
        self.actions: list[Any] = []
        self.uplink = Uplink(self.actions, RETRY)
        self.uplink.window_bytes = window_bytes

    def taken(self) -> list[Any]:
        found = self.actions[:]
        self.actions.clear()
        return found


def test_requests_go_at_once_and_again() -> None:
    """I6. Goal: a request takes no room in the window and is repeated until it is answered."""
    bench = Bench(window_bytes=0)
    asked = message(Rejoin)
    bench.uplink.ask(0, "hello", asked, b"description")
    assert bench.taken() == [Send((PARENT,), asked, b"description")]
    assert bench.uplink.asks("hello")
    assert bench.uplink.next_tick_ns() == 100
    bench.uplink.tick(99)
    assert bench.taken() == []
    bench.uplink.tick(100)
    assert bench.taken() == [Send((PARENT,), asked, b"description")]
    assert bench.uplink.answered("hello")
    assert not bench.uplink.answered("hello")
    assert bench.uplink.next_tick_ns() is None
    bench.uplink.tick(10_000)
    assert bench.taken() == []


def test_forget_keeps_the_requests_that_outlive_an_attempt() -> None:
    """I1. Goal: all others are never said again."""
    bench = Bench(window_bytes=250)
    for name in ("commit", "leave"):
        bench.uplink.ask(0, name, message(Pull))
    bench.uplink.forget(keep=lambda name: name == "leave")
    assert not bench.uplink.asks("commit")
    assert bench.uplink.asks("leave")
    bench.uplink.forget()
    assert len(bench.uplink) == 0


@pytest.mark.parametrize("seed", range(30))
def test_any_history(seed: int) -> None:
    """I1, I3, I5, I6. Goal: sent bytes that wait for a receipt stay within the window, or are one
    payload, however small the window; no small cargo overtakes a large one, which might never go;
    none waits for which there is room; each payload is dropped once, by its receipt or a new
    attempt, and never sent after it. Method: a seeded history, in which the window becomes wider.
    """
    rng = Random(seed)
    window_bytes = rng.choice([0, 150, 1000])
    bench = Bench(window_bytes)
    loaded = 0
    waiting: dict[int, int] = {}
    """Loaded and not dropped: extent -> bytes."""
    sent: set[int] = set()
    on_way: list[int] = []
    """Those that were said to be on their way since the last event, as is said once."""
    now_ns = 0
    for _ in range(600):
        now_ns += rng.randrange(60)
        over: set[int] = set()
        match rng.randrange(12):
            case 0:
                bench.uplink.forget()
                over = set(waiting)
            case 1 | 2:
                bench.uplink.tick(now_ns)
            case 3 | 4 | 5 | 6:
                window_bytes += rng.choice([0] * 19 + [500])
                bench.uplink.window_bytes = window_bytes
                waiting[loaded] = rng.choice([0, 30, 100, 400])
                entered = partial(on_way.append, loaded)
                bench.uplink.load(now_ns, loaded, cargo(loaded, waiting[loaded], entered))
                loaded += 1
            case _:
                extent = rng.choice([*sent, loaded + 5])
                assert bench.uplink.arrived(now_ns, extent) is (extent in sent)
                over = {extent} & sent
        taken = bench.taken()
        dropped = [action.payload for action in taken if isinstance(action, Drop)]
        assert sorted(dropped) == sorted(f"payload {each}" for each in over if waiting[each])
        sent -= over
        for each in over:
            del waiting[each]
        for action in taken:
            if isinstance(action, Send) and (extent := action.message.index) not in sent:
                load = cargo(extent, waiting[extent])
                assert action == Send((PARENT,), load.message, load.payload)
                assert extent == on_way.pop(0) == min(waiting.keys() - sent)
                sent.add(extent)
        assert not on_way
        under_way = sum(waiting[extent] for extent in sent)
        assert under_way <= window_bytes or sum(waiting[extent] > 0 for extent in sent) == 1
        assert {extent for extent in range(loaded) if bench.uplink.holds(extent)} == set(waiting)
        for first in sorted(waiting.keys() - sent)[:1]:
            assert under_way > max(0, window_bytes - waiting[first]), "there is room for it"


# ---------------------------------------------------------------------- repetition


def test_the_pause_doubles_up_to_its_cap() -> None:
    """Goal: repeated after 100, then 200, then 350 for ever."""
    asked: Outstanding[str] = Outstanding(RETRY)
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
    asked: Outstanding[str] = Outstanding(RETRY)
    asked.add("k", "request", 0)
    assert asked.due(10**9) == ["request"]
    assert asked.due(10**9) == []
    assert asked.next_due_ns() == 10**9 + 200


def test_ties_go_by_age() -> None:
    """I3. Goal: what is due together is sent in the order it was asked, so histories replay."""
    asked: Outstanding[int] = Outstanding(RETRY)
    for number in range(20):
        asked.add((number * 7 % 20, "any", None), number, 0)
    assert asked.due(100) == list(range(20))


def test_clear_keeps_some() -> None:
    """Goal: a new attempt forgets all but what outlives it; the rest goes on in its rhythm."""
    asked: Outstanding[str] = Outstanding(RETRY)
    for key in ("push", "leave", "pull"):
        asked.add(key, key.upper(), 0)
    assert asked.clear(lambda key: key == "leave") == ["PUSH", "PULL"]
    assert asked.due(100) == ["LEAVE"]
    assert asked.clear() == ["LEAVE"]
    assert asked.next_due_ns() is None


def test_hurry_makes_everything_due() -> None:
    """Goal: after a lost connection all is said again at once, and then in the first rhythm."""
    asked: Outstanding[str] = Outstanding(RETRY)
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
def test_any_history_of_requests(seed: int) -> None:
    """I5, I6. Goal: every unanswered request is said again within its pause, no answered one ever
    is, and the books of answered requests do not pile up. Method: a seeded history against a plain
    dictionary of last times."""
    rng = Random(seed)
    asked: Outstanding[int] = Outstanding(RETRY)
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
                    assert now_ns - last_said[again] >= RETRY.first_ns
                    last_said[again] = now_ns
                assert all(now_ns - said < RETRY.most_ns for said in last_said.values())
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


def test_nothing_is_repeated_while_others_are_answered() -> None:
    """Goal: a slow link does not carry a request twice. One that was lost is repeated when answers
    to others stop, or after `patience_ns`, and at once after the connection was lost."""
    asked: Outstanding[str] = Outstanding(RetryPolicy(first_ns=100, most_ns=350, patience_ns=350))
    for name in ("lost", "a", "b", "c", "d", "e"):
        asked.add(name, name, 0)
    asked.pop("a")
    assert asked.due(100) == []
    asked.pop("b")
    assert asked.due(200) == []
    assert asked.due(300) == ["lost", "c", "d", "e"], "no answer for a pause"
    asked.pop("c")
    assert asked.due(500) == ["lost", "d", "e"], "patience is over"
    asked.add("new", "new", 500)
    asked.pop("d")
    asked.hurry(510)
    asked.pop("e")
    assert asked.due(510) == ["lost", "new"]

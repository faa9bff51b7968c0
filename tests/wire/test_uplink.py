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

    def sent(self) -> list[int]:
        """Extents sent since the last look; nothing else may have been asked for."""
        found = self.taken()
        assert all(isinstance(action, Send) and action.peers == (PARENT,) for action in found)
        return [action.message.index for action in found]


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


def test_small_cargo_does_not_overtake() -> None:
    """I3. Goal: a small payload behind a large one waits, or the large one might never go."""
    bench = Bench(window_bytes=100)
    for extent, payload_bytes in enumerate([60, 80, 10, 0]):
        bench.uplink.load(0, extent, cargo(extent, payload_bytes))
    assert bench.sent() == [0]
    bench.uplink.arrived(0, 0)
    assert bench.taken()[1:] == [
        Send((PARENT,), push(extent), f"payload {extent}" if extent < 3 else None)
        for extent in (1, 2, 3)
    ]


def test_on_way_is_called_when_it_enters_the_window() -> None:
    """I5. Goal: a switch may answer for raw cargo only once it counts against the window."""
    bench = Bench(window_bytes=100)
    called: list[int] = []
    for extent in range(3):
        bench.uplink.load(0, extent, cargo(extent, 100, partial(called.append, extent)))
    assert called == [0]
    bench.uplink.arrived(0, 0)
    bench.uplink.arrived(0, 1)
    assert called == [0, 1, 2]
    bench.uplink.tick(10_000)
    assert called == [0, 1, 2]


def test_forget_drops_each_payload_once() -> None:
    """I1. Goal: a new attempt lets go of all cargo and requests, and opens the whole window."""
    bench = Bench(window_bytes=250)
    for extent in range(4):
        bench.uplink.load(0, extent, cargo(extent, 100 if extent else 0))
    for name in ("commit", "leave"):
        bench.uplink.ask(0, name, message(Pull))
    bench.taken()
    bench.uplink.forget(keep=lambda name: name == "leave")
    assert sorted(action.payload for action in bench.taken()) == [
        "payload 1", "payload 2", "payload 3",
    ]  # fmt: skip
    assert not bench.uplink.asks("commit")
    assert bench.uplink.asks("leave")
    assert not any(bench.uplink.holds(extent) for extent in range(4))
    for extent in (5, 6):
        bench.uplink.load(0, extent, cargo(extent))
    assert bench.sent() == [5, 6]
    bench.uplink.forget()
    assert len(bench.uplink) == 0


def test_a_wider_window_is_used_from_the_next_event() -> None:
    """Goal: the credit of `Welcome` counts for what is loaded after it."""
    bench = Bench(window_bytes=0)
    for extent in range(3):
        bench.uplink.load(0, extent, cargo(extent))
    assert bench.sent() == [0]
    bench.uplink.window_bytes = 1000
    bench.uplink.load(0, 3, cargo(3))
    assert bench.sent() == [1, 2, 3]


@pytest.mark.parametrize("seed", range(30))
def test_any_history(seed: int) -> None:
    """I1, I5, I6. Goal: sent bytes that wait for a receipt stay within the window, or are one
    payload, however small the window; each payload is dropped once and never sent after it.
    Method: a seeded history."""
    rng = Random(seed)
    window_bytes = rng.choice([0, 150, 1000])
    bench = Bench(window_bytes)
    loaded = 0
    waiting: dict[int, int] = {}
    """Loaded and not dropped: extent -> bytes."""
    sent: set[int] = set()
    now_ns = 0
    for _ in range(600):
        now_ns += rng.randrange(60)
        match rng.randrange(12):
            case 0:
                bench.uplink.forget()
            case 1 | 2:
                bench.uplink.tick(now_ns)
            case 3 | 4 | 5 | 6:
                waiting[loaded] = rng.choice([30, 100, 400])
                bench.uplink.load(now_ns, loaded, cargo(loaded, waiting[loaded]))
                loaded += 1
            case _:
                extent = rng.choice([*sent, loaded + 5])
                assert bench.uplink.arrived(now_ns, extent) is (extent in sent)
        for action in bench.taken():
            if isinstance(action, Drop):
                extent = int(str(action.payload).split()[1])
                del waiting[extent]
                sent.discard(extent)
            else:
                assert action.message.index in waiting
                sent.add(action.message.index)
        under_way = sum(waiting[extent] for extent in sent)
        assert under_way <= window_bytes or len(sent) == 1
        assert {extent for extent in waiting if bench.uplink.holds(extent)} == set(waiting)
        assert bool(sent) or not waiting, "cargo waits although nothing is under way"
    bench.uplink.forget()
    assert len([a for a in bench.taken() if isinstance(a, Drop)]) == len(waiting)


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

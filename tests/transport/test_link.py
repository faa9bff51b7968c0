"""One direction of an emulated link; L1 to L4 are those of `switch_emu/links/link.py`."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from luwu.base.links import LinkSpec
from switch_emu.links.link import EmulatedLink

MS = 1_000_000


def link_of(seed: int = 0, **options: float) -> EmulatedLink:
    return EmulatedLink(LinkSpec(**options), random.Random(seed).random)  # type: ignore[arg-type]


def check_adds_up(link: EmulatedLink) -> None:
    """L1."""
    counters = link.counters
    for unit in ("messages", "bytes"):
        sent, repeated, received, dropped, in_flight = (
            getattr(counters, unit)[kind]
            for kind in ("sent", "repeated", "received", "dropped", "in_flight")
        )
        assert sent + repeated == received + dropped + in_flight
        assert min(sent, repeated, received, dropped, in_flight) >= 0


def random_spec(draw: random.Random) -> LinkSpec:
    """Any link: each option is there or not."""
    rate = draw.choice([None, 10 ** draw.uniform(5, 10)])
    return LinkSpec(
        rate_bytes_per_s=rate,
        delay_ns=draw.choice([0, draw.randrange(10 * MS)]),
        jitter_ns=draw.choice([0, draw.randrange(5 * MS)]),
        loss_ratio=draw.choice([0.0, draw.random() * 0.5]),
        duplicate_ratio=draw.choice([0.0, draw.random() * 0.5]),
        reorder_window=draw.choice([0, 0, 1, 5, 40]),
        queue_bytes=None if rate is None else draw.choice([None, draw.randrange(1, 10**6)]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_traffic_adds_up_and_stays_in_its_window(seed: int) -> None:
    """L1, L2, L3. Goal: whatever a link does, every message is accounted for, the rate is never
    exceeded, and nothing is overtaken by more than it may.
    Method: random links and traffic; arrivals are delivered, or cut, in their order."""
    draw = random.Random(seed)
    spec = random_spec(draw)
    link = EmulatedLink(spec, random.Random(seed + 1).random)
    now_ns, under_way, arrivals_ns, on_wire = 10**15, [], [], Fraction()
    start_ns = now_ns
    for _ in range(400):
        now_ns += draw.choice([0, 0, draw.randrange(MS)])
        nbytes = draw.choice([0, 60, draw.randrange(10**5)])
        before = link.counters.messages["repeated"]
        full = link.counters.messages["overflowed"]
        arrivals = link.offer(now_ns, nbytes)
        if link.counters.messages["overflowed"] == full and spec.rate_bytes_per_s:
            copies = 1 + link.counters.messages["repeated"] - before
            on_wire += Fraction(nbytes) * copies * 10**9 / Fraction(spec.rate_bytes_per_s)
        for at_ns in arrivals:
            assert at_ns >= now_ns + spec.delay_ns + int(spec.serialise_ns(nbytes))
            under_way.append((at_ns, nbytes))
            arrivals_ns.append(at_ns)
        under_way.sort()
        while under_way and under_way[0][0] <= now_ns:
            link.delivered(under_way.pop(0)[1])
        check_adds_up(link)
    for index, at_ns in enumerate(arrivals_ns):
        overtaking = [later for later in arrivals_ns[index + 1 :] if later < at_ns]
        assert len(overtaking) <= spec.reorder_window, (seed, index)
    if spec.rate_bytes_per_s:  # L2
        assert link._free_ns - start_ns >= int(on_wire) - 1, seed
    for _, nbytes in under_way:
        link.cut(nbytes)
    check_adds_up(link)
    assert link.counters.messages["in_flight"] == link.counters.bytes["in_flight"] == 0


@pytest.mark.parametrize("rate", [1.25e7, 1.25e8, 1.25e9, 5e10])
def test_bytes_leave_at_the_rate_however_small_they_are(rate: float) -> None:
    """L2. Goal: the last of many small messages arrives when all bytes have left, within 1 ns,
    although each takes a fraction of a nanosecond at 400 Gbit/s."""
    link = link_of(rate_bytes_per_s=rate)
    for _ in range(10_000):
        (at_ns,) = link.offer(0, 7)
    assert at_ns == pytest.approx(70_000 * 1e9 / rate, abs=2)


def test_an_idle_link_saves_nothing_up() -> None:
    link = link_of(rate_bytes_per_s=1e6, delay_ns=5 * MS)
    assert link.offer(0, 1000) == (6 * MS,)
    assert link.offer(50 * MS, 1000) == (56 * MS,)
    assert link.offer(50 * MS, 1000) == (57 * MS,)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    """L4."""
    options = {
        "rate_bytes_per_s": 1e8, "jitter_ns": MS, "loss_ratio": 0.2, "duplicate_ratio": 0.2,
        "reorder_window": 8,
    }  # fmt: skip

    def arrivals(seed: int) -> list[tuple[int, ...]]:
        link = link_of(seed, **options)
        return [link.offer(number * 10_000, 500) for number in range(500)]

    assert arrivals(3) == arrivals(3)
    assert arrivals(3) != arrivals(4)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5])
def test_losses_and_copies_are_within_their_bounds(ratio: float) -> None:
    """Goal: the share of messages lost, and of those repeated, is what was asked for, within five
    standard deviations of a binomial."""
    count = 20_000
    for option, kind in (("loss_ratio", "lost"), ("duplicate_ratio", "repeated")):
        link = link_of(11, **{option: ratio})
        found = sum(len(link.offer(number, 10)) for number in range(count))
        changed = link.counters.messages[kind]
        assert abs(changed - ratio * count) < 5 * math.sqrt(count * ratio * (1 - ratio))
        assert found == count + (changed if kind == "repeated" else -changed)


def test_a_full_queue_drops_what_comes_last() -> None:
    """Goal: what waits is bounded; a message larger than the queue passes an idle link, and the
    queue drains at the rate."""
    link = link_of(rate_bytes_per_s=1e6, queue_bytes=2500)
    assert [bool(link.offer(0, 1000)) for _ in range(4)] == [True, True, False, False]
    assert link.counters.messages["overflowed"] == 2
    assert link.offer(1 * MS, 1000) == (3 * MS,)
    assert link.offer(3 * MS, 10_000) == (13 * MS,)
    assert link.offer(4 * MS, 1) == ()
    check_adds_up(link)


def test_jitter_alone_never_reorders() -> None:
    """L3."""
    link = link_of(delay_ns=MS, jitter_ns=10 * MS)
    arrivals = [link.offer(number * 1000, 10)[0] for number in range(300)]
    assert arrivals == sorted(arrivals)
    assert max(at_ns - number * 1000 for number, at_ns in enumerate(arrivals)) > 5 * MS


def test_a_window_reorders() -> None:
    """L3. Goal: the window is used, not only kept."""
    link = link_of(2, rate_bytes_per_s=1e9, reorder_window=16)
    arrivals = [link.offer(number * 20_000, 20_000)[0] for number in range(300)]
    overtaken = [
        sum(later < at_ns for later in arrivals[index + 1 :])
        for index, at_ns in enumerate(arrivals)
    ]
    assert 8 < max(overtaken) <= 16

"""Do emulated links do what was asked of them?

Metrics:  rate    bytes that arrive after the first message / seconds until the last one, as a share
                  of the rate that was asked for
          delay   a single message, from its send to its arrival, less what its bytes take to leave
          loss    messages that never arrive, of many small ones
          off     a transport without links: the very same object
Ceiling:  the same messages without a link; a rate of which the host has less than twice as much is
          marked host-bound, and no claim counts it
Bounds:   rate within 3 %; the median delay within the larger of 1 ms and 5 %; losses within the
          binomial's 99.9 %; both directions, over memory of this process and over tcp.
Left out: training; the dilation of whole steps.

One thread lets both ends work in turn, so what is measured holds the transport's own time too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.links import LinkPair, LinkSpec
from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import Delivery, PeerUp, Transport
from luwu.transport.zeromq import ZeroMqTransport
from switch_emu.links.linked import LinkedTransport, linked

RATES_GBIT: Final = (0.1, 1.0, 10.0)
DELAYS_MS: Final = (0.1, 1.0, 10.0, 100.0)
LOSSES: Final = (0.01, 0.1)
WAYS: Final = ("up", "down")
OVER: Final = ("inproc", "tcp")
LOSS_DEVIATIONS: Final = 3.29
"""Of a normal distribution, 99.9 % lie within so many."""
GIVE_UP_NS: Final = 20_000_000_000
MEANINGS: Final = {
    "rate_error_ratio": "largest |measured / asked - 1| of all rates; 0.03 is the bound",
    "host_bound_count": "rates left out because the host itself has less than twice as much",
    "delay_error_share": "largest error of a median delay, as a share of its bound; 1 is the bound",
    "loss_error_share": "largest error of a count of losses, as a share of its bound",
    "off_is_same_object": "without a link the transport is not wrapped",
}


class Pair:
    """Two ends of one link; the listening one emulates it."""

    def __init__(self, stack: ExitStack, over: str, link: LinkPair | None, seed: int = 0) -> None:
        make = _maker(over)
        self.listener: Transport = stack.enter_context(linked(make(), link, seed=seed))
        self.dialler: Transport = stack.enter_context(make())
        endpoint = "inproc://auto" if over == "inproc" else "tcp://127.0.0.1:0"
        self.dialler.dial("parent", self.listener.listen(endpoint))
        self.child = ""
        is_up = False
        while not (self.child and is_up):
            heard = self.listener.receive(1_000_000)
            self.child = heard.peer if isinstance(heard, PeerUp) else self.child
            is_up = isinstance(self.dialler.receive(1_000_000), PeerUp) or is_up

    def send(self, way: str, buffer: memoryview) -> None:
        """One message up or down."""
        if way == "up":
            self.dialler.send("parent", b"h", [buffer])
        else:
            self.listener.send(self.child, b"h", [buffer])

    def arrivals(self, way: str, count: int, *, quiet_ns: int = GIVE_UP_NS) -> list[int]:
        """When so many messages arrived, or fewer, once nothing has come for a while."""
        found: list[int] = []
        last_ns = SYSTEM_CLOCK.now_ns()
        while len(found) < count and SYSTEM_CLOCK.now_ns() - last_ns < quiet_ns:
            holds = isinstance(self.listener, LinkedTransport) and self.listener.holds_sends
            if way == "down" and holds:
                self.listener.receive(5_000_000)
            heard = (self.listener if way == "up" else self.dialler).receive(
                0 if way == "down" and holds else 5_000_000
            )
            while isinstance(heard, Delivery):
                last_ns = SYSTEM_CLOCK.now_ns()
                found.append(last_ns)
                heard.release()
                heard = (self.listener if way == "up" else self.dialler).receive(0)
        return found


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is sent."""

    rate_seconds: float
    delays_count: int
    losses_count: int


def main() -> int:
    """Run the benchmark; the exit code."""
    parser = harness.flags("link", __doc__ or "")
    return _run(parser.parse_args())


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    sizes = Sizes(
        rate_seconds=0.05 if smoke else 1.0,
        delays_count=2 if smoke else 30,
        losses_count=300 if smoke else 20_000,
    )
    repeats = arguments.repeats or (1 if smoke else 3)
    rows: list[Row] = []
    for over in OVER:
        for way in WAYS:
            for gbit in RATES_GBIT:
                rows.append(rate_row(over, way, gbit, sizes.rate_seconds, repeats))
                say(_line(rows[-1]))
            for ms in DELAYS_MS[:2] if smoke else DELAYS_MS:
                rows.append(delay_row(over, way, ms, sizes.delays_count))
                say(_line(rows[-1]))
    for way in WAYS:
        for ratio in LOSSES:
            rows.append(loss_row(way, ratio, sizes.losses_count))
            say(_line(rows[-1]))
    claims = {
        "rate_error_ratio": max(
            (each["error"] for each in rows if each["arm"] == "rate" and not each["is_host_bound"]),
            default=0.0,
        ),
        "host_bound_count": sum(bool(each.get("is_host_bound")) for each in rows),
        "delay_error_share": max(each["error"] for each in rows if each["arm"] == "delay"),
        "loss_error_share": max(each["error"] for each in rows if each["arm"] == "loss"),
        "off_is_same_object": off_is_same_object(),
    }
    say(str(claims))
    result = harness.document("link", rows, claims, claims_meaning=MEANINGS, smoke=smoke)
    harness.write(arguments.json, result)
    return 0


def rate_row(over: str, way: str, gbit: float, seconds: float, repeats: int) -> Row:
    """How fast many messages arrive that are all sent at once."""
    rate = gbit * 1e9 / 8
    count = 64
    nbytes = max(1024, int(rate * seconds / count))
    buffer = memoryview(bytearray(nbytes))
    link = _link(way, LinkSpec(rate_bytes_per_s=rate))

    def seconds_of(emulated: LinkPair | None) -> float:
        with ExitStack() as stack:
            pair = Pair(stack, over, emulated)
            for _ in range(count):
                pair.send(way, buffer)
            at_ns = pair.arrivals(way, count)
        assert len(at_ns) == count, f"{len(at_ns)} of {count} arrived"
        return max(1, at_ns[-1] - at_ns[0]) / 1e9

    found = harness.interleave(
        {"link": lambda: seconds_of(link), "host": lambda: seconds_of(None)}, repeats
    )
    passed = (nbytes + 1) * (count - 1)
    host = passed / harness.median(found["host"])
    return harness.row(
        f"{gbit:g} Gbit/s {way}, {over}", "rate", found["link"], nbytes=passed, asked=rate,
        host_bytes_per_s=host, is_host_bound=host < 2 * rate,
        error=abs(passed / harness.median(found["link"]) / rate - 1),
    )  # fmt: skip


def delay_row(over: str, way: str, ms: float, count: int) -> Row:
    """How late single messages are."""
    delay_ns = int(ms * 1e6)
    spec = LinkSpec(rate_bytes_per_s=1.25e9, delay_ns=delay_ns)
    buffer = memoryview(bytearray(64 * 1024))
    found: list[float] = []
    with ExitStack() as stack:
        pair = Pair(stack, over, _link(way, spec))
        for _ in range(count):
            start_ns = SYSTEM_CLOCK.now_ns()
            pair.send(way, buffer)
            (at_ns,) = pair.arrivals(way, 1)
            found.append((at_ns - start_ns - spec.serialise_ns(buffer.nbytes + 1)) / 1e9)
    bound_s = max(1e-3, 0.05 * delay_ns / 1e9)
    error = abs(harness.median(found) - delay_ns / 1e9) / bound_s
    return harness.row(
        f"{ms:g} ms {way}, {over}", "delay", found, asked=delay_ns / 1e9, error=error
    )


def loss_row(way: str, ratio: float, count: int) -> Row:
    """How many of many small messages are lost, and that the link's own count says the same."""
    buffer = memoryview(bytearray(64))
    with ExitStack() as stack:
        pair = Pair(stack, "inproc", _link(way, LinkSpec(loss_ratio=ratio)), seed=1)
        start_ns = SYSTEM_CLOCK.now_ns()
        arrived = 0
        for _ in range(count // 100):
            for _ in range(100):
                pair.send(way, buffer)
            arrived += len(pair.arrivals(way, 100, quiet_ns=20_000_000))
        seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
        lost = count - arrived
        ((_, up, down),) = pair.listener.links()  # type: ignore[attr-defined]
        assert (up if way == "up" else down).messages["lost"] == lost
    bound = LOSS_DEVIATIONS * math.sqrt(count * ratio * (1 - ratio)) + 0.5
    return harness.row(
        f"loss {ratio:g} {way}", "loss", [seconds], asked=ratio, found=lost / count,
        error=abs(lost - ratio * count) / bound,
    )  # fmt: skip


def off_is_same_object() -> bool:
    """True if a transport without links is left alone."""
    with InProcessNetwork().transport() as bare:
        return linked(bare, None, seed=0) is bare and linked(bare, LinkPair(), seed=0) is bare


def _link(way: str, spec: LinkSpec) -> LinkPair:
    return LinkPair(up=spec) if way == "up" else LinkPair(down=spec)


def _maker(over: str) -> Callable[[], Transport]:
    if over == "tcp":
        return lambda: ZeroMqTransport(credit_bytes=1 << 40)
    network = InProcessNetwork()
    return lambda: network.transport(credit_bytes=1 << 40)


def _line(row: Row) -> str:
    mark = "  (host-bound)" if row.get("is_host_bound") else ""
    return f"{row['arm']:<6} {row['case']:<28} error {row['error']:.3f}{mark}"


if __name__ == "__main__":
    raise SystemExit(main())

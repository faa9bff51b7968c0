"""The rate of the path to another host, by number of connections: to choose `--stripes`.

One host answers (`PathServer`), the other measures. Both use the transport that a run uses, so what
is measured is encryption, copies, I/O threads and the network together.

    who measures            the answer
    ping                    pong
    put, with a payload     got
    get                     data, with a payload of `MESSAGE_BYTES`

A fixed number of messages is under way, and each answer sends the next: a slow path never has much
queued. The answering side keeps nothing between messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.errors import ConnectionFailed, RemoteProtocolError
from luwu.base.limits import STRIPES_MAX
from luwu.launch.answering import await_answer
from luwu.transport.interface import (
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    Transport,
)
from luwu.transport.opening import open_transport

PORT: Final = 29170
MESSAGE_BYTES: Final = 1024 * 1024
UNDER_WAY: Final = 8
"""Messages of each connection that wait for their answer: 8 MiB cover 25 Gbit/s over 2.5 ms."""
PINGS: Final = 50
GOOD_ENOUGH_RATIO: Final = 0.95
"""Fewer connections are chosen if they reach so much of the best rate."""

_PEER: Final = "peer"
_PING, _PONG, _PUT, _GOT, _GET, _DATA = (
    b"luwu-path ping", b"luwu-path pong", b"luwu-path put", b"luwu-path got", b"luwu-path get",
    b"luwu-path data",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRate:
    """The rate of a number of connections; medians over the rounds."""

    streams: int
    up_bytes_per_s: float
    """From who measures to who answers."""
    down_bytes_per_s: float
    spread_ratio: float
    """(largest - least) / median of the slower direction's rounds."""
    round_trip_s: float

    @property
    def both_bytes_per_s(self) -> float:
        """Rate of the slower direction: gradients go up and weights come down."""
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


def best_streams(rates: Sequence[PathRate]) -> int:
    """The least number of connections that is as good as the best."""
    most = max(rate.both_bytes_per_s for rate in rates)
    good = (r.streams for r in rates if r.both_bytes_per_s >= GOOD_ENOUGH_RATIO * most)
    return min(good)


class PathServer(Closing):
    """The side that answers."""

    def __init__(self, endpoint: str, *, insecure: bool = False) -> None:
        """Raises ConfigError where it may not listen."""
        self._transport = open_transport(endpoint, insecure=insecure, stripes=STRIPES_MAX)
        self._memory = memoryview(bytes(MESSAGE_BYTES))
        try:
            self.endpoint = self._transport.listen(endpoint)
        except BaseException:
            self.close()
            raise

    def serve(self, should_stop: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Answer until asked to stop."""
        while not should_stop():
            item = self._transport.receive(200_000_000)
            if isinstance(item, Delivery):
                self._answer(item)
            elif isinstance(item, PeerUp):
                say("a peer measures")
            elif isinstance(item, PeerFailed):
                say(str(item.error))

    def _answer(self, item: Delivery) -> None:
        peer, asked = item.peer, bytes(item.header)
        item.release()
        try:
            if asked == _PING:
                self._transport.send(peer, _PONG)
            elif asked == _PUT:
                self._transport.send(peer, _GOT)
            elif asked == _GET:
                self._transport.send(peer, _DATA, (self._memory,))
        except (PeerGone, CreditExceeded):
            return  # it left, or asks for more than one who measures has under way

    def close(self) -> None:
        """Stop listening."""
        self._transport.close()


def measure_path(
    endpoint: str, *, streams: Sequence[int], seconds: float, rounds: int = 3,
    timeout_s: float = 10.0,
) -> list[PathRate]:  # fmt: skip
    """The rates of some numbers of connections to a `PathServer`, in the order given.

    `seconds` of each direction, number and round; rounds go over all numbers, so that a change of
    the network meets all alike. Raises ConnectionFailed, RemoteProtocolError.
    """
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in streams}
    for _ in range(rounds):
        for count in streams:
            with _Probe(endpoint, count, timeout_s) as probe:
                round_trip_s = probe.round_trip_s()
                up = probe.rate(_PUT, _GOT, seconds)
                found[count].append((up, probe.rate(_GET, _DATA, seconds), round_trip_s))
    return [_path_rate(count, found[count]) for count in streams]


def _path_rate(count: int, rounds: Sequence[tuple[float, float, float]]) -> PathRate:
    ups, downs, trips = zip(*rounds, strict=True)
    slower = min((ups, downs), key=median)
    return PathRate(
        streams=count, up_bytes_per_s=median(ups), down_bytes_per_s=median(downs),
        spread_ratio=(max(slower) - min(slower)) / median(slower), round_trip_s=median(trips),
    )  # fmt: skip


class _Probe(Closing):
    """One link to the side that answers."""

    def __init__(self, endpoint: str, streams: int, timeout_s: float) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._under_way = UNDER_WAY * streams
        self._memory = memoryview(os.urandom(MESSAGE_BYTES))
        # Nothing of a job is sent: random bytes, to whoever was told to listen for them.
        self._transport: Transport = open_transport(endpoint, stripes=streams, insecure=True)
        try:
            self._transport.dial(_PEER, endpoint)
            await_answer(
                self._transport, endpoint, timeout_s=timeout_s,
                advice="start luwu doctor --listen HOST there, and look at firewalls between",
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def round_trip_s(self) -> float:
        """Median time of an empty message there and back."""
        trips = []
        for _ in range(PINGS):
            start_ns = SYSTEM_CLOCK.now_ns()
            self._transport.send(_PEER, _PING)
            self._expect(_PONG)
            trips.append((SYSTEM_CLOCK.now_ns() - start_ns) / 1e9)
        return median(trips)

    def rate(self, ask: bytes, answer: bytes, seconds: float) -> float:
        """Bytes a second of payload, from the first question to the last answer."""
        payload = (self._memory,) if ask == _PUT else ()
        start_ns = SYSTEM_CLOCK.now_ns()
        end_ns = start_ns + int(seconds * 1e9)
        for _ in range(self._under_way):
            self._transport.send(_PEER, ask, payload)
        waits_for, heard_count = self._under_way, 0
        while waits_for:
            self._expect(answer)
            waits_for -= 1
            heard_count += 1
            if SYSTEM_CLOCK.now_ns() < end_ns:
                self._transport.send(_PEER, ask, payload)
                waits_for += 1
        return heard_count * MESSAGE_BYTES / ((SYSTEM_CLOCK.now_ns() - start_ns) / 1e9)

    def close(self) -> None:
        self._transport.close()

    def _expect(self, expected: bytes) -> None:
        end_ns = SYSTEM_CLOCK.now_ns() + int(self._timeout_s * 1e9)
        reason = f"it said nothing for {self._timeout_s:.0f} s"
        while (left_ns := end_ns - SYSTEM_CLOCK.now_ns()) > 0:
            item = self._transport.receive(left_ns)
            if isinstance(item, Delivery):
                heard = bytes(item.header)
                item.release()
                if heard == expected:
                    return
                raise RemoteProtocolError(
                    f"{self._endpoint} said {heard[:40]!r}, expected {expected!r}: it is not "
                    "luwu doctor --listen of this version"
                )
            if isinstance(item, PeerDown | PeerFailed):
                reason = item.reason if isinstance(item, PeerDown) else str(item.error)
                break
        raise ConnectionFailed(
            f"{self._endpoint} was lost while it was measured: {reason}; look at its output"
        )

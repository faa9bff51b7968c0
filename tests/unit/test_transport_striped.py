"""The transport over several connections at once: the suite, the life of a link, its opening."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from luwu.base.errors import ConfigError, ConnectionFailed
from luwu.base.limits import STRIPES_MAX
from luwu.transport import PeerGone, ShmTransport, StripedTransport, ZeroMqTransport
from luwu.transport.lanes import TURN_BYTES
from luwu.transport.opening import io_threads_for, open_transport
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import (
    MIB,
    Make,
    down,
    failed,
    meet,
    message,
    pair,
    until_true,
    up,
)
from tests.unit.transports import (
    QUICK,
    TCP,
    AtIpc,
    AtTcp,
    OverStripes,
    Raw,
    announced,
    check_nothing_is_left,
    maker,
    relay,
)

SOON = replace(QUICK, linger_ms=100)
"""For tests that wait until a link that lost a stripe is given up."""


class TestOneStripe(AtTcp, TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(StripedTransport) as new:
            yield new


class TestTcpOverThree(OverStripes, AtTcp, TransportSuite):
    """The suite over tcp, with three connections to a link."""


class TestIpcOverTwo(AtIpc, TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(StripedTransport, stripes=2) as new:
            yield new


class TestLinks(OverStripes):
    @pytest.mark.parametrize("seed", range(3))
    def test_order_is_kept_both_ways_under_load(self, make: Make, seed: int) -> None:
        """T2, T3. Goal: 400 messages each way at once, from nothing to 2 MiB, come in order, and
        all credit comes back."""
        rng = random.Random(seed)
        listener, dialler, child = pair(make, TCP)
        sizes = [
            [rng.choice([0, 1, 100, 3_000, 70_000, 2 * MIB]) for _ in range(400)] for _ in range(2)
        ]
        buffer = bytes(2 * MIB)
        for there, back in zip(*sizes, strict=True):
            for transport, peer, size in ((dialler, "parent", there), (listener, child, back)):
                while transport.credit(peer) < size + 4096:  # in a burst there is more than credit
                    assert transport.receive(0) is None
                transport.send(peer, b"%d" % size, [memoryview(buffer)[:size]])
        for transport, expected in ((listener, sizes[0]), (dialler, sizes[1])):
            for size in expected:
                delivery = message(transport)
                assert (delivery.header, delivery.buffers[0].nbytes) == (b"%d" % size, size)
        for transport, peer in ((listener, child), (dialler, "parent")):
            limit = transport.credit(peer)
            assert limit > 200 * MIB
            until_true(lambda t=transport, p=peer: t.credit(p) > 255 * MIB, transport)

    def test_all_stripes_carry(self, make: Make) -> None:
        """Goal: large messages take the connections in turns. Method: a relay counts bytes."""
        listener = make()
        with relay(listener.listen(TCP)) as between:
            dialler = make()
            dialler.dial("parent", between.endpoint)
            meet(listener, dialler)
            for _ in range(30):
                dialler.send("parent", b"h", [bytes(MIB)])
                dialler.send("parent", b"small")
            for _ in range(60):
                message(listener)
            assert len(between.bytes_of) == 3
            assert all(nbytes > 10 * MIB for nbytes in between.bytes_of)
            dialler.close()

    def test_one_listener_has_plain_and_striped_peers(self, make: Make) -> None:
        """Goal: the dialling side decides; plain ones may be of the inner kind, as they always
        were."""
        listener = make()
        where = listener.listen(TCP)
        with maker(ZeroMqTransport) as plain:
            for dialler in (make(), make(stripes=1), plain(), make(stripes=STRIPES_MAX)):
                dialler.dial("parent", where)
                child, _ = meet(listener, dialler)
                dialler.send("parent", b"h", [bytes(MIB)])
                assert message(listener).peer == child
                listener.send(child, b"back", [bytes(MIB)])
                assert message(dialler).header == b"back"

    def test_a_lost_stripe_is_a_lost_peer(self, make: Make) -> None:
        """T2. Goal: one PeerDown at each side, and one PeerUp: all connections are new. What the
        relay lost on a connection is not replaced by what came after it."""
        listener = make(timing=SOON)
        with relay(listener.listen(TCP)) as between:
            dialler = make(timing=SOON)
            dialler.dial("parent", between.endpoint)
            child, _ = meet(listener, dialler)
            for round_number in range(3):
                dialler.send("parent", b"before", [bytes(MIB)])
                assert message(listener).header == b"before"
                between.cut(round_number - 3)  # of the last three; another one each time
                assert down(listener) == child
                assert down(dialler) == "parent"
                with pytest.raises(PeerGone):
                    listener.send(child, b"h")
                child, parent = meet(listener, dialler)
                assert parent == "parent"
                assert between.connections_count >= 3 * (round_number + 2)  # libzmq tries too
            dialler.send("parent", b"after")
            assert message(listener).header == b"after"
            dialler.close()

    def test_what_was_in_order_before_a_loss_is_handed_out(self, make: Make, raw: Raw) -> None:
        """T2. Goal: messages come up to the one that was lost, then PeerDown, though the other
        stripe goes on. Method: raw stripes; the third message never comes."""
        listener = make()
        where = listener.listen(TCP)
        first, second = announced(raw, where, 0, 2), announced(raw, where, 1, 2)
        child = up(listener)
        second.send_multipart([b"1", bytes(TURN_BYTES)])
        second.send_multipart([b"3", bytes(TURN_BYTES)])
        first.send_multipart([b"0", bytes(TURN_BYTES)])
        assert [message(listener).header for _ in range(2)] == [b"0", b"1"]
        first.close()
        assert down(listener) == child
        second.send(b"too late")
        assert listener.receive(50_000_000) is None
        with pytest.raises(PeerGone):
            listener.send(child, b"h")

    def test_a_stripe_that_stays_does_not_keep_the_link(self, make: Make, raw: Raw) -> None:
        """Goal: when the lost stripe is not the one whose turn it is, the link ends in time."""
        listener = make(timing=SOON)
        where = listener.listen(TCP)
        first, second = announced(raw, where, 0, 2), announced(raw, where, 1, 2)
        child = up(listener)
        second.close()
        first.send(b"still there")
        assert message(listener).header == b"still there"
        assert down(listener) == child

    def test_a_dialler_gives_half_a_link_up(self, make: Make) -> None:
        """Goal: when a connection does not come up in time, all are dialled anew, and it mends."""
        listener = make()
        with relay(listener.listen(TCP)) as between:
            between.connections_count_max = 2
            dialler = make()
            dialler.dial("parent", between.endpoint)
            event = failed(dialler)
            while "Connecting again" not in str(event.error):  # the silent one is told of first
                assert "it is not this run" in str(event.error)
                event = failed(dialler)
            assert (event.peer, event.final) == ("parent", False)
            assert isinstance(event.error, ConnectionFailed)
            assert "only 2 of 3 connections were there in time" in str(event.error)
            between.connections_count_max = 1000
            meet(listener, dialler)
            dialler.send("parent", b"h", [bytes(MIB)])
            assert message(listener).header == b"h"
            dialler.close()

    def test_another_pattern_is_final_and_told_once(self, make: Make, raw: Raw) -> None:
        """Goal: what libzmq gives up at once ends the seeking of all stripes."""
        port = raw(zmq.PUB).bind_to_random_port("tcp://127.0.0.1")
        dialler = make()
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
        event = failed(dialler)
        while not event.final:
            event = failed(dialler)
        assert event.peer == "parent"
        assert dialler.receive(50_000_000) is None

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        """T6, I8. Method: use everything in a process of its own and compare what it holds."""
        script = """
import os
from luwu.transport import PeerUp, StripedTransport
def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
def use():
    a, b, c = (StripedTransport(stripes=3, io_threads=2) for _ in range(3))
    b.dial("ipc", a.listen("ipc://auto"))
    b.dial("tcp", a.listen("tcp://127.0.0.1:0"))
    c.dial("nobody", "ipc:///nowhere/s")
    c.receive(10**9)
    peers = [a.receive(10**10).peer for _ in range(2)]
    for _ in range(2): b.receive(10**10)
    for name in ("ipc", "tcp"):
        for _ in range(3): b.send(name, b"h", [bytes(1 << 20)])
        for _ in range(3): a.receive(10**10).release()
        a.send(peers[0], b"h", [bytes(1 << 20)])
    for each in (a, b, c): each.close()
use()
before = held()
for _ in range(3): use()
assert held() == before, (before, held())
"""
        check_nothing_is_left(script, tmp_path)


class TestOpening:
    def test_how_many(self) -> None:
        """Goal: as many threads as there are connections, while half of the cores are left."""
        found = {
            (connections, cores): io_threads_for(connections, cores)
            for connections in (0, 1, 3, 16)
            for cores in (1, 2, 4, 16)
        }
        assert found == {
            (0, 1): 1, (0, 2): 1, (0, 4): 1, (0, 16): 1,
            (1, 1): 1, (1, 2): 1, (1, 4): 1, (1, 16): 1,
            (3, 1): 1, (3, 2): 1, (3, 4): 2, (3, 16): 3,
            (16, 1): 1, (16, 2): 1, (16, 4): 2, (16, 16): 4,
        }  # fmt: skip

    def test_what_an_endpoint_opens(self) -> None:
        """Goal: stripes where they mean something, and a refusal where they do not."""
        for endpoint, stripes, kind in (
            ("tcp://127.0.0.1:0", 1, ZeroMqTransport),
            ("tcp://127.0.0.1:0", 2, StripedTransport),
            ("ipc://auto", 1, ZeroMqTransport),
            ("ipc://auto", STRIPES_MAX, StripedTransport),
            ("shm://auto", 1, ShmTransport),
        ):
            with open_transport(endpoint, stripes=stripes) as transport:
                assert type(transport) is kind
        with pytest.raises(ConfigError, match="shared memory has nothing to spread"):
            open_transport("shm://auto", stripes=2)
        for stripes in (0, STRIPES_MAX + 1):
            with pytest.raises(ConfigError, match="stripes must be 1 to 8"):
                open_transport("ipc://auto", stripes=stripes)
        with pytest.raises(ConfigError, match="credit_bytes must be > 0"):
            StripedTransport(credit_bytes=0)

"""The transport over ZeroMQ, tcp and ipc: the suite, and the life of its connections."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

import pytest
import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.transport import connections
from luwu.transport.interface import (
    HEADER_RESERVE_BYTES,
    LISTENER,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerUp,
    Received,
)
from luwu.transport.sockets import LOOPBACK_SEND_BYTES, ZeroMqTiming, copy_of
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.transports import (
    AtIpc,
    AtTcp,
    OverZeroMq,
    Raw,
    check_nothing_is_left,
    listening_process,
)
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import (
    DEADLINE_NS,
    MIB,
    Make,
    dialling,
    down,
    meet,
    message,
    next_of,
    pair,
    until_true,
    up,
)


class TestTcp(OverZeroMq, AtTcp, TransportSuite):
    """The suite over tcp."""


class TestIpc(OverZeroMq, AtIpc, TransportSuite):
    """The suite over ipc."""

    def test_both_ends_take_as_much_as_those_of_tcp(self, make: Make) -> None:
        """Goal: libzmq sets the send buffer of tcp connections alone."""
        listener = make()
        where = listener.listen("ipc://auto")
        meet(listener, dialling(make, where))
        path = where.removeprefix("ipc://")
        ends = [end for end in unix_connections() if path in (end.getsockname(), end.getpeername())]
        found = [end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in ends]
        limit = int(Path("/proc/sys/net/core/wmem_max").read_text())
        assert found == [2 * min(limit, LOOPBACK_SEND_BYTES)] * 2  # Linux doubles what is asked for
        for end in ends:
            end.close()


def unix_connections() -> list[socket.socket]:
    """Copies of all connections of this process that are Unix sockets."""
    found: list[socket.socket] = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        # The descriptor of the list itself is free by now, and may be that of a copy.
        end = None if fd in [each.fileno() for each in found] else copy_of(fd)
        if end is not None:
            with contextlib.suppress(OSError):
                if end.family == socket.AF_UNIX and end.getpeername() is not None:
                    found.append(end)
                    continue
            end.close()
    return found


class TestManyConnections(OverZeroMq):
    @pytest.mark.parametrize("io_threads", [1, 3])
    @pytest.mark.parametrize("seed", range(5))
    def test_every_connection_has_its_own_life(
        self, make: Make, seed: int, io_threads: int
    ) -> None:
        """T2. Goal: each has one PeerUp, its messages in order, one PeerDown, although descriptors
        are used again. Method: 60 short connections, of which some say nothing and some never end,
        while the listener looks now and then; seeded."""
        rng = random.Random(seed)
        listener = make(io_threads=io_threads, timing=ZeroMqTiming())
        where = listener.listen("ipc://auto")
        logs: dict[str, list[Received]] = {}
        staying_count = 0
        message_counts: list[int] = []

        def log(received: Received) -> None:
            if not (isinstance(received, PeerFailed) and received.peer == LISTENER):
                logs.setdefault(received.peer, []).append(received)

        for _ in range(60):
            dialler = dialling(make, where)
            up(dialler)
            count = rng.choice([0, 0, 1, 5])
            for number in range(count):
                dialler.send("parent", b"%d" % number, [bytes(rng.choice([1, 10_000]))])
            message_counts.append(count)
            if rng.random() < 0.8:
                dialler.close()
            else:
                staying_count += 1
            while rng.random() < 0.5 and (received := listener.receive(0)) is not None:
                log(received)

        def is_complete() -> bool:
            downs_count = sum(isinstance(log[-1], PeerDown) for log in logs.values())
            return (len(logs), downs_count) == (60, 60 - staying_count)

        until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
        while not is_complete() or sum(map(len, logs.values())) < 120 - staying_count + sum(
            message_counts
        ):
            assert SYSTEM_CLOCK.now_ns() < until_ns, (seed, logs)
            if (received := listener.receive(1_000_000)) is not None:
                log(received)
        for events in logs.values():
            assert isinstance(events[0], PeerUp), (seed, events)
            middle = events[1:-1] if isinstance(events[-1], PeerDown) else events[1:]
            headers = [event.header for event in middle if isinstance(event, Delivery)]
            assert headers == [b"%d" % number for number in range(len(middle))], (seed, events)
        for peer, events in logs.items():
            if not isinstance(events[-1], PeerDown):
                listener.send(peer, b"still there")

    def test_a_descriptor_that_is_used_again(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T2. Goal: a connection is not ended in place of an earlier one with its descriptor, which
        libzmq may still call alive. Method: it always does; the listener looks when one connection
        is over and the next one is there, which by then mostly has its descriptor."""
        monkeypatch.setattr(connections.Listener, "_is_alive", lambda *_: True)
        listener = make()
        where = listener.listen("ipc://auto")
        for _ in range(10):
            free_count = len(os.listdir("/proc/self/fd"))
            with make() as leaver:
                leaver.dial("parent", where)
                up(leaver)
                leaver.send("parent", b"last words")
            until_true(lambda n=free_count: len(os.listdir("/proc/self/fd")) <= n)
            dialler = dialling(make, where)
            up(dialler)
            dialler.send("parent", b"first words")
            left, stays = "", ""
            for _ in range(5):
                received = next_of(listener, PeerUp, PeerDown, Delivery)
                if isinstance(received, Delivery) and received.header == b"first words":
                    stays = received.peer
                elif isinstance(received, PeerDown):
                    left = received.peer
            assert left not in ("", stays)
            dialler.send("parent", b"still here")
            assert message(listener).peer == stays
            dialler.close()
            assert down(listener) == stays

    @pytest.mark.parametrize(
        ("one", "other", "is_later"),
        [(2, 1, True), (1, 2, False), (1, 1, False), (0, 2**32 - 1, True), (2**32 - 1, 0, False)],
    )
    def test_which_connection_came_later(self, one: int, other: int, is_later: bool) -> None:
        """Goal: numbers of 32 bits, which wrap around."""
        ids = [b"\0" + number.to_bytes(4, "big") for number in (one, other)]
        assert connections._is_later(*ids) is is_later


class TestCredit(OverZeroMq):
    def test_a_stalled_receiver_bounds_the_sender(self, make: Make, raw: Raw) -> None:
        """T3. Method: a peer that reads nothing (a mark of one message, small kernel buffers);
        send what credit allows, and see it end; headers go on, and end too."""
        service = raw(zmq.ROUTER, rcvhwm=1, rcvbuf=65536)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = dialling(make, f"tcp://127.0.0.1:{port}", credit_bytes=32 * MIB)
        up(dialler)

        sent_count = 0
        while dialler.credit("parent") >= MIB + 1:
            dialler.send("parent", b"h", [bytes(MIB)])
            sent_count += 1
            assert sent_count < 100
        header_bytes = 0
        with pytest.raises(CreditExceeded):
            while header_bytes < 100 * MIB:
                dialler.send("parent", bytes(4096))
                header_bytes += 4096
        assert HEADER_RESERVE_BYTES // 2 < header_bytes < 16 * MIB  # the system takes some

        service.close()
        assert down(dialler) == "parent"

    def test_small_messages_use_credit_too(self, make: Make, raw: Raw) -> None:
        """T3. Goal: copied buffers count, to within 64 KiB."""
        listener = make()
        dialler = dialling(make, listener.listen("tcp://127.0.0.1:0"), credit_bytes=1 * MIB)
        up(dialler)
        sent_bytes = 0
        least = dialler.credit("parent")
        for _ in range(64):
            sent_bytes += 1 + dialler.send("parent", b"h", [bytes(15_000)]).done * 15_000
            least = min(least, dialler.credit("parent"))
        assert sent_bytes == 64 * 15_001  # a copied buffer may be used again at once
        assert least < 1 * MIB
        up(listener)
        for _ in range(64):
            message(listener)
        until_true(lambda: dialler.credit("parent") == 1 * MIB, dialler)


class TestLeavesNothing(OverZeroMq):
    def test_threads_sockets_and_files(self, tmp_path: Path) -> None:
        check_nothing_is_left(ZeroMqTransport, ("ipc://auto", "tcp://127.0.0.1:0"), tmp_path)

    def test_close_waits_for_what_is_queued_only_so_long(self, make: Make, raw: Raw) -> None:
        """Goal: a receiver that reads nothing cannot keep us from closing."""
        service = raw(zmq.ROUTER, rcvhwm=1, rcvbuf=65536)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        timing = ZeroMqTiming(linger_ms=100)
        dialler = dialling(make, f"tcp://127.0.0.1:{port}", timing=timing)
        up(dialler)
        handles = [dialler.send("parent", b"h", [bytes(16 * MIB)]) for _ in range(4)]
        assert not handles[-1].done
        dialler.close()
        until_true(lambda: handles[-1].done)


class TestConstruction:
    def test_an_old_libzmq_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 2))
        with pytest.raises(ConfigError, match=r"libzmq 4\.3\.2 is older than 4\.3\.3"):
            ZeroMqTransport()


class TestHeartbeats(OverZeroMq):
    def test_a_busy_receiver_keeps_its_peers(self, make: Make) -> None:
        """Goal: a process that does not call receive for longer than the heartbeat timeout loses
        nobody, however much waits for it. Method: the wait is another transport's deadline."""
        timing = ZeroMqTiming(heartbeat_ms=100, heartbeat_timeout_ms=1_500)
        listener, dialler, child = pair(make, "tcp://127.0.0.1:0", timing=timing)
        idle = make(timing=timing)
        for _ in range(100):
            dialler.send("parent", b"h", [bytes(MIB)])
        assert idle.receive(2_000_000_000) is None
        for _ in range(100):
            assert message(listener).peer == child

    @pytest.mark.faults(17)
    def test_a_frozen_peer_is_lost(self, make: Make) -> None:
        """Method: SIGSTOP; the connection stays open, only heartbeats can tell."""
        timing = ZeroMqTiming(heartbeat_ms=50, heartbeat_timeout_ms=300)
        process, where = listening_process(ZeroMqTransport, "tcp://127.0.0.1:0")
        try:
            dialler = dialling(make, where, timing=timing)
            up(dialler)
            process.send_signal(19)
            assert down(dialler) == "parent"
        finally:
            process.kill()
            process.communicate()

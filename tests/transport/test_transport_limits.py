"""How many connections, and how large frames, a listener with keys takes from whom."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.transport.arrivals import Arrivals, ConnectionLimits
from luwu.transport.interface import PeerFailed, PeerUp, Transport
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.key_directories import ListeningForWorkers
from tests.helpers.transports import TCP, Raw, open_files, tcp_endpoint
from tests.suites.transport_suite import random_bytes
from tests.suites.transport_waits import (
    DEADLINE_NS,
    MIB,
    Make,
    dialling,
    failed,
    meet,
    message,
    nobody_came,
    refused,
    still_works,
    up,
)

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47)
"""What a peer with a key sends first."""
HALF_HANDSHAKES = {"nothing": b"", "part of a greeting": GREETING[:20], "a greeting": GREETING}
"""libzmq waits for more of these."""
WRONG_HANDSHAKES = {
    "a greeting without a key": GREETING.replace(b"CURVE", b"NULL\0"),
    "a wrong first command": GREETING + b"\x04\xc8\x05HELLO" + bytes(194),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n" + b"x" * 300,
}
"""These it ends at once, often before anybody can ask where they come from."""


def resident_bytes() -> int:
    """Of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class TestConnectionLimits(ListeningForWorkers):
    def test_strangers_that_say_nothing_are_few(self, make: Make) -> None:
        """Goal: beyond the limit each new connection is ended, and told; who has a key and speaks
        gets in when the others have gone."""
        limits = ConnectionLimits(unmet_of_address=3)
        timing = ZeroMqTiming(reconnect_ms=10, reconnect_ms_max=50, handshake_ms=60_000)
        listener = make(accepts=("worker",), limits=limits, timing=timing)
        where = tcp_endpoint(listener.listen(TCP))
        silent = [socket.create_connection((where.host, where.port)) for _ in range(3)]
        assert listener.receive(200_000_000) is None
        one_more = socket.create_connection((where.host, where.port))
        one_more.settimeout(10)
        assert "3 connections from there have not identified themselves" in refused(listener)
        while one_more.recv(1000):  # what libzmq says before it hears anything
            pass
        for each in (*silent, one_more):
            each.close()
            assert "disconnected before it identified itself" in refused(listener)
        still_works(make, listener, str(where))

    def test_who_has_identified_itself_is_not_one_too_many(self, make: Make) -> None:
        """Goal: peers that connect while the listener is busy all get in, however many they are.
        Method: all of them are up before it looks at the first."""
        listener = make(accepts=("worker",), limits=ConnectionLimits(unmet_of_address=3))
        where = listener.listen(TCP)
        for _ in range(8):
            up(dialling(make, where, name="worker-0"))
        for _ in range(8):
            assert isinstance(listener.receive(DEADLINE_NS), PeerUp)

    @pytest.mark.parametrize("kind", sorted(HALF_HANDSHAKES | WRONG_HANDSHAKES))
    def test_half_handshakes_are_reported(self, listener: Transport, where: str, kind: str) -> None:
        """Goal: whatever part of a handshake a stranger sends, one report says so, and names its
        address if it waits. Method: send it and nothing more, until the listener hangs up."""
        at = tcp_endpoint(where)
        with socket.create_connection((at.host, at.port)) as stranger:
            stranger.sendall((HALF_HANDSHAKES | WRONG_HANDSHAKES)[kind])
            host, port = stranger.getsockname()
            text = refused(listener)
        assert f"connected to {at.address} " in text
        if kind in HALF_HANDSHAKES:
            assert text.startswith(f"something at {host}:{port} connected")
        nobody_came(listener)

    def test_who_is_silent_after_the_handshake_gives_its_place_back(self, raw: Raw) -> None:
        """Goal: connections that say nothing after their handshake hold places for its time, and
        not for ever. Method: without keys; strangers take all places, and others come."""
        timing = ZeroMqTiming(handshake_ms=300)
        limits = ConnectionLimits(unmet_of_address=3)
        with ZeroMqTransport(limits=limits, timing=timing) as listener:
            where = tcp_endpoint(listener.listen(TCP))
            monitors = []
            watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            for _ in range(3):
                stranger = raw(zmq.DEALER, reconnect_ivl=-1)
                monitors.append(stranger.get_monitor_socket(watched))
                stranger.connect(where.address)
            for monitor in monitors:
                assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            assert listener.receive(100_000_000) is None
            until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
            while not all(monitor.poll(0) for monitor in monitors):
                assert SYSTEM_CLOCK.now_ns() < until_ns, "nobody ended the silent ones"
                with socket.create_connection((where.host, where.port)):
                    nobody_came(listener, 10_000_000)
            for monitor in monitors:
                monitor.close()

    def test_nothing_is_left(self, make: Make) -> None:
        """T6. Goal: after `close` the handler's thread and sockets are gone too."""
        make(accepts=("worker",)).close()
        before = (threading.active_count(), open_files())
        listener = make(accepts=("worker",))
        dialler = dialling(make, listener.listen(TCP), name="worker-0")
        meet(listener, dialler)
        listener.close()
        dialler.close()
        assert (threading.active_count(), open_files()) == before

    def test_one_key_has_so_many(self, make: Make, keys: Path) -> None:
        limits = ConnectionLimits(of_key=2)
        listener = make(accepts=("worker",), limits=limits)
        where = listener.listen(TCP)
        for _ in range(2):
            meet(listener, dialling(make, where, name="worker-0"))
        dialling(make, where, name="worker-0")
        assert "one more connection with the key of 'worker-0'; 2 may be open" in refused(listener)
        still_works(make, listener, where)

    def test_a_flood_disturbs_nobody(self, make: Make) -> None:
        """Goal: while 400 connections come and go, some silent, some with garbage, messages of a
        peer all arrive, in order; afterwards no descriptor of them is left."""
        limits = ConnectionLimits(unmet_of_address=20)
        listener = make(accepts=("worker",), limits=limits)
        where = tcp_endpoint(listener.listen(TCP))
        friend = dialling(make, str(where), name="worker-0")
        meet(listener, friend)
        friend.send("parent", b"first", [bytes(100_000)])  # pyzmq opens files of its own for it
        message(listener)
        before = open_files()
        strangers: deque[socket.socket] = deque(maxlen=40)
        for number in range(400):
            if len(strangers) == strangers.maxlen:
                strangers.popleft().close()
            strangers.append(socket.create_connection((where.host, where.port)))
            if number % 3 == 0:
                strangers[-1].sendall(random_bytes(number, "garbage", 200))
            if number % 10 == 0:
                friend.send("parent", str(number).encode(), [bytes(100_000)])
                assert message(listener).header == str(number).encode()
        for each in strangers:
            each.close()
        until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
        while open_files() > before:
            assert SYSTEM_CLOCK.now_ns() < until_ns, f"{open_files()} files, {before} before"
            heard = listener.receive(10_000_000)
            assert heard is None or isinstance(heard, PeerFailed), heard
        friend.send("parent", b"last")
        assert message(listener).header == b"last"

    @pytest.mark.parametrize("claimed_bytes", [2**62, PAYLOAD_BYTES_MAX + 1])
    def test_a_frame_that_is_too_large_is_refused_before_it_is_held(
        self, make: Make, listener: Transport, where: str, claimed_bytes: int
    ) -> None:
        """Goal: who says in the handshake that so many bytes follow is thrown out at once, and no
        memory was taken for them. Method: ZMTP by hand, up to the length of the first frame."""
        at = tcp_endpoint(where)
        assert len(GREETING) == 64
        before_bytes = resident_bytes()
        with socket.create_connection((at.host, at.port)) as stranger:
            stranger.settimeout(DEADLINE_NS / 1e9)
            stranger.sendall(GREETING + b"\x06" + claimed_bytes.to_bytes(8, "big") + bytes(1000))
            assert "It was rejected" in str(failed(listener).error)
            try:
                while stranger.recv(1000):
                    pass
            except ConnectionResetError:
                pass
        assert resident_bytes() - before_bytes < 16 * MIB
        still_works(make, listener, where)

    def test_only_our_own_connections_are_ever_ended(self) -> None:
        """Goal: a descriptor that is another connection's by now is left alone."""
        arrivals = Arrivals(ConnectionLimits())
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as near,
        ):
            far, _ = server.accept()
            with far:
                assert not arrivals.end(far.fileno())  # not a port of ours
                arrivals.listens_at(server.getsockname()[1])
                known = arrivals.there(far.fileno())
                assert known is not None
                assert not arrivals.end(near.fileno(), known)
                assert not arrivals.end(server.fileno(), known)
                assert not arrivals.end(1 << 20, known)
                near.setblocking(False)
                with pytest.raises(BlockingIOError):
                    near.recv(1)
                assert arrivals.end(far.fileno(), known)
                assert near.recv(1) == b""

    def test_the_user_of_a_unix_socket_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Goal: we and root may come, nobody else. Method: we become another user to the check."""
        arrivals = Arrivals(ConnectionLimits())
        one, other = socket.socketpair()
        with one, other:
            assert not arrivals.is_foreign(one.fileno())
            uid = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8]
            me = int.from_bytes(uid, "little")
            monkeypatch.setattr("os.geteuid", lambda: me + 1)
            assert arrivals.is_foreign(one.fileno()) == (me != 0)

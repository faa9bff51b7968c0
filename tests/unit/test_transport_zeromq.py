"""The transport over ZeroMQ, tcp and ipc: the suite, and what strangers do to it."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, ConnectionFailed, RemoteProtocolError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX
from luwu.transport import (
    BUFFERS_COUNT_MAX,
    LISTENER,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    Received,
    Transport,
    ZeroMqTiming,
    ZeroMqTransport,
    connections,
)
from luwu.transport import endpoints as endpoints_module
from luwu.transport.credits import HEADER_RESERVE_BYTES
from tests.suites.transport_suite import (
    DEADLINE_NS,
    MIB,
    Make,
    TransportSuite,
    down,
    failed,
    message,
    next_of,
    until_true,
    up,
)
from tests.unit.transports import (
    Raw,
    check_nothing_is_left,
    listening_process,
    maker,
    raw_sockets,
)


@pytest.fixture
def make() -> Iterator[Make]:
    with maker(ZeroMqTransport) as new:
        yield new


class ZeroMqSuite(TransportSuite):
    @pytest.fixture
    def make(self, make: Make) -> Make:
        return make  # that of the module


class TestTcp(ZeroMqSuite):
    @pytest.fixture
    def endpoint(self) -> str:
        return "tcp://127.0.0.1:0"


class TestIpc(ZeroMqSuite):
    @pytest.fixture
    def endpoint(self) -> str:
        return "ipc://auto"

    @pytest.fixture
    def free_endpoint(self, tmp_path: Path) -> str:
        return f"ipc://{tmp_path}/s"


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_sockets() as new:
        yield new


@contextmanager
def tcp_service(answer: bytes | None) -> Iterator[str]:
    """A service that answers the first bytes with `answer` and hangs up, or (None) says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.close()
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


class TestStrangersAtOurListener:
    """T5: nothing that arrives may raise, or disturb those who are let in."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make()

    @pytest.fixture
    def where(self, listener: Transport) -> str:
        return listener.listen("tcp://127.0.0.1:0")

    @pytest.mark.parametrize(
        "garbage",
        [
            b"",
            b"\x00" * 1000,
            b"\xff" * 1000,
            b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" + b"x" * 300,
            b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x05READY" + b"\xff" * 99,
            b"\x01\x00\x05\x00spoof",  # ZMTP 1.0 without a name, then a message
        ],
    )
    def test_garbage_is_reported_and_disturbs_nobody(
        self, make: Make, listener: Transport, where: str, garbage: bytes
    ) -> None:
        """Goal: one report at least, none of it final, and a real peer still gets in."""
        host, port = where.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as stranger:
            with suppress(OSError):  # the listener may hang up first
                stranger.sendall(garbage)
                stranger.shutdown(socket.SHUT_WR)
            event = failed(listener)
        assert (event.peer, event.final) == (LISTENER, False)
        assert where in str(event.error)

        dialler = make()
        dialler.dial("parent", where)
        child = up(listener)
        up(dialler)
        dialler.send("parent", b"h")
        assert message(listener).peer == child

    @pytest.mark.parametrize(
        ("kind", "options", "frames"),
        [
            (zmq.DEALER, {"routing_id": b"rank-0"}, [b""]),
            (zmq.DEALER, {}, [b"no empty message first"]),
            (zmq.DEALER, {}, [b"", b"buffer"]),
            (zmq.REQ, {}, [b"h"]),
            (zmq.ROUTER, {"probe_router": 1}, []),
        ],
    )
    def test_other_zeromq_programs_are_not_let_in(
        self,
        listener: Transport,
        where: str,
        raw: Raw,
        kind: int,
        options: dict[str, object],
        frames: list[bytes],
    ) -> None:
        """T1. Goal: reported once however much they say; no name they chose becomes a peer."""
        stranger = raw(kind, **options)
        stranger.connect(where)
        if frames:
            stranger.send_multipart(frames)
        event = failed(listener)
        assert (event.peer, event.final) == (LISTENER, False)
        assert isinstance(event.error, RemoteProtocolError)
        if kind == zmq.DEALER:
            for _ in range(100):
                stranger.send(b"more")
        assert listener.receive(50_000_000) is None
        stranger.close()
        assert listener.receive(50_000_000) is None

    def test_names_cannot_be_guessed(self, make: Make) -> None:
        """T1, T5. Goal: no two listeners begin to count at the same number, for libzmq aborts when
        a stranger has taken the routing id that the next peer is to get."""
        names = set()
        for _ in range(8):
            listener, dialler = make(), make()
            dialler.dial("parent", listener.listen("ipc://auto"))
            names.add(up(listener))
        assert len(names) == 8

    def test_messages_beyond_the_limits_are_dropped(
        self, listener: Transport, where: str, raw: Raw
    ) -> None:
        """Goal: a header too large or empty, or too many buffers, is reported under the peer's
        name; the message after it arrives."""
        stranger = raw(zmq.DEALER, probe_router=1)
        stranger.connect(where)
        peer = up(listener)
        for frames in (
            [bytes(CONTROL_HEADER_BYTES_MAX + 1)],
            [b"", b"buffer"],
            [b"h"] + [b"x"] * (BUFFERS_COUNT_MAX + 1),
            [b"h"] + [b"x"] * 1000,
        ):
            stranger.send_multipart(frames)
            event = failed(listener)
            assert (event.peer, event.final) == (peer, False)
            assert isinstance(event.error, RemoteProtocolError)
            stranger.send(b"good")
            assert message(listener).header == b"good"

    def test_a_frame_too_large_ends_the_connection(
        self, listener: Transport, where: str, raw: Raw
    ) -> None:
        """Goal: libzmq hangs up on a frame above the limit before it is held in memory."""
        stranger = raw(zmq.DEALER, probe_router=1)
        stranger.connect(where)
        peer = up(listener)
        stranger.send_multipart([b"h", bytes(PAYLOAD_BYTES_MAX + 1)])
        assert down(listener) == peer


class TestManyConnections:
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
            dialler = make()
            dialler.dial("parent", where)
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
            until_true(lambda n=free_count: len(os.listdir("/proc/self/fd")) == n)
            dialler = make()
            dialler.dial("parent", where)
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


class TestStrangersThatWeDial:
    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n" + b"<html>" * 100,
            b"220 mail.example ESMTP\r\n",
            b"",
            None,
        ],
        ids=["http", "smtp", "hangs up", "silent"],
    )
    def test_a_service_that_is_not_zeromq(self, make: Make, answer: bytes | None) -> None:
        """T5. Goal: told once, not final; what it says never becomes a message."""
        with tcp_service(answer) as where:
            dialler = make()
            dialler.dial("parent", where)
            event = failed(dialler)
            assert (event.peer, event.final) == ("parent", False)
            assert isinstance(event.error, ConnectionFailed)
            assert f"something answers at {where} (peer 'parent'), but it is not this run" in str(
                event.error
            )
            assert dialler.receive(200_000_000) is None  # some twenty attempts
            with pytest.raises(PeerGone):
                dialler.send("parent", b"h")
            dialler.close()

    @pytest.mark.parametrize("kind", [zmq.PUB, zmq.PULL])
    def test_another_zeromq_pattern_is_final(self, make: Make, raw: Raw, kind: int) -> None:
        """Goal: libzmq gives up without a word; we say so."""
        service = raw(kind)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = make()
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
        assert "speaks ZeroMQ, but it is not this run" in str(final(dialler).error)
        assert dialler.receive(50_000_000) is None

    def test_an_encrypted_listener_is_final(self, make: Make, raw: Raw) -> None:
        """Goal: coming without a key is final, and says what to give."""
        public, secret = zmq.curve_keypair()
        service = raw(zmq.ROUTER, curve_server=1, curve_publickey=public, curve_secretkey=secret)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = make()
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
        assert "is encrypted and we came without a key" in str(final(dialler).error)

    def test_a_frame_too_large_ends_the_connection(self, make: Make, raw: Raw) -> None:
        """Goal: libzmq would never try again after that; we do."""
        service = raw(zmq.ROUTER)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = make()
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
        up(dialler)
        routing_id, _ = service.recv_multipart()
        service.send_multipart([routing_id, b"h", bytes(PAYLOAD_BYTES_MAX + 1)])
        assert down(dialler) == "parent"
        assert up(dialler) == "parent"


class TestWhereToListen:
    def test_a_routable_address_needs_insecure(self, make: Make) -> None:
        """Goal: refused before anything is open, with the flag to use; wildcards need a name."""
        for endpoint in ("tcp://192.0.2.1:0", "tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"):
            with pytest.raises(ConfigError, match="--insecure"):
                make().listen(endpoint)
        with pytest.raises(ConfigError, match="Say which with advertise"):
            make(insecure=True).listen("tcp://0.0.0.0:0")
        with pytest.raises(ConfigError, match="is not an address of this machine"):
            make(insecure=True).listen("tcp://192.0.2.1:0")

    @pytest.mark.parametrize("advertise", ["127.0.0.1", "tcp://127.0.0.1:0", "localhost"])
    def test_what_is_advertised_can_be_dialled(self, make: Make, advertise: str) -> None:
        """Goal: a wildcard listens on every address, and returns the one that was advertised."""
        listener, dialler = make(insecure=True), make()
        where = listener.listen("tcp://0.0.0.0:0", advertise=advertise)
        assert where.startswith("tcp://" + advertise.removeprefix("tcp://").split(":")[0] + ":")
        dialler.dial("parent", where)
        up(listener)
        up(dialler)

    @pytest.mark.parametrize(
        ("advertise", "endpoint"),
        [
            ("node0", "tcp://node0:7"),
            ("node0:9", "tcp://node0:9"),
            ("tcp://node0:9", "tcp://node0:9"),
            ("fe80::1", "tcp://[fe80::1]:7"),
            ("[fe80::1]", "tcp://[fe80::1]:7"),
            ("[fe80::1]:9", "tcp://[fe80::1]:9"),
        ],
    )
    def test_forms_of_advertise(self, advertise: str, endpoint: str) -> None:
        bound = endpoints_module.TcpEndpoint("0.0.0.0", 7)
        assert str(endpoints_module.advertised(advertise, bound)) == endpoint

    def test_a_host_name_is_resolved_first(self, make: Make) -> None:
        """Goal: an unknown host raises at once, dialled or listened on; a known one works."""
        with pytest.raises(ConnectionFailed, match=r"cannot resolve the host 'no-host\.invalid'"):
            make().dial("parent", "tcp://no-host.invalid:5555")
        with pytest.raises(ConfigError, match="cannot resolve the host"):
            make().listen("tcp://no-host.invalid:0")
        listener, dialler = make(), make()
        where = listener.listen("tcp://localhost:0")
        dialler.dial("parent", where.replace("127.0.0.1", "localhost"))
        up(dialler)

    @pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://0.0.0.0:5", "tcp://*:5"])
    def test_what_cannot_be_dialled_is_refused(self, make: Make, endpoint: str) -> None:
        with pytest.raises(ConfigError, match="cannot be dialled"):
            make().dial("parent", endpoint)

    def test_an_auto_path_is_short_private_and_removed(self, make: Make) -> None:
        """T6. Goal: a directory for this user alone, and gone after close."""
        transport = make()
        path = Path(transport.listen("ipc://auto").removeprefix("ipc://"))
        assert len(os.fsencode(path)) < 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        transport.close()
        assert not path.parent.exists()

    def test_the_directory_of_a_killed_process_is_swept(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T6. Method: kill a process that listens at ipc://auto; the next one to do so cleans up,
        and leaves alone what a live process has."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        live = Path(make().listen("ipc://auto").removeprefix("ipc://"))
        process, where = listening_process(ZeroMqTransport, "ipc://auto")
        process.kill()
        process.communicate()
        dead = Path(where.removeprefix("ipc://"))
        assert dead.exists()

        new = Path(make().listen("ipc://auto").removeprefix("ipc://"))

        assert set(tmp_path.iterdir()) == {live.parent, new.parent}

    def test_the_socket_of_a_killed_process_is_replaced(self, make: Make, tmp_path: Path) -> None:
        """Goal: a stale file is no obstacle, and a dialler finds the successor."""
        endpoint = f"ipc://{tmp_path}/s"
        process, _ = listening_process(ZeroMqTransport, endpoint)
        dialler = make()
        dialler.dial("parent", endpoint)
        up(dialler)
        process.kill()
        process.communicate()
        assert down(dialler) == "parent"
        assert (tmp_path / "s").exists()

        listener = make()
        listener.listen(endpoint)

        assert up(dialler) == "parent"
        up(listener)
        listener.close()
        assert not (tmp_path / "s").exists()

    def test_paths_that_cannot_be_a_socket(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for endpoint, text in (
            (f"ipc://{tmp_path}/file", "is not a socket"),
            (f"ipc://{tmp_path}/missing/s", "no directory"),
            (f"ipc://{tmp_path}/{'x' * 100}", "use a shorter one"),
        ):
            with pytest.raises(ConfigError, match=text):
                make().listen(endpoint)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestCredit:
    def test_a_stalled_receiver_bounds_the_sender(self, make: Make, raw: Raw) -> None:
        """T3. Method: a peer that reads nothing (a mark of one message, small kernel buffers);
        send what credit allows, and see it end; headers go on, and end too."""
        service = raw(zmq.ROUTER, rcvhwm=1, rcvbuf=65536)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = make(credit_bytes=32 * MIB)
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
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
        where = listener.listen("tcp://127.0.0.1:0")
        dialler = make(credit_bytes=1 * MIB)
        dialler.dial("parent", where)
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


class TestLeavesNothing:
    def test_threads_sockets_and_files(self, tmp_path: Path) -> None:
        """T6, I8. Method: use everything in a process of its own and compare what it holds before
        and after. pyzmq's collector thread and its two descriptors are not ours to end."""
        script = """
import os
from luwu.transport import ZeroMqTransport
def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
def use():
    a, b, c = ZeroMqTransport(), ZeroMqTransport(), ZeroMqTransport()
    b.dial("ipc", a.listen("ipc://auto"))
    b.dial("tcp", a.listen("tcp://127.0.0.1:0"))
    c.dial("nobody", "ipc:///nowhere/s")
    c.receive(10**9)
    peers = [a.receive(10**10).peer for _ in range(2)]
    for _ in range(2): b.receive(10**10)
    for name in ("ipc", "tcp"):
        handle = b.send(name, b"h", [bytes(1 << 20)])
        a.receive(10**10).release()
        a.send(peers[0], b"h", [bytes(1 << 20)])
    for each in (a, b, c): each.close()
use()
before = held()
for _ in range(3): use()
assert held() == before, (before, held())
print(before)
"""
        check_nothing_is_left(script, tmp_path)

    def test_close_waits_for_what_is_queued_only_so_long(self, make: Make, raw: Raw) -> None:
        """Goal: a receiver that reads nothing cannot keep us from closing."""
        service = raw(zmq.ROUTER, rcvhwm=1, rcvbuf=65536)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        timing = ZeroMqTiming(linger_ms=100)
        dialler = make(timing=timing)
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
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

    def test_bad_options_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"timing\.linger_ms must be > 0"):
            ZeroMqTiming(linger_ms=0)
        with pytest.raises(ConfigError, match="must exceed"):
            ZeroMqTiming(heartbeat_ms=100, heartbeat_timeout_ms=100)
        with pytest.raises(ConfigError, match="credit_bytes must be > 0"):
            ZeroMqTransport(credit_bytes=0)


class TestHeartbeats:
    def test_a_busy_receiver_keeps_its_peers(self, make: Make) -> None:
        """Goal: a process that does not call receive for longer than the heartbeat timeout loses
        nobody, however much waits for it. Method: the wait is another transport's deadline."""
        timing = ZeroMqTiming(heartbeat_ms=20, heartbeat_timeout_ms=100)
        listener, dialler, idle = (make(timing=timing) for _ in range(3))
        dialler.dial("parent", listener.listen("tcp://127.0.0.1:0"))
        child = up(listener)
        up(dialler)
        for _ in range(100):
            dialler.send("parent", b"h", [bytes(MIB)])
        assert idle.receive(500_000_000) is None
        for _ in range(100):
            assert message(listener).peer == child

    def test_a_frozen_peer_is_lost(self, make: Make) -> None:
        """Method: SIGSTOP; the connection stays open, only heartbeats can tell."""
        timing = ZeroMqTiming(heartbeat_ms=50, heartbeat_timeout_ms=300)
        process, where = listening_process(ZeroMqTransport, "tcp://127.0.0.1:0")
        try:
            dialler = make(timing=timing)
            dialler.dial("parent", where)
            up(dialler)
            process.send_signal(19)
            assert down(dialler) == "parent"
        finally:
            process.kill()
            process.communicate()


def final(transport: Transport) -> PeerFailed:
    """Wait for a final PeerFailed; the other side may hang up first before we have read why."""
    event = failed(transport)
    return event if event.final else final(transport)

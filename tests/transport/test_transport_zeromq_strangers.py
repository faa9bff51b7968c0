"""Who comes to a transport over ZeroMQ, and whom it dials, that is not of this run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from luwu.base.errors import ConnectionFailed, RemoteProtocolError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX
from luwu.transport.interface import BUFFERS_COUNT_MAX, LISTENER, PeerFailed, PeerGone, Transport
from luwu.transport.lanes import GATHERED_COUNT_MAX, gathered
from tests.helpers.transports import ListeningAtTcp, OverZeroMq, Raw
from tests.suites.transport_waits import Make, dialling, down, failed, meet, message, up


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


class TestStrangersAtOurListener(OverZeroMq, ListeningAtTcp):
    """T5: nothing that arrives may raise, or disturb those who are let in."""

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

        dialler = dialling(make, where)
        child, _ = meet(listener, dialler)
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
        self, listener: Transport, where: str, raw: Raw, kind: int, options: dict[str, object],
        frames: list[bytes],
    ) -> None:  # fmt: skip
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
            listener = make()
            dialling(make, listener.listen("ipc://auto"))
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
            [b"", gathered([b"a", b"b"], [1, 2]), b"x"],
            [b"", gathered([b"a", b"b"], [1, 0]), b"x", b"y"],
            [b"", gathered([b"a"], [0])[:-1]],
            [b"", gathered([b"a", b""], [0, 0])],
            [b"", gathered([b"a"] * (GATHERED_COUNT_MAX + 1), [0] * (GATHERED_COUNT_MAX + 1))],
            [b"", gathered([bytes(CONTROL_HEADER_BYTES_MAX + 1)], [0])],
            [b"", gathered([b"a"], [BUFFERS_COUNT_MAX + 1]), *[b"x"] * (BUFFERS_COUNT_MAX + 1)],
            [b"", gathered([b"a"] * 1000, [1] * 1000), *[b"x"] * 1000],
            [b"", b""],
        ):
            stranger.send_multipart(frames)
            event = failed(listener)
            assert (event.peer, event.final) == (peer, False)
            assert isinstance(event.error, RemoteProtocolError)
            stranger.send(b"good")
            assert message(listener).header == b"good"


class TestStrangersThatWeDial(OverZeroMq):
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
            dialler = dialling(make, where)
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
        dialler = dialling(make, f"tcp://127.0.0.1:{port}")
        assert "speaks ZeroMQ, but it is not this run" in str(final(dialler).error)
        assert dialler.receive(50_000_000) is None

    def test_an_encrypted_listener_is_final(self, make: Make, raw: Raw) -> None:
        """Goal: coming without a key is final, and says what to give."""
        public, secret = zmq.curve_keypair()
        service = raw(zmq.ROUTER, curve_server=1, curve_publickey=public, curve_secretkey=secret)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = dialling(make, f"tcp://127.0.0.1:{port}")
        assert "is encrypted, and this process connected without a key" in str(final(dialler).error)

    def test_a_frame_too_large_ends_the_connection(self, make: Make, raw: Raw) -> None:
        """Goal: libzmq would never try again after that; we do."""
        service = raw(zmq.ROUTER)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        dialler = dialling(make, f"tcp://127.0.0.1:{port}")
        up(dialler)
        routing_id, _ = service.recv_multipart()
        service.send_multipart([routing_id, b"h", bytes(PAYLOAD_BYTES_MAX + 1)])
        assert down(dialler) == "parent"
        assert up(dialler) == "parent"


def final(transport: Transport) -> PeerFailed:
    """Wait for a final PeerFailed; the other side may hang up first before we have read why."""
    event = failed(transport)
    return event if event.final else final(transport)

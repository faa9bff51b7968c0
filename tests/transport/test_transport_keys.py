"""Connections with keys: who is let in, what a refusal looks like, what others can read."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest
import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, KeysFailed
from luwu.base.keys import ALLOWED, Identity, read_allowed, write_allowed
from luwu.transport import curve
from luwu.transport.curve import check_curve, new_key_pair
from luwu.transport.endpoints import TcpEndpoint, check_secure
from luwu.transport.interface import PeerUp, Transport
from luwu.transport.opening import open_transport
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.key_directories import (
    ListeningForWorkers,
    WithKeys,
    make_keys,
    security,
    take_back,
)
from tests.helpers.tap import Tap
from tests.helpers.transports import QUICK, TCP, AtTcp, Raw, tcp_endpoint
from tests.helpers.waiting import ManualClock
from tests.suites.free_port import free_port
from tests.suites.transport_suite import TransportSuite, random_bytes
from tests.suites.transport_waits import (
    DEADLINE_NS,
    Make,
    dialling,
    down,
    failed,
    meet,
    message,
    next_of,
    nobody_came,
    refused,
    still_works,
    up,
)


class TestTcpWithKeys(WithKeys, AtTcp, TransportSuite):
    """The suite over encrypted tcp."""


class TestWhoIsLetIn(ListeningForWorkers):
    def test_a_key_is_told_with_the_peer(self, make: Make, listener: Transport, where: str) -> None:
        """T1. Goal: who listens learns whose key it is; who dials pinned a key and learns none."""
        dialler = dialling(make, where, name="worker-0")
        assert next_of(dialler, PeerUp).identity is None
        assert next_of(listener, PeerUp).identity == Identity("worker-0", "worker")

    @pytest.mark.parametrize("kind", ["null", "plain", "wrong server key"])
    def test_no_key_and_other_security_are_refused(
        self, make: Make, listener: Transport, where: str, raw: Raw, kind: str
    ) -> None:
        """Goal: refused in the handshake and told; no byte of theirs becomes a message."""
        public, secret = zmq.curve_keypair()
        other, _ = zmq.curve_keypair()
        options: dict[str, dict[str, object]] = {
            "null": {},
            "plain": {"plain_username": b"worker-0", "plain_password": b"x"},
            "wrong server key": {
                "curve_serverkey": other, "curve_publickey": public, "curve_secretkey": secret,
            },
        }  # fmt: skip
        stranger = raw(zmq.DEALER, **options[kind])
        stranger.connect(tcp_endpoint(where).address)
        stranger.send(b"")
        stranger.send(b"hello")
        assert "It was rejected" in refused(listener)
        stranger.close()
        nobody_came(listener)
        still_works(make, listener, where)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("unknown", "is not in"),
            ("revoked", "is not in"),
            ("node", "its key is that of 'node', a node; accepted roles are worker"),
            ("reader", "a reader; accepted roles are worker"),
        ],
    )
    def test_keys_that_are_not_allowed_are_refused(
        self, make: Make, keys: Path, listener: Transport, where: str, tmp_path: Path,
        name: str, why: str,
    ) -> None:  # fmt: skip
        """Goal: told by name and reason here; told to the other side for good."""
        if name == "unknown":
            own = security(make_keys(tmp_path / "other", {"worker-0": "worker"}), "worker-0")
        elif name == "revoked":
            own = security(keys, "worker-0")
            take_back(keys, "worker-0")
        else:
            own = security(keys, name)
        with ZeroMqTransport(security=own, timing=QUICK) as stranger:
            stranger.dial("parent", where)
            text = refused(listener)
            assert why in text
            if name in ("unknown", "revoked"):
                assert str(keys / ALLOWED) in text
            while not (event := failed(stranger)).final:
                pass
            assert "rejected our key" in str(event.error)
        nobody_came(listener)
        still_works(make, listener, where)


class TestRevocation(ListeningForWorkers):
    def test_one_connection_ends_and_no_other(
        self, make: Make, keys: Path, listener: Transport, where: str
    ) -> None:
        """Goal: within seconds; the peer is told why and the others do not notice."""
        peers = {name: dialling(make, where, name=name) for name in ("worker-0", "worker-1")}
        names = {}
        while len(names) < 2:
            event = next_of(listener, PeerUp)
            assert event.identity is not None
            names[event.identity.name] = event.peer
        for transport in peers.values():
            up(transport)

        take_back(keys, "worker-0")

        assert down(listener) == names["worker-0"]
        down(peers["worker-0"])
        while not failed(peers["worker-0"]).final:
            pass
        peers["worker-1"].send("parent", b"still here", [bytes(100_000)])
        assert message(listener).peer == names["worker-1"]

    def test_a_key_that_was_made_anew_opens_no_old_door(
        self, make: Make, keys: Path, listener: Transport, where: str
    ) -> None:
        """Goal: connections belong to keys, not to names."""
        dialler = dialling(make, where, name="worker-0")
        meet(listener, dialler)
        allowed = read_allowed(keys)
        public, _ = new_key_pair()
        rows = {key: each for key, each in allowed.items() if each.name != "worker-0"}
        write_allowed(keys, {**rows, public: Identity("worker-0", "worker")})
        down(listener)

    @pytest.mark.parametrize("damage", ["gone", "garbage", "readable by others"])
    def test_a_list_that_cannot_be_read_lets_nobody_in(
        self, make: Make, keys: Path, listener: Transport, where: str, damage: str
    ) -> None:
        """Goal: fail closed for who comes, and no panic for who is in; mended, it works again."""
        inside, outside = dialling(make, where, name="worker-0"), make(name="worker-1")
        meet(listener, inside)
        file = keys / ALLOWED
        text = file.read_text()
        if damage == "gone":
            file.unlink()
        elif damage == "garbage":
            other = file.with_name("other")
            other.touch(mode=0o600)
            other.write_text("{")
            other.replace(file)
        else:
            file.chmod(0o644)
        assert "no new connection is accepted from now on" in refused(listener)
        outside.dial("parent", where)
        assert "no new connection is accepted" in refused(listener)
        inside.send("parent", b"h")
        assert message(listener).header == b"h"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(text)
        meet(listener, outside)


class TestTheHandler(ListeningForWorkers):
    @pytest.fixture
    def zap(self, listener: Transport, where: str) -> curve.ZapHandler:
        assert isinstance(listener, ZeroMqTransport)
        assert listener.hub.zap is not None
        return listener.hub.zap

    def test_its_end_stops_us_and_lets_nobody_in(
        self, make: Make, listener: Transport, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Goal: KeysFailed out of `receive`, and afterwards not even the right key gets in: an
        unanswered question is no yes. Method: the next question makes the thread fail."""

        def fail(self: object, request: list[bytes]) -> list[bytes]:
            raise MemoryError("planted")

        monkeypatch.setattr(curve.ZapHandler, "_answer", fail)
        dialling(make, where, name="worker-0")
        with pytest.raises(KeysFailed, match=r"that checks keys has ended.*planted"):
            while True:
                listener.receive(DEADLINE_NS)
        second = dialling(make, where, name="worker-1")
        assert not isinstance(second.receive(500_000_000), PeerUp)

    def test_who_was_let_in_without_a_question_is_not_listened_to(
        self, make: Make, listener: Transport, where: str, zap: curve.ZapHandler
    ) -> None:
        """Goal: fail closed once more. Method: the handler is closed under a listener, as a mistake
        of ours might do; libzmq then lets every key in, and the listener hears none of them."""
        zap.close()
        zap.check_alive = lambda: None  # type: ignore[method-assign]
        zap.close = lambda: None  # type: ignore[method-assign]
        stranger = dialling(make, where, name="worker-0", accepts=())
        up(stranger)
        stranger.send("parent", b"let me in")
        assert "was accepted by mistake" in refused(listener)
        nobody_came(listener)

    def test_its_silence_is_noticed(
        self, zap: curve.ZapHandler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Goal: a thread that lives and does nothing stops us too. Method: its sign of life is
        taken away, and time passes by a clock of ours."""
        clock = ManualClock()
        monkeypatch.setattr(curve, "SYSTEM_CLOCK", clock)
        # We were stopped for long: that is no silence of the handler's.
        clock.advance(SYSTEM_CLOCK.now_ns() + 10**12)
        zap._beat_ns = 0
        zap.check_alive()
        with pytest.raises(KeysFailed, match="does not answer"):
            for _ in range(20):
                clock.advance(200_000_000)
                zap._beat_ns = 0
                zap.check_alive()

    def test_it_is_bound_before_anything_listens(self, keys: Path, listener: Transport) -> None:
        """Goal: where the handler cannot start, no port is open."""
        (keys / ALLOWED).unlink()
        with free_port() as port:
            with pytest.raises(ConfigError, match="no process may connect"):
                listener.listen(f"tcp://127.0.0.1:{port}")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=10)

    @pytest.mark.parametrize(
        "request_frames",
        [
            [],
            [b"1.0"],
            [b"1.0", b"1", b"", b"127.0.0.1", b"", b"NULL"],
            [b"1.0", b"1", b"", b"127.0.0.1", b"", b"PLAIN", b"worker-0", b"x"],
            [b"1.0", b"1", b"", b"127.0.0.1", b"", b"CURVE"],
            [b"1.0", b"1", b"", b"127.0.0.1", b"", b"CURVE", b"short"],
            [b"1.0", b"1", b"other", b"127.0.0.1", b"", b"CURVE", bytes(32)],
            [b"1.0", b"1", b"", b"\xff\xfe", b"", b"CURVE", bytes(32), bytes(32)],
        ],
    )
    def test_what_makes_no_sense_is_a_no(
        self, zap: curve.ZapHandler, request_frames: list[bytes]
    ) -> None:
        assert zap._answer(request_frames)[2] == b"400"


class TestTheWire(WithKeys):
    def test_what_passes_is_unreadable_and_cannot_be_changed(self, make: Make) -> None:
        """Goal: a pattern of weights is not in what a relay sees; a flipped bit ends the connection
        and no message comes of it. libzmq reads no further, so its heartbeat ends it."""
        pattern = random_bytes(7, "weights", 4096)
        timing = ZeroMqTiming(heartbeat_ms=200, heartbeat_timeout_ms=3_000)
        listener = make(name="switch", accepts=("worker",), timing=timing)
        where = tcp_endpoint(listener.listen(TCP))
        with Tap(where) as tap:
            dialler = dialling(make, tap.endpoint, name="worker-0")
            meet(listener, dialler)
            dialler.send("parent", b"header-in-clear", [pattern * 20])
            assert bytes(message(listener).buffers[0]) == pattern * 20
            assert len(tap.seen) > 20 * len(pattern)
            assert pattern[:32] not in tap.seen
            assert b"header-in-clear" not in tap.seen
            tap.flip = True
            dialler.send("parent", b"h", [pattern])
            down(listener)  # which a message before it would make fail

    def test_recorded_bytes_cannot_be_said_again(self, make: Make) -> None:
        """Goal: a whole recorded session, handshake and all, is refused: each connection has keys
        of its own."""
        listener = make(name="switch", accepts=("worker",))
        where = tcp_endpoint(listener.listen(TCP))
        with Tap(where) as tap:
            dialler = dialling(make, tap.endpoint, name="worker-0")
            meet(listener, dialler)
            dialler.send("parent", b"h", [b"x" * 1000])
            message(listener)
            recorded = bytes(tap.seen)
            dialler.close()
            down(listener)
        with socket.create_connection((where.host, where.port)) as again:
            again.sendall(recorded)
            assert "It was rejected" in refused(listener)
        nobody_came(listener)


class TestDowngrade:
    @pytest.mark.parametrize(
        ("verb", "has_key", "is_loopback", "insecure", "endpoint_has_key"),
        [
            each
            for each in itertools.product(
                ("listen", "dial"), *([(False, True)] * 4)  # type: ignore[list-item]
            )
            if not (each[0] == "listen" and each[4] != each[1])  # it shows the key it has
        ],
    )  # fmt: skip
    def test_every_combination(
        self, verb: str, has_key: bool, is_loopback: bool, insecure: bool, endpoint_has_key: bool
    ) -> None:
        """Goal: bytes leave the machine in clear only where --insecure says so, and a process with
        keys never talks to one without. Method: the rule said in another way than the code says."""
        endpoint = TcpEndpoint(
            "127.0.0.1" if is_loopback else "10.0.0.5", 7, bytes(32) if endpoint_has_key else None
        )
        if has_key or endpoint_has_key:
            is_allowed = has_key and endpoint_has_key
        else:
            is_allowed = is_loopback or insecure
        if is_allowed:
            check_secure(endpoint, insecure=insecure, own_key=has_key, verb=verb)
        else:
            with pytest.raises(ConfigError, match="--keys"):
                check_secure(endpoint, insecure=insecure, own_key=has_key, verb=verb)

    def test_keys_and_insecure_contradict(self, tmp_path: Path) -> None:
        own = security(make_keys(tmp_path / "keys"), "switch")
        with pytest.raises(ConfigError, match="contradict each other"):
            open_transport(TCP, insecure=True, security=own)

    def test_an_endpoint_with_a_key_of_others_is_not_listened_at(self, tmp_path: Path) -> None:
        own = security(make_keys(tmp_path / "keys"), "switch", "worker")
        public, _ = new_key_pair()
        with (
            open_transport(TCP, security=own) as transport,
            pytest.raises(ConfigError, match="names a key that is not ours"),
        ):
            transport.listen(str(TcpEndpoint("127.0.0.1", 0, public)))

    def test_a_role_started_again_listens_where_it_was(self, tmp_path: Path) -> None:
        """Goal: what `listen` returned can be listened at: the next start is given it."""
        own = security(make_keys(tmp_path / "keys"), "switch", "worker")
        with free_port() as port:
            with open_transport(TCP, security=own) as transport:
                where = transport.listen(f"tcp://127.0.0.1:{port}")
            with open_transport(TCP, security=own) as transport:
                assert transport.listen(where) == where


class TestTheLibrary:
    def test_one_without_curve_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zmq, "has", lambda name: name != "curve")
        with pytest.raises(ConfigError, match="built without CURVE"):
            check_curve()

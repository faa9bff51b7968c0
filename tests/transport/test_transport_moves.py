"""A peer that moves: places in turn, an endpoint that is looked up again, a name; and its key."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, ConnectionFailed
from luwu.transport.endpoints import MovableEndpoint, TcpEndpoint, parse_places
from luwu.transport.interface import PeerUp, Transport
from luwu.transport.sockets import SocketMonitor, ZeroMqTiming
from tests.helpers.key_directories import WithKeys
from tests.helpers.transports import OverZeroMq, tcp_endpoint
from tests.suites.free_port import free_port
from tests.suites.transport_waits import (
    Make,
    dialling,
    down,
    failed,
    meet,
    message,
    nobody_came,
    up,
)

FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
KEY = "ab" * 32


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as number:
        yield number


class Moving:
    """An endpoint that a test moves."""

    def __init__(self, endpoint: str) -> None:
        self.now: str | Exception = endpoint
        self.endpoint = MovableEndpoint(endpoint, self._look)

    def _look(self) -> str:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


def exchange(dialler: Transport, listener: Transport, child: str) -> None:
    """A message passes both ways."""
    dialler.send("parent", b"up")
    message(listener).release()
    listener.send(child, b"down")
    message(dialler).release()


class TestMoves(OverZeroMq):
    def test_places_are_tried_in_turn(self, make: Make, port: int) -> None:
        """Goal: the peer is found at the second place, and, when it ends there, at the first."""
        dialler, listener = make(), make()
        listener.listen(f"tcp://{SECOND}:{port}")
        dialler.dial("parent", f"tcp://{FIRST}:{port},{SECOND}:{port}")
        child, _ = meet(listener, dialler)
        exchange(dialler, listener, child)
        listener.close()
        assert down(dialler) == "parent"
        successor = make()
        successor.listen(f"tcp://{FIRST}:{port}")
        child, _ = meet(successor, dialler)
        exchange(dialler, successor, child)

    @pytest.mark.parametrize(
        ("nobody", "ms_max"), [("tcp://127.0.0.1:9", 200), ("ipc:///tmp/nobody", 100)]
    )
    def test_a_peer_that_was_away_is_found_soon(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, nobody: str, ms_max: int
    ) -> None:
        """Goal: pauses between attempts stay short. Method: libzmq tells each in milliseconds."""
        pauses_ms = []
        read = SocketMonitor.read

        def noted(self: SocketMonitor) -> Iterator[tuple[int, int]]:
            for event, value in read(self):
                if event == zmq.EVENT_CONNECT_RETRIED:
                    pauses_ms.append(value)
                yield event, value

        monkeypatch.setattr(SocketMonitor, "read", noted)
        dialler = make(timing=ZeroMqTiming())
        dialler.dial("parent", nobody)
        while len(pauses_ms) < 6:
            dialler.receive(10**9)
        assert max(pauses_ms) <= ms_max, pauses_ms

    def test_a_place_is_looked_up_again(self, make: Make, port: int) -> None:
        """Goal: the peer is found where it is said to be by then, before it was ever up and after;
        while nothing can be looked up, where it was."""
        moving = Moving(f"tcp://{FIRST}:{port}")
        dialler, listener = make(), make()
        dialler.dial("parent", moving.endpoint)
        assert f"{FIRST}:{port}" in str(failed(dialler).error)
        moving.now = f"tcp://{SECOND}:{port}"
        listener.listen(moving.now)
        meet(listener, dialler)

        moving.now = ConfigError("the file is gone")
        listener.close()
        assert down(dialler) == "parent"
        again = make()
        again.listen(f"tcp://{SECOND}:{port}")
        meet(again, dialler)

        again.close()
        moving.now = f"tcp://localhost:{port}"
        assert down(dialler) == "parent"
        last = make()
        last.listen(moving.now)
        child, _ = meet(last, dialler)
        exchange(dialler, last, child)

    def test_it_is_looked_up_before_the_first_attempt(self, make: Make, port: int) -> None:
        """Goal: what was written when the process was started need not be where the peer is."""
        moving = Moving(f"tcp://{FIRST}:{port}")
        moving.now = f"tcp://{SECOND}:{port}"
        dialler, listener = make(), make()
        listener.listen(moving.now)
        dialler.dial("parent", moving.endpoint)
        meet(listener, dialler)

    def test_what_cannot_be_looked_up_is_told_once(self, make: Make, port: int) -> None:
        moving = Moving(f"tcp://{FIRST}:{port}")
        moving.now = ConfigError("the directory does not answer")
        dialler = dialling(make, moving.endpoint)
        assert str(failed(dialler).error) == "the directory does not answer"
        assert "nothing listens" in str(failed(dialler).error)
        until_ns = SYSTEM_CLOCK.now_ns() + 200_000_000  # some attempts
        while SYSTEM_CLOCK.now_ns() < until_ns:
            assert dialler.receive(10_000_000) is None

    def test_a_place_must_be_one_that_may_be_dialled(self, make: Make, port: int) -> None:
        """Goal: neither at first nor later is anything dialled off loopback without keys."""
        with pytest.raises(ConfigError, match="names no public key"):
            make().dial("parent", f"tcp://{FIRST}:{port},192.0.2.1:{port}")
        moving = Moving(f"tcp://{FIRST}:{port}")
        dialler = dialling(make, moving.endpoint)
        assert "nothing listens" in str(failed(dialler).error)
        moving.now = f"tcp://192.0.2.1:{port}"
        assert "names no public key" in str(failed(dialler).error)

    def test_one_known_host_is_enough(self, make: Make, port: int) -> None:
        """Goal: of a host that is gone the name may be gone too."""
        dialler, listener = make(insecure=True), make()
        listener.listen(f"tcp://{FIRST}:{port}")
        dialler.dial("parent", f"tcp://no-host.invalid:{port},{FIRST}:{port}")
        meet(listener, dialler)
        with pytest.raises(ConnectionFailed, match=r"resolve the host 'no-other\.invalid'"):
            make(insecure=True).dial("parent", "tcp://no-host.invalid:5,no-other.invalid:5")


class TestWithKeys(WithKeys):
    """I7. A process is followed wherever it goes, if it has the key that it had."""

    @pytest.mark.feature("a lost switch or node on another host")
    def test_another_key_is_not_followed(self, make: Make, port: int) -> None:
        """Goal: who changes a file or a name cannot put a process of another key, or of none, in
        the place of a peer; with its own key the peer is followed. Method: the other process is
        there, and would let this one in."""
        before = make(name="switch", accepts=("worker",))
        was = tcp_endpoint(before.listen(f"tcp://{FIRST}:{port}"))
        moving = Moving(str(was))
        worker = dialling(make, moving.endpoint, name="worker-0")
        meet(before, worker)
        stranger = make(name="node", accepts=("worker",))
        theirs = stranger.listen(f"tcp://{SECOND}:{port}")

        moving.now = theirs
        before.close()
        assert down(worker) == "parent"
        said = ""
        while "with another public key" not in said:
            said = str(failed(worker).error)
        moving.now = f"tcp://{SECOND}:{port}"  # none
        while "names no public key" not in said:
            said = str(failed(worker).error)
        nobody_came(stranger)

        moving.now = str(TcpEndpoint(SECOND, port, was.key))  # they do not have it
        while "it is not this run" not in said:
            said = str(failed(worker).error)
        successor = make(name="switch", accepts=("worker",))
        moving.now = successor.listen(f"tcp://{THIRD}:{port}")
        assert up(worker) == "parent"
        there = [successor.receive(10**9)]
        assert any(isinstance(each, PeerUp) for each in there), there


def test_a_key_holds_for_the_places_after_it() -> None:
    """Goal: no place is dialled without the key that the first one names."""
    places = parse_places(f"tcp://{KEY}@a:1,b:2,[::1]:3")
    assert [str(each) for each in places] == [
        f"tcp://{KEY}@a:1", f"tcp://{KEY}@b:2", f"tcp://{KEY}@[::1]:3",
    ]  # fmt: skip
    assert [str(each) for each in parse_places("tcp://a:1,b:2")] == ["tcp://a:1", "tcp://b:2"]
    assert len(parse_places("ipc:///tmp/a,b")) == 1
    with pytest.raises(ConfigError, match="is not an endpoint"):
        parse_places("tcp://a:1,")


_NAMED = """
import sys
from pathlib import Path
from luwu.transport.zeromq import ZeroMqTransport
from tests.suites.transport_waits import dialling, down, meet
from tests.helpers.transports import QUICK

file, port = Path(sys.argv[1]), sys.argv[2]
dialler = ZeroMqTransport(timing=QUICK, insecure=True)
dialler.dial("parent", f"tcp://the-switch:{port}")
for address in ("127.0.0.1", "127.0.0.2"):
    file.write_text(f"{address} the-switch\\n")
    listener = ZeroMqTransport(timing=QUICK)
    listener.listen(f"tcp://{address}:{port}")
    meet(listener, dialler)
    listener.close()
    assert down(dialler) == "parent"
dialler.close()
"""


def test_a_host_name_is_looked_up_again(tmp_path: Path, port: int) -> None:
    """Goal: a peer that is dialled by a name is found at the address that the name has by then.
    Method: a namespace with its own /etc/hosts, which is changed."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.3 the-switch\n")
    enter = 'mount --bind "$0" /etc/hosts && exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", enter, str(hosts),
         sys.executable, "-c", _NAMED, str(hosts), str(port)],
        env=os.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode and "Traceback" not in done.stderr:
        pytest.skip(f"this machine has no namespaces: {done.stderr}")
    assert done.returncode == 0, done.stderr

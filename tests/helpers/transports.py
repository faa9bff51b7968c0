"""What the tests of several transports share: how they are made, strangers, and what is left.

A class of tests takes its fixtures from those here that it names as bases: `Over...` says how its
transports are made, `At...` where they may listen.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from luwu.transport.endpoints import TcpEndpoint, parse
from luwu.transport.interface import Transport
from luwu.transport.shm import ShmTransport
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.zeromq import ZeroMqTransport
from tests.suites.free_port import free_port
from tests.suites.transport_waits import MIB, Make

QUICK = ZeroMqTiming(reconnect_ms=10, reconnect_ms_max=50, handshake_ms=1_000)
"""A process that is held up for less than a second loses no handshake."""
TCP = "tcp://127.0.0.1:0"

Raw = Callable[..., zmq.Socket[bytes]]


@contextmanager
def maker(kind: Callable[..., Transport], **defaults: object) -> Iterator[Make]:
    """Makes transports of a kind; they are closed at the end."""
    made: list[Transport] = []

    def new(**options: object) -> Transport:
        made.append(kind(**{"timing": QUICK, **defaults, **options}))
        return made[-1]

    yield new
    for transport in made:
        transport.close()


class WithRawSockets:
    """Beside the transports of the test, ZeroMQ sockets that know nothing of us."""

    @pytest.fixture
    def raw(self) -> Iterator[Raw]:
        with zmq.Context() as context:
            made = []

            def new(kind: int, **options: object) -> zmq.Socket[bytes]:
                made.append(context.socket(kind))
                made[-1].linger = 0
                for name, value in options.items():
                    setattr(made[-1], name, value)
                return made[-1]

            yield new
            for each in made:
                each.close()


class OverZeroMq(WithRawSockets):
    """Transports over ZeroMQ."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(ZeroMqTransport) as new:
            yield new


class AtShm:
    """Listening at a path, with shared memory."""

    @pytest.fixture
    def endpoint(self) -> str:
        return "shm://auto"

    @pytest.fixture
    def free_endpoint(self, tmp_path: Path) -> str:
        return f"shm://{tmp_path}/s"


class OverShm(AtShm):
    """Transports over shared memory, and where they may listen."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(ShmTransport, arena_bytes=128 * MIB) as new:
            yield new


class AtTcp:
    """Listening at tcp, where the system chooses the port."""

    @pytest.fixture
    def endpoint(self) -> str:
        return TCP

    @pytest.fixture
    def free_endpoint(self, make: Make) -> Iterator[str]:
        """As a transport calls it, which may add a key."""
        with free_port() as port:
            with make() as transport:
                where = transport.listen(f"tcp://127.0.0.1:{port}")
            yield where


class AtIpc:
    """Listening at a path."""

    @pytest.fixture
    def endpoint(self) -> str:
        return "ipc://auto"

    @pytest.fixture
    def free_endpoint(self, tmp_path: Path) -> str:
        return f"ipc://{tmp_path}/s"


class ListeningAtTcp:
    """A listener at tcp, and where strangers find it."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make()

    @pytest.fixture
    def where(self, listener: Transport) -> str:
        return listener.listen(TCP)


_USE = """
import gc, os
from {kind.__module__} import {kind.__name__}
from tests.suites.transport_waits import meet, message
def held():
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("luwu-arena" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped
def use():
    a, b, c = ({kind.__name__}(**{options}) for _ in range(3))
    for number, endpoint in enumerate({endpoints}):
        b.dial(f"peer {{number}}", a.listen(endpoint))
    c.dial("nobody", {endpoints}[0].partition(":")[0] + ":///nowhere/s")
    c.receive(10**9)
    for peer in meet(b, b, a, a)[:2]:
        b.send(peer, b"h", [b.reserve(1 << 18), bytes(1 << 20)])
        delivery = message(a)
        a.send(delivery.peer, b"h", [a.reserve(100), delivery.buffers[0]])
        del delivery
    for each in (a, b, c): each.close()
use()
before = held()
for _ in range(3): use()
assert held() == before, (before, held())
assert before[2] == 0
"""


def check_nothing_is_left(
    kind: type[Transport], endpoints: tuple[str, str], directory: Path, **options: object
) -> None:
    """T6, I8. Use everything in a process of its own and compare what it holds before and after:
    descriptors, threads and arenas; it may leave no file either.

    pyzmq's collector thread and its two descriptors are not ours to end.
    """
    script = _USE.format(kind=kind, endpoints=endpoints, options=options)
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "XDG_RUNTIME_DIR": str(directory)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(directory.iterdir())


def tcp_endpoint(text: str) -> TcpEndpoint:
    """What a text says that must be an endpoint over tcp."""
    found = parse(text)
    assert isinstance(found, TcpEndpoint)
    return found


def open_files() -> int:
    """How many files this process has open."""
    gc.collect()  # of what earlier tests left to it
    return len(os.listdir("/proc/self/fd"))


def listening_process(
    kind: type[Transport], endpoint: str, **options: object
) -> tuple[subprocess.Popen[str], str]:
    """A process that listens and takes what comes, and where it listens."""
    script = (
        f"import sys; from {kind.__module__} import {kind.__name__}; "
        f"t = {kind.__name__}(**{options!r}); "
        "print(t.listen(sys.argv[1]), flush=True); \nwhile True: t.receive(None)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, endpoint], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()

"""What the tests of several transports share: how they are made, strangers, and what is left.

A class of tests takes its fixtures from those here that it names as bases: `Over...` says how its
transports are made, `At...` where they may listen.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from luwu.transport import (
    ShmTransport,
    StripedTransport,
    Transport,
    ZeroMqTiming,
    ZeroMqTransport,
)
from luwu.transport.stripes import LINK_ID_BYTES, Announced, announcement
from tests.suites.free_port import free_port
from tests.suites.transport_waits import MIB, Make

QUICK = ZeroMqTiming(reconnect_ms=10, reconnect_ms_max=50, handshake_ms=1_000)
"""A process that is held up for less than a second loses no handshake."""
TCP = "tcp://127.0.0.1:0"
LINK_ID = bytes(range(LINK_ID_BYTES))

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


@contextmanager
def raw_sockets() -> Iterator[Raw]:
    """Makes ZeroMQ sockets that know nothing of us."""
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


class WithRawSockets:
    """Beside the transports of the test, sockets that know nothing of us."""

    @pytest.fixture
    def raw(self) -> Iterator[Raw]:
        with raw_sockets() as new:
            yield new


class OverZeroMq(WithRawSockets):
    """Transports over ZeroMQ."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(ZeroMqTransport) as new:
            yield new


class OverStripes(WithRawSockets):
    """Transports whose links have three connections."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(StripedTransport, stripes=3, io_threads=2) as new:
            yield new


class OverShm:
    """Transports over shared memory, and where they may listen."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(ShmTransport, arena_bytes=128 * MIB) as new:
            yield new

    @pytest.fixture
    def endpoint(self) -> str:
        return "shm://auto"


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


def announced(
    raw: Raw, where: str, index: int, count: int, link_id: bytes = LINK_ID
) -> zmq.Socket[bytes]:
    """A raw socket that says it is a stripe."""
    stripe = raw(zmq.DEALER)
    stripe.connect(where)
    stripe.send(announcement(Announced(link_id, index, count)))
    return stripe


def check_nothing_is_left(script: str, directory: Path) -> None:
    """Run a script that compares what its process holds; it may leave no file of ours either."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(directory.iterdir())


def open_files() -> int:
    """How many files this process has open."""
    gc.collect()  # of what earlier tests left to it
    return len(os.listdir("/proc/self/fd"))


class Relay:
    """A tcp port that hands on to another one, as a network does, and may lose a connection."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.bytes_of: list[int] = []
        """What those who connect have sent, on each connection."""
        self._threads = [threading.Thread(target=self._accept)]
        self.connections_count_max = 1000
        """What comes beyond is accepted and never handed on."""
        self._threads[0].start()

    @property
    def connections_count(self) -> int:
        """Connections that were handed on."""
        return len(self._pairs)

    def cut(self, index: int) -> None:
        """Lose one connection, the first one being 0."""
        for each in self._pairs[index]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for index in range(len(self._pairs)):
            self.cut(index)
        for thread in self._threads[1:]:
            thread.join()
        for pair in self._pairs:
            for each in pair:
                each.close()
        self._server.close()

    def _accept(self) -> None:
        silent: list[socket.socket] = []
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                break
            if len(self._pairs) >= self.connections_count_max:
                silent.append(near)
                continue
            far = socket.create_connection(self._target)
            self.bytes_of.append(0)
            self._pairs.append((near, far))
            index = len(self._pairs) - 1
            for one, other, counts in ((near, far, True), (far, near, False)):
                arguments = (one, other, index if counts else None)
                self._threads.append(threading.Thread(target=self._hand_on, args=arguments))
                self._threads[-1].start()
        for near in silent:
            near.close()

    def _hand_on(self, one: socket.socket, other: socket.socket, index: int | None) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if index is not None:  # before: what has come is in the count
                    self.bytes_of[index] += len(data)
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@contextmanager
def relay(endpoint: str) -> Iterator[Relay]:
    """A relay to an endpoint; closed at the end."""
    made = Relay(endpoint)
    try:
        yield made
    finally:
        made.close()


def listening_process(
    kind: type[Transport], endpoint: str, **options: object
) -> tuple[subprocess.Popen[str], str]:
    """A process that listens and takes what comes, and where it listens."""
    script = (
        f"import sys; from luwu.transport import {kind.__name__}; "
        f"t = {kind.__name__}(**{options!r}); "
        "print(t.listen(sys.argv[1]), flush=True); \nwhile True: t.receive(None)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, endpoint], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()

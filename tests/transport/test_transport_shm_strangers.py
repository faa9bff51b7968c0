"""What strangers, and peers that lie, do to a transport over shared memory."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.errors import RemoteProtocolError
from luwu.transport import descriptors, notices
from luwu.transport.interface import LISTENER, Delivery, PeerFailed, PeerGone, Transport
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.transports import QUICK, OverShm, open_files
from tests.suites.transport_waits import (
    DEADLINE_NS,
    Make,
    dialling,
    down,
    failed,
    meet,
    message,
    up,
)


class TestStrangers(OverShm):
    """T5: nothing that arrives may raise, or disturb those who are let in."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make()

    @pytest.fixture
    def where(self, listener: Transport, endpoint: str) -> str:
        return listener.listen(endpoint)

    @pytest.fixture
    def stranger(self, make: Make) -> Iterator[ZeroMqTransport]:
        """A ZeroMQ transport: it says what it likes to a transport over shared memory."""
        with ZeroMqTransport(timing=QUICK, header_bytes_max=5000) as transport:
            yield transport

    @pytest.fixture
    def greeted(
        self, listener: Transport, where: str, stranger: ZeroMqTransport
    ) -> tuple[str, socket.socket]:
        """Let the stranger in: its name at the listener, and its descriptor connection."""
        token = bytes(16)
        stranger.dial("parent", where.replace("shm://", "ipc://"))
        up(stranger)
        channel = descriptors.connect(Path(where.removeprefix("shm://")), token)
        stranger.send("parent", notices.greeting(token))
        peer = up(listener)
        assert message(stranger).header == notices.met()
        return peer, channel

    @pytest.mark.parametrize(
        "first",
        [
            b"hello",
            notices.met(),
            notices.greeting(bytes(16)),
            notices.greeting(b"x"),
            b"\0" * 4000,
        ],
    )
    def test_who_does_not_greet_is_never_up(
        self, listener: Transport, where: str, stranger: ZeroMqTransport, first: bytes
    ) -> None:
        """T1. Goal: reported once, as a stranger; and its end is no news."""
        stranger.dial("parent", where.replace("shm://", "ipc://"))
        up(stranger)
        stranger.send("parent", first)
        event = failed(listener)
        assert event.peer == LISTENER
        assert isinstance(event.error, RemoteProtocolError)
        stranger.send("parent", b"more")
        assert listener.receive(50_000_000) is None
        stranger.close()
        assert listener.receive(50_000_000) is None

    def test_a_greeting_is_for_one(
        self, listener: Transport, where: str, greeted: tuple[str, socket.socket]
    ) -> None:
        """Goal: a silent connection that ends is a stranger; a used token lets nobody else in."""
        with greeted[1], ZeroMqTransport(timing=QUICK) as other:
            other.dial("parent", where.replace("shm://", "ipc://"))
            up(other)
            other.send("parent", notices.greeting(bytes(16)))
            assert failed(listener).peer == LISTENER
        with ZeroMqTransport(timing=QUICK) as silent:
            silent.dial("parent", where.replace("shm://", "ipc://"))
            up(silent)
        assert "disconnected without a greeting" in str(failed(listener).error)

    def test_a_listener_of_another_kind(self, make: Make, tmp_path: Path) -> None:
        """Goal: what listens without passing descriptors is told, and never up."""
        with ZeroMqTransport(timing=QUICK) as other:
            other.listen(f"ipc://{tmp_path}/s")
            dialler = dialling(make, f"shm://{tmp_path}/s")
            event = failed(dialler)
            assert event.peer == "parent"
            assert "takes no descriptors" in str(event.error)
            with pytest.raises(PeerGone):
                dialler.send("parent", b"h")
            up(other)
            dialler.close()
            down(other)

    def test_descriptors_that_are_no_arenas(
        self, listener: Transport, stranger: ZeroMqTransport, greeted: tuple[str, socket.socket]
    ) -> None:
        """Goal: a file, a memfd that can shrink, a wrong size, no descriptor, a closed channel:
        each is refused and closed, the message is dropped and its memory given back."""
        peer, channel = greeted
        before = open_files()
        good, loose = sealed_memfd(8192), os.memfd_create("loose", os.MFD_ALLOW_SEALING)
        os.ftruncate(loose, 8192)
        with tempfile.TemporaryFile() as file:
            file.truncate(8192)
            passes = [
                lambda: descriptors.pass_arena(channel, file.fileno(), 8192),
                lambda: descriptors.pass_arena(channel, loose, 8192),
                lambda: descriptors.pass_arena(channel, good, 4096),
                lambda: channel.send(b"nonsense"),
                lambda: socket.send_fds(channel, [b"nonsense"], [good]),
                lambda: socket.send_fds(channel, [b"x" * 100], [good, loose, good]),
                lambda: None,
            ]
            for index, pass_it in enumerate(passes):
                pass_it()
                span = notices.Span(index, 0, 10)
                stranger.send("parent", notices.shared(index + 1, 1, [span], b"h"))
                event = failed(listener)
                assert event.peer == peer
                listener.receive(0)
                assert message(stranger).header == notices.numbers(notices.RELEASED, [index + 1])
        descriptors.pass_arena(channel, good, 8192)
        span = notices.Span(len(passes) - 1, 0, 10)
        stranger.send("parent", notices.shared(len(passes) + 1, 1, [span], b"h"))
        assert message(listener).header == b"h"
        os.close(good)
        os.close(loose)
        channel.close()
        assert open_files() == before  # less the channel's, and the good one is kept

    @pytest.mark.parametrize("seed", range(8))
    def test_hostile_notices(
        self, make: Make, listener: Transport, where: str, stranger: ZeroMqTransport,
        greeted: tuple[str, socket.socket], seed: int,
    ) -> None:  # fmt: skip
        """Goal: whatever a peer that was let in says, it is dropped and reported under its name,
        or it is a message within the arena that it passed; another peer is not disturbed.
        Method: 300 notices, half of them valid ones with bytes changed, cut or added; seeded."""
        rng = random.Random(seed)
        peer, channel = greeted
        good = sealed_memfd(8192)
        descriptors.pass_arena(channel, good, 8192)
        os.close(good)
        honest = dialling(make, where)
        child, _ = meet(listener, honest)
        listener.send(peer, b"h", [listener.reserve(10)])
        sequence = 1
        for _ in range(300):
            notice, frames = hostile_notice(rng, sequence)
            stranger.send("parent", notice, frames)
            stranger.send("parent", notices.inline(b"fence"))
            header = b""
            while header != b"fence":
                received = listener.receive(DEADLINE_NS)
                if received is None:  # the stranger gave back what it was lent
                    continue
                assert isinstance(received, Delivery | PeerFailed), (seed, received)
                assert received.peer == peer, seed
                if isinstance(received, Delivery):
                    header = received.header
                    for view in received.buffers:
                        bytes(view)
                    received.release()
            sequence = listener._links[peer].heard_sequence + 1
        channel.close()
        honest.send("parent", b"still here", [honest.reserve(10)])
        delivery = message(listener)
        assert (delivery.peer, delivery.header) == (child, b"still here")


def hostile_notice(rng: random.Random, sequence: int) -> tuple[bytes, list[bytes]]:
    """A notice that may be wrong, and its frames."""
    big = rng.choice([0, 1, 4096, 8191, 8192, 2**32, 2**63, 2**64 - 1])
    span = notices.Span(rng.choice([0, 0, 0, 1, 2**32 - 1]), big, rng.choice([0, 1, 10, big]))
    notice = rng.choice(
        [
            notices.shared(sequence, 1, [span], b"h"),
            notices.shared(sequence, 1, [notices.Span(0, 0, 10)], b"h"),
            notices.shared(sequence, rng.randrange(256), [notices.Span(0, 1, 10), span], b"h"),
            notices.shared(rng.choice([0, sequence - 1, sequence + 1]), 1, [span], b"h"),
            notices.numbers(
                notices.RELEASED, [rng.choice([0, 1, 2, 2**64 - 1])] * rng.randrange(9)
            ),
            notices.numbers(notices.FORGOTTEN, [rng.choice([1, 2, 2**64 - 1])]),
            notices.inline(b"h"),
            notices.inline(b""),
            notices.greeting(bytes(16)),
            notices.met(),
            rng.randbytes(rng.randrange(1, 200)),
        ]
    )
    if rng.random() < 0.5:
        changed = bytearray(notice)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cut = rng.randrange(1, len(changed) + 1) if rng.random() < 0.3 else len(changed)
        notice = bytes(changed[:cut]) + rng.randbytes(rng.choice([0, 0, 1, 8]))
    return notice, [b"frame"] * rng.choice([0, 0, 0, 1, 2])


def sealed_memfd(nbytes: int) -> int:
    fd = os.memfd_create("luwu-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd

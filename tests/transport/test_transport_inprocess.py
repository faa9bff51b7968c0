"""The transport inside one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import Transport
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import DEADLINE_NS, Make, message, pair


class TestInProcessTransport(TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        network = InProcessNetwork()
        made: list[Transport] = []

        def new(**options: int) -> Transport:
            made.append(network.transport(**options))
            return made[-1]

        yield new
        for transport in made:
            transport.close()
        assert not network.listeners
        assert not network.seekers

    @pytest.fixture
    def endpoint(self) -> str:
        return "inproc://auto"

    def test_done_when_released_and_not_before(self, make: Make, endpoint: str) -> None:
        """T4. Goal: the receiver sees the sender's memory; handle and credit wait for it."""
        listener, dialler, _child = pair(make, endpoint)
        view = dialler.reserve(100)
        handle = dialler.send("parent", b"h", [view])
        delivery = message(listener)
        view[0] = 7  # what the interface forbids, to see that nothing was copied
        assert delivery.buffers[0][0] == 7
        assert delivery.is_shared
        assert not handle.done
        assert dialler.credit("parent") == 256 * 1024 * 1024 - 101

        delivery.release()

        assert handle.done
        assert dialler.credit("parent") == 256 * 1024 * 1024

    def test_a_blocked_sender_hears_of_returns(self, make: Make, endpoint: str) -> None:
        """Goal: `receive` without a limit ends when the peer gave the buffer back."""
        listener, dialler, _child = pair(make, endpoint)
        handle = dialler.send("parent", b"h", [dialler.reserve(100)])
        releaser = threading.Thread(target=lambda: message(listener).release())
        releaser.start()
        while not handle.done:
            assert dialler.receive(DEADLINE_NS) is None
        releaser.join()

"""The transport inside one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import Transport
from tests.suites.transport_suite import ByReferenceSuite, TransportSuite
from tests.suites.transport_waits import Make


class TestInProcessTransport(TransportSuite, ByReferenceSuite):
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

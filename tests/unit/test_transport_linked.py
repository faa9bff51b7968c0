"""A transport behind emulated links: the suite over lossless links, then what links do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.links import LinkPair, LinkSpec
from luwu.transport import InProcessNetwork, Received, Transport, ZeroMqTransport
from switch_emu.linked import LinkedTransport
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import Make
from tests.unit.transports import QUICK, AtTcp

LATE = LinkSpec(rate_bytes_per_s=1e10, delay_ns=200_000, jitter_ns=100_000)
LOSSLESS = LinkPair(up=LATE, down=LATE)
SLICE_NS = 1_000_000


class Driven(LinkedTransport):
    """Lets all transports of a test work while one of them receives, as their shells would."""

    def __init__(self, inner: Transport, all_made: list[Driven]) -> None:
        super().__init__(inner, LOSSLESS, seed=1)
        self.all_made = all_made
        all_made.append(self)

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            for each in self.all_made:
                each.hand_on()
            now_ns = SYSTEM_CLOCK.now_ns()
            slice_ns = SLICE_NS if until_ns is None else max(0, min(SLICE_NS, until_ns - now_ns))
            received = super().receive(slice_ns)
            after_ns = SYSTEM_CLOCK.now_ns()
            if received is not None or after_ns < now_ns + slice_ns:
                return received
            if until_ns is not None and after_ns >= until_ns:
                return None


class TestLinkedInProcess(TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        network = InProcessNetwork()
        made: list[Driven] = []
        yield lambda **options: Driven(network.transport(**options), made)
        for transport in made:
            transport.close()
        assert not network.listeners

    @pytest.fixture
    def endpoint(self) -> str:
        return "inproc://auto"


class TestLinkedTcp(AtTcp, TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        made: list[Driven] = []
        yield lambda **options: Driven(ZeroMqTransport(timing=QUICK, **options), made)
        for transport in made:
            transport.close()

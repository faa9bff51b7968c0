"""A transport behind emulated links: the suite over lossless links, then what links do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.links import LinkPair, LinkSpec
from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import (
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerGone,
    Received,
    Transport,
)
from switch_emu.links.linked import LinkedTransport, linked
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import DEADLINE_NS, MIB, Make, meet, message

LATE = LinkSpec(rate_bytes_per_s=1e10, delay_ns=200_000, jitter_ns=100_000)
LOSSLESS = LinkPair(up=LATE, down=LATE)
SLICE_NS = 1_000_000


class Driven(LinkedTransport):
    """Lets all transports of a test work while one of them receives, as their shells would."""

    def __init__(self, inner: Transport, all_made: list[Driven]) -> None:
        super().__init__(inner, LOSSLESS, seed=1)
        self.all_made = all_made
        self.was_woken = False
        all_made.append(self)

    def wake(self) -> None:
        self.was_woken = True  # a slice that ends late is not told from one that was woken
        super().wake()

    def receive(self, timeout_ns: int | None) -> Received | None:
        until_ns = None if timeout_ns is None else SYSTEM_CLOCK.now_ns() + timeout_ns
        while True:
            for each in self.all_made:
                each.hand_on()
            now_ns = SYSTEM_CLOCK.now_ns()
            slice_ns = SLICE_NS if until_ns is None else max(0, min(SLICE_NS, until_ns - now_ns))
            received = super().receive(slice_ns)
            after_ns = SYSTEM_CLOCK.now_ns()
            if received is not None or self.was_woken or after_ns < now_ns + slice_ns:
                self.was_woken = False
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


# ---------------------------------------------------------------------- what links do


def ends(link: LinkPair, seed: int = 3) -> tuple[LinkedTransport, Transport, str]:
    """A listener that emulates a link, who dialled it, and that one's name."""
    network = InProcessNetwork()
    listener = LinkedTransport(network.transport(credit_bytes=MIB), link, seed=seed)
    dialler = network.transport(credit_bytes=MIB)
    dialler.dial("parent", listener.listen("inproc://auto"))
    child, _ = meet(listener, dialler)
    return listener, dialler, child


def slow(**options: float) -> LinkPair:
    spec = LinkSpec(**options)  # type: ignore[arg-type]
    return LinkPair(up=spec, down=spec)


def message_to(receiver: Transport, emulator: Transport) -> Delivery:
    """The next message, while the other end lets its links work."""
    while (heard := receiver.receive(0)) is None:
        emulator.receive(1_000_000)
    assert isinstance(heard, Delivery)
    return heard


@pytest.mark.parametrize("delay_ms", [0.3, 5.0])
def test_a_message_takes_its_delay_both_ways(delay_ms: float) -> None:
    """Goal: never earlier than asked, and `receive` wakes when it is due, not at its own deadline.
    Method: the best of several, since other work may hold this process up."""
    delay_ns = int(delay_ms * 1e6)
    listener, dialler, child = ends(slow(delay_ns=delay_ns))
    with listener, dialler:
        took_ns: dict[str, list[int]] = {"up": [], "down": []}
        for _ in range(20):
            start_ns = SYSTEM_CLOCK.now_ns()
            dialler.send("parent", b"up")
            message(listener)
            took_ns["up"].append(SYSTEM_CLOCK.now_ns() - start_ns)
            start_ns = SYSTEM_CLOCK.now_ns()
            listener.send(child, b"down")
            while (heard := dialler.receive(0)) is None:
                assert listener.receive(DEADLINE_NS) is None
            assert isinstance(heard, Delivery)
            took_ns["down"].append(SYSTEM_CLOCK.now_ns() - start_ns)
        for found in took_ns.values():
            assert delay_ns <= min(found) < DEADLINE_NS / 10


def test_the_end_of_a_peer_passes_none_of_its_messages() -> None:
    """T2. Goal: PeerDown comes after what is held; what was held for the peer is cut and given
    back, and its bytes count as dropped."""
    listener, dialler, child = ends(slow(delay_ns=200_000_000))
    with listener:
        for number in range(5):
            dialler.send("parent", b"%d" % number, [bytes(100)])
        assert listener.receive(0) is None  # they are on the link now
        handle = listener.send(child, b"never", [bytes(100)])
        assert not handle.done
        dialler.close()
        headers = []
        while not isinstance(heard := listener.receive(DEADLINE_NS), PeerDown):
            if heard is not None:
                assert isinstance(heard, Delivery)
                headers.append(heard.header)
                heard.release()
        assert headers == [b"%d" % number for number in range(5)]
        assert heard.peer == child
        assert handle.done
        ((peer, up, down),) = listener.links()
        assert peer == child
        assert (up.messages["received"], up.messages["in_flight"]) == (5, 0)
        assert [down.messages[kind] for kind in ("sent", "cut", "received")] == [1, 1, 0]
        with pytest.raises(PeerGone):
            listener.send(child, b"h")


def test_what_is_lost_is_given_back_at_once() -> None:
    """T4. Goal: a dropped message holds neither its sender's buffer nor credit, either way."""
    listener, dialler, child = ends(slow(loss_ratio=0.999999), seed=1)
    with listener, dialler:
        handle = dialler.send("parent", b"h", [dialler.reserve(1000)])
        assert listener.receive(0) is None
        assert handle.done
        assert dialler.credit("parent") == MIB
        handle = listener.send(child, b"h", [listener.reserve(1000)])
        assert handle.done
        assert listener.credit(child) == MIB


def test_copies_hold_the_buffer_until_the_last_is_released() -> None:
    """T4. Goal: a repeated message arrives twice, from one buffer that goes back once, after both;
    sent down, its handle is done when both copies are."""
    listener, dialler, child = ends(slow(duplicate_ratio=0.999999), seed=1)
    with listener, dialler:
        handle = dialler.send("parent", b"h", [dialler.reserve(1000)])
        first, second = message(listener), message(listener)
        first.release()
        first.release()
        assert not handle.done
        second.release()
        assert handle.done
        handle = listener.send(child, b"h", [listener.reserve(1000)])
        first, second = message(dialler), message(dialler)
        first.release()
        assert not handle.done
        second.release()
        assert handle.done
        assert listener.credit(child) == MIB


def test_held_bytes_use_up_credit() -> None:
    """T3. Goal: what waits on the link counts as queued; a header alone still passes."""
    listener, dialler, child = ends(slow(delay_ns=10_000_000))
    with listener, dialler:
        handle = listener.send(child, b"h", [bytes(MIB // 2)])
        assert listener.credit(child) == MIB - MIB // 2 - 1
        with pytest.raises(CreditExceeded, match=child):
            listener.send(child, b"h", [bytes(MIB // 2)])
        listener.send(child, b"header")
        arrived = [message_to(dialler, listener) for _ in range(2)]
        assert [delivery.header for delivery in arrived] == [b"h", b"header"]
        assert not handle.done
        for delivery in arrived:
            delivery.release()
        assert handle.done
        assert listener.credit(child) == MIB


def test_peers_that_were_dialled_pass_untouched() -> None:
    """Goal: only the upper end emulates: a switch's way to its node is the node's to emulate."""
    network = InProcessNetwork()
    switch = LinkedTransport(network.transport(), slow(delay_ns=10**12), seed=0)
    node = network.transport()
    with switch, node:
        switch.dial("parent", node.listen("inproc://auto"))
        child, _ = meet(node, switch)
        switch.send("parent", b"up")
        node.send(child, b"down")
        assert message(node).header == b"up"
        assert message(switch).header == b"down"
        assert switch.links() == []


def test_close_hands_on_what_is_due_soon() -> None:
    """T6. Goal: what was sent arrives although its sender closes; close does not wait for what is
    due much later."""
    for delay_ns, arrives in ((30_000_000, True), (10**12, False)):
        listener, dialler, child = ends(slow(delay_ns=delay_ns))
        with dialler:
            listener.send(child, b"last")
            listener.close()
            if arrives:
                assert message(dialler).header == b"last"
            assert isinstance(dialler.receive(DEADLINE_NS), PeerDown)


def test_a_wake_is_not_lost_among_messages() -> None:
    """Goal: `receive` returns None for a wake also while messages are held."""
    listener, dialler, _ = ends(slow(delay_ns=3_000_000))
    with listener, dialler:
        for _ in range(20):
            dialler.send("parent", b"h")
            listener.wake()
            got = [listener.receive(DEADLINE_NS), listener.receive(DEADLINE_NS)]
            assert sorted(type(each).__name__ for each in got) == ["Delivery", "NoneType"]


def test_ideal_links_are_no_links() -> None:
    """Goal: without a link nothing is wrapped, so nothing is added."""
    with InProcessNetwork().transport() as bare:
        assert linked(bare, None, seed=0) is bare
        assert linked(bare, LinkPair(), seed=0) is bare

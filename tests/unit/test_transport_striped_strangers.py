"""What strangers do to a listener whose peers have several connections."""

from __future__ import annotations

import pytest
import zmq

from luwu.base.errors import RemoteProtocolError
from luwu.transport import (
    LISTENER,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerUp,
    StripedTransport,
    Transport,
    ZeroMqTransport,
)
from luwu.transport.lanes import TURN_BYTES
from luwu.transport.stripes import ANNOUNCEMENT_BYTES, Announced, announcement
from tests.suites.transport_waits import (
    DEADLINE_NS,
    MIB,
    Make,
    down,
    failed,
    meet,
    message,
    next_of,
    until_true,
    up,
)
from tests.unit.transports import (
    LINK_ID,
    TCP,
    ListeningAtTcp,
    OverStripes,
    Raw,
    announced,
    maker,
)


class TestStrangers(OverStripes, ListeningAtTcp):
    """T5: nothing that arrives may raise, or disturb those who are let in."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make(credit_bytes=MIB)

    @pytest.mark.parametrize(
        "first", [b"x" * ANNOUNCEMENT_BYTES, announcement(Announced(LINK_ID, 0, 9)), b"x"]
    )
    def test_no_announcement(self, listener: Transport, where: str, raw: Raw, first: bytes) -> None:
        """Goal: told once, and not listened to."""
        stranger = raw(zmq.DEALER)
        stranger.connect(where)
        stranger.send(first)
        event = refused(listener)
        assert isinstance(event.error, RemoteProtocolError)
        for _ in range(100):
            stranger.send(b"more")
        assert listener.receive(50_000_000) is None

    def test_nobody_joins_a_link_twice(self, listener: Transport, where: str, raw: Raw) -> None:
        """Goal: who knows a link's number cannot take a stripe's place, before or after it is up;
        the link and its messages are not touched. Method: each stranger's refusal is awaited."""
        first = announced(raw, where, 0, 2)
        strangers = []
        for index, count in ((0, 2), (1, 3)):
            assert listener.receive(50_000_000) is None  # the first one was heard
            strangers.append(announced(raw, where, index, count))
            assert "is there already" in str(refused(listener).error)
        second = announced(raw, where, 1, 2)
        child = up(listener)
        strangers.append(announced(raw, where, 1, 2))
        assert "is there already" in str(refused(listener).error)
        for stranger in strangers:
            stranger.send_multipart([b"not this", bytes(TURN_BYTES)])
        first.send_multipart([b"0", bytes(TURN_BYTES)])
        second.send_multipart([b"1", bytes(TURN_BYTES)])
        assert [message(listener).header for _ in range(2)] == [b"0", b"1"]
        for stranger in strangers:
            stranger.close()
        first.send(b"2")
        delivery = message(listener)
        assert (delivery.peer, delivery.header) == (child, b"2")

    @pytest.mark.parametrize("ends", [False, True])
    def test_half_a_link_is_refused_in_time(
        self, listener: StripedTransport, where: str, raw: Raw, ends: bool
    ) -> None:
        """Goal: told once, its messages are dropped, and a late stripe is half a link again."""
        first = announced(raw, where, 0, 2)
        first.send(b"too early")
        if ends:
            until_true(lambda: bool(listener._links.timed), listener)  # it was heard
            first.close()
        event = refused(listener)
        assert "wanted 2 connections, but only 1 of 2" in str(event.error)
        late = announced(raw, where, 1, 2)
        late.send(b"late")
        assert "only 1 of 2" in str(refused(listener).error)
        assert listener.receive(50_000_000) is None

    def test_half_a_link_is_refused_though_others_never_rest(
        self, make: Make, listener: Transport, where: str, raw: Raw
    ) -> None:
        """Goal: a load that leaves the listener no pause does not keep half links for ever."""
        busy = make(stripes=1)
        busy.dial("parent", where)
        meet(listener, busy)
        announced(raw, where, 0, 2)
        while True:
            busy.send("parent", b"more")
            busy.send("parent", b"more")
            received = listener.receive(DEADLINE_NS)
            if isinstance(received, PeerFailed):
                break
            assert isinstance(received, Delivery)
        assert "only 1 of 2" in str(received.error)

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_too_much_ahead_of_its_turn(
        self, listener: Transport, where: str, raw: Raw, is_whole: bool
    ) -> None:
        """Goal: what must be held is bounded by the credit and one buffer; who exceeds it is
        named, and out."""
        stripe = announced(raw, where, 1, 2)
        child = LISTENER
        if is_whole:
            announced(raw, where, 0, 2)
            child = up(listener)
        for _ in range(5):
            stripe.send_multipart([b"h", bytes(16 * MIB)])
        event = failed(listener)
        assert (event.peer, event.final) == (child, False)
        assert isinstance(event.error, RemoteProtocolError)
        assert "ahead of their turn" in str(event.error)
        if is_whole:
            assert repr(child) in str(event.error)
            assert down(listener) == child
        stripe.send(b"more")
        assert listener.receive(50_000_000) is None

    def test_a_message_beyond_the_limits_bears_the_peers_name(
        self, listener: Transport, where: str, raw: Raw
    ) -> None:
        """Goal: it is dropped and told, and what follows arrives."""
        first = announced(raw, where, 0, 2)
        announced(raw, where, 1, 2)
        child = up(listener)
        first.send_multipart([b"", b"buffer"])
        assert failed(listener).peer == child
        first.send(b"good")
        assert message(listener).header == b"good"

    def test_a_plain_listener_takes_no_announcement(self, raw: Raw) -> None:
        """Goal: shared memory, which has a ZeroMQ transport inside, learns nothing new."""
        with maker(ZeroMqTransport) as make:
            listener = make()
            announced(raw, listener.listen(TCP), 0, 2)
            assert "did not begin with an empty message" in str(refused(listener).error)


def refused(listener: Transport) -> PeerFailed:
    """The next thing, which must be a stranger's refusal."""
    event = next_of(listener, PeerFailed, PeerUp, PeerDown, Delivery)
    assert isinstance(event, PeerFailed), event
    assert (event.peer, event.final) == (LISTENER, False)
    return event

"""The transport over several connections at once: the suite, the order, and the life of a link."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from luwu.base.errors import ConfigError, ConnectionFailed, RemoteProtocolError
from luwu.base.limits import STRIPES_MAX
from luwu.transport import (
    LISTENER,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    ShmTransport,
    StripedTransport,
    Transport,
    ZeroMqTransport,
)
from luwu.transport.lanes import TURN_BYTES
from luwu.transport.opening import io_threads_for, open_transport
from luwu.transport.stripes import (
    ANNOUNCEMENT_BYTES,
    LINK_ID_BYTES,
    Announced,
    InOrder,
    announcement,
    read_announcement,
)
from tests.suites.transport_suite import (
    DEADLINE_NS,
    MIB,
    Make,
    TransportSuite,
    down,
    failed,
    meet,
    message,
    next_of,
    pair,
    until_true,
    up,
)
from tests.unit.transports import QUICK, Raw, check_nothing_is_left, maker, raw_sockets, relay

TCP = "tcp://127.0.0.1:0"
SOON = replace(QUICK, linger_ms=100)
"""For tests that wait until a link that lost a stripe is given up."""
LINK_ID = bytes(range(LINK_ID_BYTES))


@pytest.fixture
def make() -> Iterator[Make]:
    with maker(StripedTransport, stripes=3, io_threads=2) as new:
        yield new


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_sockets() as new:
        yield new


class TestOneStripe(TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(StripedTransport) as new:
            yield new

    @pytest.fixture
    def endpoint(self) -> str:
        return TCP


class TestTcpOverThree(TransportSuite):
    @pytest.fixture
    def make(self, make: Make) -> Make:
        return make  # that of the module

    @pytest.fixture
    def endpoint(self) -> str:
        return TCP


class TestIpcOverTwo(TransportSuite):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(StripedTransport, stripes=2) as new:
            yield new

    @pytest.fixture
    def endpoint(self) -> str:
        return "ipc://auto"

    @pytest.fixture
    def free_endpoint(self, tmp_path: Path) -> str:
        return f"ipc://{tmp_path}/s"


def sent_in_turns(rng: random.Random, count: int, stripes: int) -> list[list[Delivery]]:
    """Numbered messages of many sizes, each on the stripe that a sender would use."""
    found: list[list[Delivery]] = [[] for _ in range(stripes)]
    turn = turn_bytes = 0
    for number in range(count):
        size = rng.choice([None, 0, 1, 5_000, TURN_BYTES - 1, TURN_BYTES, 3 * TURN_BYTES])
        buffers = [] if size is None else [memoryview(bytes(size))]
        header = b"%d" % number
        found[turn].append(Delivery("", header, buffers))
        turn_bytes += len(header) + (size or 0)
        if turn_bytes >= TURN_BYTES:
            turn, turn_bytes = (turn + 1) % stripes, 0
    return found


class TestInOrder:
    @pytest.mark.parametrize("seed", range(20))
    def test_the_order_does_not_depend_on_which_stripe_is_faster(self, seed: int) -> None:
        """T2. Goal: messages come out as they were sent, each as early as it can be. Method: any
        merge of the stripes; in half of the cases one stripe ends early."""
        rng = random.Random(seed)
        stripes = rng.randint(2, STRIPES_MAX)
        sent = sent_in_turns(rng, 300, stripes)
        lost = rng.randrange(2 * stripes)
        if lost < stripes:
            del sent[lost][len(sent[lost]) // 2 :]
        messages = InOrder(stripes, held_bytes_max=1 << 40)
        got = []
        places = [0] * stripes
        for index in rng.sample(
            [i for i, each in enumerate(sent) for _ in each], k=sum(map(len, sent))
        ):
            messages.put(index, sent[index][places[index]])
            places[index] += 1
            while (delivery := messages.take()) is not None:
                got.append(int(delivery.header))
        assert got == list(range(len(got)))
        assert not messages.are_too_many
        if lost < stripes:
            assert not messages.is_over
            messages.end(lost)
            assert messages.is_over
        else:
            assert len(got) == 300

    def test_what_is_ahead_is_bounded(self) -> None:
        """T5. Goal: bytes ahead of their turn count, those in order do not."""
        messages = InOrder(2, held_bytes_max=MIB)
        for _ in range(10):
            messages.put(0, Delivery("", b"h", [memoryview(bytes(MIB))]))
            assert messages.take() is not None
            assert not messages.are_too_many
            messages.put(1, Delivery("", b"h", [memoryview(bytes(MIB))]))
            assert messages.take() is not None
        messages.put(1, Delivery("", b"h", [memoryview(bytes(MIB))]))
        assert messages.are_too_many
        empty = InOrder(2, held_bytes_max=MIB)
        for _ in range(5_000):
            empty.put(1, Delivery("", b"h", []))
        assert empty.are_too_many  # a message takes more than its bytes

    def test_announcements(self) -> None:
        """Goal: what is announced is read; what cannot be is no announcement."""
        for announced in (Announced(LINK_ID, 0, 2), Announced(LINK_ID, 7, STRIPES_MAX)):
            assert read_announcement(announcement(announced)) == announced
        for index, count in ((0, 0), (0, 1), (2, 2), (0, STRIPES_MAX + 1)):
            assert read_announcement(announcement(Announced(LINK_ID, index, count))) is None
        good = announcement(Announced(LINK_ID, 0, 2))
        for bad in (b"", good[:-1], good + b"\0", b"L" + good[1:]):
            assert read_announcement(bad) is None


class TestLinks:
    @pytest.mark.parametrize("seed", range(3))
    def test_order_is_kept_both_ways_under_load(self, make: Make, seed: int) -> None:
        """T2, T3. Goal: 400 messages each way at once, from nothing to 2 MiB, come in order, and
        all credit comes back."""
        rng = random.Random(seed)
        listener, dialler, child = pair(make, TCP)
        sizes = [
            [rng.choice([0, 1, 100, 3_000, 70_000, 2 * MIB]) for _ in range(400)] for _ in range(2)
        ]
        buffer = bytes(2 * MIB)
        for there, back in zip(*sizes, strict=True):
            for transport, peer, size in ((dialler, "parent", there), (listener, child, back)):
                while transport.credit(peer) < size + 4096:  # in a burst there is more than credit
                    assert transport.receive(0) is None
                transport.send(peer, b"%d" % size, [memoryview(buffer)[:size]])
        for transport, expected in ((listener, sizes[0]), (dialler, sizes[1])):
            for size in expected:
                delivery = message(transport)
                assert (delivery.header, delivery.buffers[0].nbytes) == (b"%d" % size, size)
        for transport, peer in ((listener, child), (dialler, "parent")):
            limit = transport.credit(peer)
            assert limit > 200 * MIB
            until_true(lambda t=transport, p=peer: t.credit(p) > 255 * MIB, transport)

    def test_all_stripes_carry(self, make: Make) -> None:
        """Goal: large messages take the connections in turns. Method: a relay counts bytes."""
        listener = make()
        with relay(listener.listen(TCP)) as between:
            dialler = make()
            dialler.dial("parent", between.endpoint)
            meet(listener, dialler)
            for _ in range(30):
                dialler.send("parent", b"h", [bytes(MIB)])
                dialler.send("parent", b"small")
            for _ in range(60):
                message(listener)
            assert len(between.bytes_of) == 3
            assert all(nbytes > 10 * MIB for nbytes in between.bytes_of)
            dialler.close()

    def test_one_listener_has_plain_and_striped_peers(self, make: Make) -> None:
        """Goal: the dialling side decides; plain ones may be of the inner kind, as they always
        were."""
        listener = make()
        where = listener.listen(TCP)
        with maker(ZeroMqTransport) as plain:
            for dialler in (make(), make(stripes=1), plain(), make(stripes=STRIPES_MAX)):
                dialler.dial("parent", where)
                child, _ = meet(listener, dialler)
                dialler.send("parent", b"h", [bytes(MIB)])
                assert message(listener).peer == child
                listener.send(child, b"back", [bytes(MIB)])
                assert message(dialler).header == b"back"

    def test_a_lost_stripe_is_a_lost_peer(self, make: Make) -> None:
        """T2. Goal: one PeerDown at each side, and one PeerUp: all connections are new. What the
        relay lost on a connection is not replaced by what came after it."""
        listener = make(timing=SOON)
        with relay(listener.listen(TCP)) as between:
            dialler = make(timing=SOON)
            dialler.dial("parent", between.endpoint)
            child, _ = meet(listener, dialler)
            for round_number in range(3):
                dialler.send("parent", b"before", [bytes(MIB)])
                assert message(listener).header == b"before"
                between.cut(round_number - 3)  # of the last three; another one each time
                assert down(listener) == child
                assert down(dialler) == "parent"
                with pytest.raises(PeerGone):
                    listener.send(child, b"h")
                with pytest.raises(PeerGone):
                    listener.counters(child)
                child, parent = meet(listener, dialler)
                assert parent == "parent"
                assert between.connections_count >= 3 * (round_number + 2)  # libzmq tries too
            dialler.send("parent", b"after")
            assert message(listener).header == b"after"
            dialler.close()

    def test_what_was_in_order_before_a_loss_is_handed_out(self, make: Make, raw: Raw) -> None:
        """T2. Goal: messages come up to the one that was lost, then PeerDown, though the other
        stripe goes on. Method: raw stripes; the third message never comes."""
        listener = make()
        where = listener.listen(TCP)
        first, second = announced(raw, where, 0, 2), announced(raw, where, 1, 2)
        child = up(listener)
        second.send_multipart([b"1", bytes(TURN_BYTES)])
        second.send_multipart([b"3", bytes(TURN_BYTES)])
        first.send_multipart([b"0", bytes(TURN_BYTES)])
        assert [message(listener).header for _ in range(2)] == [b"0", b"1"]
        first.close()
        assert down(listener) == child
        second.send(b"too late")
        assert listener.receive(50_000_000) is None
        with pytest.raises(PeerGone):
            listener.send(child, b"h")

    def test_a_stripe_that_stays_does_not_keep_the_link(self, make: Make, raw: Raw) -> None:
        """Goal: when the lost stripe is not the one whose turn it is, the link ends in time."""
        listener = make(timing=SOON)
        where = listener.listen(TCP)
        first, second = announced(raw, where, 0, 2), announced(raw, where, 1, 2)
        child = up(listener)
        second.close()
        first.send(b"still there")
        assert message(listener).header == b"still there"
        assert down(listener) == child

    def test_a_dialler_gives_half_a_link_up(self, make: Make) -> None:
        """Goal: when a connection does not come up in time, all are dialled anew, and it mends."""
        listener = make()
        with relay(listener.listen(TCP)) as between:
            between.connections_count_max = 2
            dialler = make()
            dialler.dial("parent", between.endpoint)
            event = failed(dialler)
            while "dialled anew" not in str(event.error):  # the silent one is told of first
                assert "it is not this run" in str(event.error)
                event = failed(dialler)
            assert (event.peer, event.final) == ("parent", False)
            assert isinstance(event.error, ConnectionFailed)
            assert "only 2 of 3 connections were there in time" in str(event.error)
            between.connections_count_max = 1000
            meet(listener, dialler)
            dialler.send("parent", b"h", [bytes(MIB)])
            assert message(listener).header == b"h"
            dialler.close()

    def test_another_pattern_is_final_and_told_once(self, make: Make, raw: Raw) -> None:
        """Goal: what libzmq gives up at once ends the seeking of all stripes."""
        port = raw(zmq.PUB).bind_to_random_port("tcp://127.0.0.1")
        dialler = make()
        dialler.dial("parent", f"tcp://127.0.0.1:{port}")
        event = failed(dialler)
        while not event.final:
            event = failed(dialler)
        assert event.peer == "parent"
        assert dialler.receive(50_000_000) is None

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        """T6, I8. Method: use everything in a process of its own and compare what it holds."""
        script = """
import os
from luwu.transport import PeerUp, StripedTransport
def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
def use():
    a, b, c = (StripedTransport(stripes=3, io_threads=2) for _ in range(3))
    b.dial("ipc", a.listen("ipc://auto"))
    b.dial("tcp", a.listen("tcp://127.0.0.1:0"))
    c.dial("nobody", "ipc:///nowhere/s")
    c.receive(10**9)
    peers = [a.receive(10**10).peer for _ in range(2)]
    for _ in range(2): b.receive(10**10)
    for name in ("ipc", "tcp"):
        for _ in range(3): b.send(name, b"h", [bytes(1 << 20)])
        for _ in range(3): a.receive(10**10).release()
        a.send(peers[0], b"h", [bytes(1 << 20)])
    for each in (a, b, c): each.close()
use()
before = held()
for _ in range(3): use()
assert held() == before, (before, held())
"""
        check_nothing_is_left(script, tmp_path)


def announced(
    raw: Raw, where: str, index: int, count: int, link_id: bytes = LINK_ID
) -> zmq.Socket[bytes]:
    """A raw socket that says it is a stripe."""
    stripe = raw(zmq.DEALER)
    stripe.connect(where)
    stripe.send(announcement(Announced(link_id, index, count)))
    return stripe


class TestStrangers:
    """T5: nothing that arrives may raise, or disturb those who are let in."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make(credit_bytes=MIB)

    @pytest.fixture
    def where(self, listener: Transport) -> str:
        return listener.listen(TCP)

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
        self, listener: Transport, where: str, raw: Raw, ends: bool
    ) -> None:
        """Goal: told once, its messages are dropped, and a late stripe is half a link again."""
        first = announced(raw, where, 0, 2)
        first.send(b"too early")
        if ends:
            assert listener.receive(50_000_000) is None
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


class TestOpening:
    def test_how_many(self) -> None:
        """Goal: as many threads as there are connections, while half of the cores are left."""
        found = {
            (connections, cores): io_threads_for(connections, cores)
            for connections in (0, 1, 3, 16)
            for cores in (1, 2, 4, 16)
        }
        assert found == {
            (0, 1): 1, (0, 2): 1, (0, 4): 1, (0, 16): 1,
            (1, 1): 1, (1, 2): 1, (1, 4): 1, (1, 16): 1,
            (3, 1): 1, (3, 2): 1, (3, 4): 2, (3, 16): 3,
            (16, 1): 1, (16, 2): 1, (16, 4): 2, (16, 16): 4,
        }  # fmt: skip

    def test_what_an_endpoint_opens(self) -> None:
        """Goal: stripes where they mean something, and a refusal where they do not."""
        for endpoint, kind in (
            ("tcp://127.0.0.1:0", StripedTransport),
            ("ipc://auto", StripedTransport),
            ("shm://auto", ShmTransport),
        ):
            with open_transport(endpoint) as transport:
                assert type(transport) is kind
        with pytest.raises(ConfigError, match="shared memory has nothing to spread"):
            open_transport("shm://auto", stripes=2)
        for stripes in (0, STRIPES_MAX + 1):
            with pytest.raises(ConfigError, match="stripes must be 1 to 8"):
                open_transport("ipc://auto", stripes=stripes)
        with pytest.raises(ConfigError, match="credit_bytes must be > 0"):
            StripedTransport(credit_bytes=0)

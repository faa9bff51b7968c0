"""What every transport must do; T1-T6 are those of `luwu/transport/interface.py`.

A subclass says how its transports are made and where one may listen. Nothing here sleeps: every
wait is a `receive` with a deadline, and every deadline that passes is a failure.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX, CREDIT_BYTES_DEFAULT, PAYLOAD_BYTES_MAX
from luwu.base.seeds import derive
from luwu.transport.interface import (
    BUFFERS_COUNT_MAX,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    Received,
    SendHandle,
)
from tests.suites.transport_waits import (
    DEADLINE_NS,
    MIB,
    Make,
    dialling,
    down,
    failed,
    meet,
    message,
    pair,
    until_true,
)

KIB = 1024


def random_bytes(seed: int, name: str, nbytes: int) -> bytes:
    """Bytes that depend on the seed and the name alone."""
    return random.Random(derive(seed, name)).randbytes(nbytes)


class TransportSuite:
    """Subclass it and give `make` and `endpoint`."""

    @pytest.fixture
    def make(self) -> Make:
        """Makes transports (`credit_bytes=` and so on); they are closed after the test."""
        raise NotImplementedError

    @pytest.fixture
    def endpoint(self) -> str:
        """Where a test may listen, in a form that lets the transport choose the place."""
        raise NotImplementedError

    @pytest.fixture
    def free_endpoint(self, endpoint: str, make: Make) -> str:
        """An endpoint where nobody listens, and where somebody may."""
        with make() as transport:
            return transport.listen(endpoint)

    @pytest.mark.parametrize("sizes", [(), (0,), (1,), (100_000,), (3, 70_000), (70_000, 0)])
    def test_a_message_arrives_whole_both_ways(
        self, make: Make, endpoint: str, sizes: tuple[int, ...]
    ) -> None:
        """T1, T2. Goal: header and buffers arrive as sent, from the right peer, and stay until the
        release, which may be repeated."""
        listener, dialler, child = pair(make, endpoint)
        buffers = [random_bytes(1, str(index), size) for index, size in enumerate(sizes)]

        dialler.send("parent", b"up", buffers)
        listener.send(child, b"down", [memoryview(buffer) for buffer in buffers])

        for transport, peer, header in ((listener, child, b"up"), (dialler, "parent", b"down")):
            delivery = message(transport)
            assert (delivery.peer, delivery.header) == (peer, header)
            assert [bytes(view) for view in delivery.buffers] == buffers
            assert all(view.readonly for view in delivery.buffers)
            delivery.release()
            delivery.release()
            assert delivery.buffers == []

    def test_messages_that_wait_for_one_another_arrive_as_they_were_sent(
        self, make: Make, endpoint: str
    ) -> None:
        """T2, T4. Goal: whatever leaves together arrives message by message, in order; a buffer
        may be written again once its handle is done. Method: both ways in turns of many sizes."""
        listener, dialler, child = pair(make, endpoint)
        rng = random.Random(derive(5, "turns"))
        for sender in (listener, dialler):
            sender.gather()
        for sender, receiver, peer in ((dialler, listener, "parent"), (listener, dialler, child)):
            for count in (1, 2, 3, 64, 65, 200):
                sent = []
                for index in range(count):
                    sizes = rng.choice(((), (0,), (1,), (300, 5), (9_000,), (70_000,)))
                    buffers = [random_bytes(index, f"{count}", size) for size in sizes]
                    header = f"{count} {index}".encode()
                    memory = [bytearray(buffer) for buffer in buffers]
                    handle = sender.send(peer, header, [memoryview(each) for each in memory])
                    if handle.done:
                        for each in memory:
                            each[:] = bytes(len(each))
                    sent.append((header, buffers))
                sender.flush()
                for header, buffers in sent:
                    delivery = message(receiver)
                    assert delivery.header == header
                    assert [bytes(view) for view in delivery.buffers] == buffers
                    delivery.release()

    def test_a_message_that_waits_leaves_when_receive_blocks(
        self, make: Make, endpoint: str
    ) -> None:
        """Goal: a caller that never flushes, and waits for an answer, gets one."""
        listener, dialler, child = pair(make, endpoint)
        listener.gather()
        dialler.gather()
        dialler.send("parent", b"question")
        answering = threading.Thread(
            target=lambda: (message(listener), listener.send(child, b"answer"), listener.flush())
        )
        answering.start()
        assert message(dialler).header == b"answer"
        answering.join()

    def test_messages_that_wait_are_lost_with_their_connection(
        self, make: Make, endpoint: str
    ) -> None:
        """Goal: a peer that has gone costs its messages and nothing else."""
        listener, dialler, child = pair(make, endpoint)
        listener.gather()
        listener.send(child, b"too late")
        dialler.close()
        assert down(listener) == child
        listener.flush()

    def test_large_buffers_are_bit_exact(self, make: Make, endpoint: str) -> None:
        """T2, T4. Method: two buffers of 16 MiB in reserved memory, each way."""
        listener, dialler, child = pair(make, endpoint)
        views = []
        for index in range(2):
            view = dialler.reserve(16 * MIB)
            assert (view.nbytes, view.readonly) == (16 * MIB, False)
            view[:] = random_bytes(2, str(index), 16 * MIB)
            views.append(view)

        there = dialler.send("parent", b"h", views)
        back = listener.send(child, b"h", views)

        for transport in (listener, dialler):
            delivery = message(transport)
            assert [view == sent for view, sent in zip(delivery.buffers, views, strict=True)] == [
                True,
                True,
            ]
            delivery.release()
        until_true(lambda: there.done and back.done, listener, dialler)

    def test_reserved_memory_has_its_size_and_may_be_empty(self, make: Make) -> None:
        """Goal: exact size, writable, on its own page, and zero bytes are no special case."""
        transport = make()
        views = [transport.reserve(nbytes) for nbytes in (0, 1, 4096, 70_001)]
        assert [view.nbytes for view in views] == [0, 1, 4096, 70_001]
        assert not any(view.readonly for view in views)
        for view in views[1:]:
            assert np.frombuffer(view, np.uint8).ctypes.data % 4096 == 0

    def test_parts_of_reserved_memory_travel(self, make: Make, endpoint: str) -> None:
        """T4. Goal: parts, read-only views, arrays on it and empty ones arrive as their bytes;
        the handle becomes done when another thread releases. Method: two buffers, each kind."""
        listener, dialler, _child = pair(make, endpoint)
        view = dialler.reserve(8192)
        view[:] = random_bytes(3, "part", 8192)
        outside = b"ordinary memory"
        for buffers in (
            [view[100:200], view[4096:]],
            [view.toreadonly()[1:2], outside],
            [outside, memoryview(np.frombuffer(view, np.float32, 10, offset=4).reshape(2, 5))],
            [view[5:5], view],
            [view, view],
        ):
            handle = dialler.send("parent", b"h", buffers)
            delivery = message(listener)
            got = [bytes(each) for each in delivery.buffers]
            assert got == [bytes(memoryview(each).cast("B")) for each in buffers]
            thread = threading.Thread(target=delivery.release)
            thread.start()
            until_true(lambda handle=handle: handle.done, listener, dialler)
            thread.join()

    def test_order_is_kept_for_each_of_many_peers(self, make: Make, endpoint: str) -> None:
        """T1, T2. Method: 8 diallers send 200 messages each, small and large in turn."""
        listener = make()
        where = listener.listen(endpoint)
        diallers = [make() for _ in range(8)]
        for dialler in diallers:
            dialler.dial("parent", where)
        children = set(meet(*[listener] * len(diallers), *diallers)[: len(diallers)])
        assert len(children) == len(diallers)
        large = bytes(80 * KIB)

        for number in range(200):
            for index, dialler in enumerate(diallers):
                buffers = [large] if number % 10 == 0 else []
                dialler.send("parent", f"{index} {number}".encode(), buffers)

        seen: dict[str, list[str]] = {child: [] for child in children}
        for _ in range(200 * len(diallers)):
            delivery = message(listener)
            seen[delivery.peer].append(delivery.header.decode())
            delivery.release()
        for headers in seen.values():
            index = headers[0].split()[0]
            assert headers == [f"{index} {number}" for number in range(200)]
        for child, headers in seen.items():  # and answers reach the one they are for
            listener.send(child, headers[0].split()[0].encode())
        for index, dialler in enumerate(diallers):
            assert message(dialler).header == str(index).encode()

    def test_one_transport_listens_and_dials(self, make: Make, endpoint: str) -> None:
        """Goal: a switch. Method: two parents and one child; one receive serves them all."""
        switch, child = make(), make()
        parents = {"node-0": make(), "node-1": make()}
        for name, parent in parents.items():
            switch.dial(name, parent.listen(endpoint))
        child.dial("parent", switch.listen(endpoint))
        *names, _, above_0, above_1 = meet(switch, switch, switch, child, *parents.values())
        (child_name,) = set(names) - set(parents)
        above = {"node-0": above_0, "node-1": above_1}

        child.send("parent", b"from child")
        for name, parent in parents.items():
            parent.send(above[name], f"from {name}".encode())

        got = {(delivery.peer, delivery.header) for delivery in (message(switch) for _ in range(3))}
        assert got == {
            (child_name, b"from child"),
            ("node-0", b"from node-0"),
            ("node-1", b"from node-1"),
        }
        for name, parent in parents.items():
            switch.send(name, name.encode())
            assert message(parent).header == name.encode()

    def test_credit_is_used_by_send_and_comes_back(self, make: Make, endpoint: str) -> None:
        """T3. Method: fill the credit while the receiver does nothing; then let it receive."""
        listener, dialler, child = pair(make, endpoint, credit_bytes=64 * MIB)
        buffer = bytes(16 * MIB)
        assert dialler.credit("parent") == 64 * MIB
        assert listener.credit(child) == 64 * MIB

        handles: list[SendHandle] = []
        for _ in range(3):
            handles.append(dialler.send("parent", b"h", [buffer]))
        assert dialler.credit("parent") <= 64 * MIB
        for _ in range(3):
            delivery = message(listener)
            assert delivery.buffers[0].nbytes == 16 * MIB
            delivery.release()
        del delivery

        until_true(lambda: all(handle.done for handle in handles), listener, dialler)
        until_true(lambda: dialler.credit("parent") == 64 * MIB, listener, dialler)

    def test_more_than_the_credit_is_refused(self, make: Make, endpoint: str) -> None:
        """T3. Goal: nothing is sent of what exceeds the credit; headers alone still pass."""
        listener, dialler, _child = pair(make, endpoint, credit_bytes=1 * MIB)

        with pytest.raises(CreditExceeded, match="peer 'parent'"):
            dialler.send("parent", b"big", [bytes(1 * MIB)])
        dialler.send("parent", b"small")

        assert message(listener).header == b"small"

    def test_what_no_receiver_would_accept_is_not_sent(self, make: Make, endpoint: str) -> None:
        """T5, from the sending side. Goal: our own mistake raises at its place."""
        listener, dialler, _child = pair(make, endpoint)
        for header, buffers in (
            (b"", []),
            (bytes(CONTROL_HEADER_BYTES_MAX + 1), []),
            (b"h", [b"x"] * (BUFFERS_COUNT_MAX + 1)),
            (b"h", [bytes(PAYLOAD_BYTES_MAX + 1)]),
            (b"h", [memoryview(bytes(8))[::2]]),
        ):
            with pytest.raises(ValueError, match=r"header|buffers|buffer 0"):
                dialler.send("parent", header, buffers)

        dialler.send("parent", bytes(range(1, 256)) * 16)
        assert len(message(listener).header) == 4080

    def test_wake_ends_a_blocked_receive(self, make: Make, endpoint: str) -> None:
        """Goal: another thread's wake lets receive return, whether it came before or during it."""
        transport = make()
        transport.listen(endpoint)
        transport.wake()
        assert transport.receive(None) is None

        for _ in range(20):
            waker = threading.Thread(target=transport.wake)
            waker.start()
            assert transport.receive(None) is None
            waker.join()

    def test_receive_gives_up_at_its_deadline(self, make: Make, endpoint: str) -> None:
        """Goal: None after the timeout and not before; at once for 0."""
        transport = make()
        transport.listen(endpoint)
        for timeout_ns in (0, 30_000_000):
            start_ns = SYSTEM_CLOCK.now_ns()
            assert transport.receive(timeout_ns) is None
            assert SYSTEM_CLOCK.now_ns() - start_ns >= timeout_ns

    def test_unknown_and_departed_peers_are_gone(self, make: Make, endpoint: str) -> None:
        """Goal: send and credit of a peer that is not there raise, and say what to do."""
        listener, dialler, child = pair(make, endpoint)
        dialler.close()
        assert down(listener) == child

        for peer in ("nobody", "p-00000000", child):
            for ask in (
                lambda peer=peer: listener.send(peer, b"h"),
                lambda peer=peer: listener.credit(peer),
            ):
                with pytest.raises(PeerGone, match="Wait for its PeerUp"):
                    ask()

    def test_last_messages_come_before_the_end(self, make: Make, endpoint: str) -> None:
        """T2. Goal: what was sent before a close arrives, then PeerDown. Both sides close once."""
        listener, dialler, child = pair(make, endpoint)
        # Nothing may be on its way to who closes: tcp answers it with a reset, and then what
        # exceeds the receiver's window is lost.
        listener.send(child, b"hello")
        assert message(dialler).header == b"hello"
        for number in range(100):
            dialler.send("parent", str(number).encode(), [bytes(1000)])
        dialler.close()
        assert [message(listener).header for _ in range(100)] == [
            str(number).encode() for number in range(100)
        ]
        assert down(listener) == child

        other = dialling(make, listener.listen(endpoint))
        child, _ = meet(listener, other)
        for number in range(100):
            listener.send(child, str(number).encode(), [bytes(1000)])
        listener.close()
        assert [message(other).header for _ in range(100)] == [
            str(number).encode() for number in range(100)
        ]
        assert down(other) == "parent"

    def test_the_end_of_a_peer_shows_under_load_of_others(self, make: Make, endpoint: str) -> None:
        """T2. Goal: PeerDown comes although another peer never leaves the listener idle."""
        listener, leaver, child = pair(make, endpoint)
        busy = dialling(make, listener.listen(endpoint))
        meet(listener, busy)
        leaver.send("parent", b"last words")
        leaver.close()

        got: list[Received] = []
        until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
        while PeerDown not in map(type, got):
            assert SYSTEM_CLOCK.now_ns() < until_ns
            busy.send("parent", b"more")
            busy.send("parent", b"more")
            received = listener.receive(DEADLINE_NS)
            if received is None:
                continue
            if not isinstance(received, Delivery) or received.peer == child:
                got.append(received)
        assert [type(received) for received in got] == [Delivery, PeerDown]

    def test_handles_of_a_departed_peer_become_done(self, make: Make, endpoint: str) -> None:
        """T4. Goal: buffers queued to a peer that left are given back."""
        listener, dialler, child = pair(make, endpoint)
        handles = [listener.send(child, b"h", [bytes(16 * MIB)]) for _ in range(4)]
        dialler.close()
        down(listener)
        until_true(lambda: all(handle.done for handle in handles), listener)

    def test_nobody_listening_is_told_once_and_mends(self, make: Make, free_endpoint: str) -> None:
        """Goal: not final, says where; and when somebody listens, the peer comes up by itself."""
        dialler, listener = make(), make()
        dialler.dial("parent", free_endpoint)
        event = failed(dialler)
        assert (event.peer, event.final) == ("parent", False)
        assert f"nothing listens at {free_endpoint} (peer 'parent') yet" in str(event.error)
        with pytest.raises(PeerGone):
            dialler.send("parent", b"h")

        listener.listen(free_endpoint)

        assert meet(dialler, listener)[0] == "parent"

    def test_a_listener_that_comes_back_is_found(self, make: Make, free_endpoint: str) -> None:
        """Goal: PeerDown, then PeerUp, three times, and messages pass each time. Nothing sent to
        one listener reaches its successor."""
        dialler = dialling(make, free_endpoint)
        for number in range(3):
            listener = make()
            listener.listen(free_endpoint)
            child, parent = meet(listener, dialler)
            assert parent == "parent"
            dialler.send("parent", b"%d" % number)
            assert message(listener).header == b"%d" % number
            listener.send(child, b"back %d" % number)
            assert message(dialler).header == b"back %d" % number
            listener.close()
            try:
                while True:  # until the loss is noticed
                    dialler.send("parent", b"lost")
                    event = dialler.receive(1_000_000)
                    if isinstance(event, PeerDown):
                        break
                    # That nobody listens may be told before: of several connections one is first.
                    assert event is None or (isinstance(event, PeerFailed) and not event.final)
            except PeerGone:
                assert down(dialler) == "parent"

    def test_an_endpoint_in_use_is_refused(self, make: Make, endpoint: str) -> None:
        """Goal: a second listener is told that the place is taken, and the first one goes on."""
        listener, dialler = make(), make()
        where = listener.listen(endpoint)
        with pytest.raises(ConfigError, match="in use"):
            make().listen(where)
        dialler.dial("parent", where)
        meet(listener, dialler)

    def test_what_is_no_endpoint_is_refused(self, make: Make) -> None:
        """Goal: ConfigError at the call, with the form to use."""
        transport = make()
        for text in (
            "",
            "here",
            "carrier-pigeon://loft",
            "tcp://",
            "ipc://",
            "shm://",
            "inproc://",
        ):
            with pytest.raises(ConfigError, match="write"):
                transport.listen(text)
            with pytest.raises(ConfigError, match="write"):
                transport.dial("parent", text)

    def test_a_name_is_given_once(self, make: Make, free_endpoint: str) -> None:
        """T1. Goal: no two peers share a name, and none looks like a listener's."""
        transport = dialling(make, free_endpoint)
        for peer in ("parent", "", "p-00000001"):
            with pytest.raises(ValueError, match="cannot call a peer"):
                transport.dial(peer, free_endpoint)

    def test_close_may_be_repeated(self, make: Make, endpoint: str) -> None:
        """T6. Goal: closing twice, closing unused, waking a closed one: all quiet."""
        listener, dialler, _child = pair(make, endpoint)
        for transport in (listener, dialler, make()):
            transport.close()
            transport.close()
            transport.wake()


class ByReferenceSuite:
    """Where the receiver reads the sender's memory; beside `TransportSuite`, with its fixtures."""

    def test_a_delivery_is_the_senders_memory(self, make: Make, endpoint: str) -> None:
        """Goal: nothing is copied: what is written after the send shows, handle and credit wait."""
        listener, dialler, _child = pair(make, endpoint)
        view = dialler.reserve(100)
        handle = dialler.send("parent", b"h", [view])
        delivery = message(listener)
        assert (delivery.is_shared, delivery.buffers[0].readonly) == (True, True)
        view[0] = 7  # what the interface forbids, to see that nothing was copied
        assert delivery.buffers[0][0] == 7
        assert not handle.done
        assert dialler.credit("parent") == CREDIT_BYTES_DEFAULT - 101

        delivery.release()
        until_true(lambda: handle.done, listener, dialler)
        assert dialler.credit("parent") == CREDIT_BYTES_DEFAULT

    def test_release_from_a_thread_ends_both_waits(self, make: Make, endpoint: str) -> None:
        """Goal: a receiver blocked in `receive` tells of a release at once, and the sender, blocked
        too, looks at its handle. Method: three threads, no limit on any wait but the deadline."""
        listener, dialler, child = pair(make, endpoint)
        handle = dialler.send("parent", b"h", [dialler.reserve(100)])
        delivery = message(listener)
        blocked = threading.Thread(target=lambda: last.append(message(listener)))
        last: list[Delivery] = []
        blocked.start()
        releaser = threading.Thread(target=delivery.release)
        releaser.start()
        while not handle.done:
            assert dialler.receive(DEADLINE_NS) is None
        releaser.join()
        dialler.send("parent", b"end")
        blocked.join()
        assert (last[0].peer, last[0].header) == (child, b"end")

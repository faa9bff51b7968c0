"""The transport over shared memory: the suite, and what sharing adds to it."""

from __future__ import annotations

import ctypes
import queue
import random
import threading

import pytest

from luwu.base.address import address_of
from luwu.base.limits import CREDIT_BYTES_DEFAULT
from luwu.transport.interface import CreditExceeded, Delivery
from tests.helpers.transports import OverShm
from tests.suites.transport_suite import ByReferenceSuite, TransportSuite
from tests.suites.transport_waits import MIB, Make, dialling, meet, message, pair, until_true


class TestShmTransport(OverShm, TransportSuite, ByReferenceSuite):
    """The suite over shared memory."""


class TestByReference(OverShm):
    def test_one_place_has_one_address(self, make: Make, endpoint: str) -> None:
        """Goal: the same memory comes at the same address, by both connections of a receiver."""
        listener, dialler, _child = pair(make, endpoint)
        dialler.dial("again", listener.listen(endpoint))
        meet(listener, dialler)
        view = dialler.reserve(10_000)
        found = set()
        for peer in ("parent", "again", "parent"):
            dialler.send(peer, b"h", [view[4096:]])
            delivery = message(listener)
            found.add(address_of(delivery.buffers[0]))
            delivery.release()
        assert len(found) == 1

    def test_both_sides_lend(self, make: Make, endpoint: str) -> None:
        """Goal: the dialler's memory and the listener's, on one connection; a part goes back."""
        listener, dialler, child = pair(make, endpoint)
        ours, theirs = listener.reserve(10), dialler.reserve(10)
        ours[:], theirs[:] = b"0123456789", b"abcdefghij"
        dialler.send("parent", b"h", [theirs])
        there = message(listener)
        listener.send(child, b"h", [there.buffers[0][2:4], ours])
        back = message(dialler)
        assert [bytes(view) for view in back.buffers] == [b"cd", b"0123456789"]
        theirs[2] = 0
        assert back.buffers[0][0] == 0  # its own memory came back to it
        assert address_of(back.buffers[0]) == address_of(theirs) + 2

    def test_other_memory_travels_beside_it(self, make: Make, endpoint: str) -> None:
        """Goal: one buffer shared and one not; without an arena nothing is, and all arrives."""
        listener, dialler, _ = pair(make, endpoint)
        dialler.send("parent", b"h", [bytes(100_000), dialler.reserve(5)])
        delivery = message(listener)
        assert delivery.is_shared
        assert [view.nbytes for view in delivery.buffers] == [100_000, 5]

        bare = dialling(make, listener.listen(endpoint), arena_bytes=0)
        meet(listener, bare)
        view = bare.reserve(5)
        view[:] = b"12345"
        bare.send("parent", b"h", [view])
        delivery = message(listener)
        assert (delivery.is_shared, bytes(delivery.buffers[0])) == (False, b"12345")

    def test_credit_bounds_what_is_lent(self, make: Make, endpoint: str) -> None:
        """T3. Goal: lent bytes are refused beyond the credit, and headers alone still pass."""
        listener, dialler, _child = pair(make, endpoint, credit_bytes=MIB)
        view = dialler.reserve(MIB // 2)
        dialler.send("parent", b"h", [view])
        with pytest.raises(CreditExceeded, match="peer 'parent'"):
            dialler.send("parent", b"h", [view])
        dialler.send("parent", b"small")
        message(listener).release()
        assert message(listener).header == b"small"
        until_true(lambda: dialler.credit("parent") == MIB, listener, dialler)
        dialler.send("parent", b"h", [view])

    @pytest.mark.parametrize("first", ["middle", "end"])
    @pytest.mark.parametrize("part", [slice(None), slice(3, 7)])
    def test_what_is_handed_on_is_never_copied(
        self, make: Make, endpoint: str, first: str, part: slice
    ) -> None:
        """T4. Goal: in a chain A -> B -> C, C reads A's memory, and A's handle is done only when
        both have released, in either order."""
        listener_c, middle, _ = pair(make, endpoint)
        source = dialling(make, middle.listen(endpoint))
        meet(source, middle)
        chain = (source, middle, listener_c)
        view = source.reserve(10)
        view[:] = b"0123456789"
        handle = source.send("parent", b"h", [view])
        at_middle = message(middle)
        onward = middle.send("parent", b"h", [at_middle.buffers[0][part]])
        at_end = message(listener_c)
        assert at_end.is_shared
        view[4] = 0
        assert bytes(at_end.buffers[0]) == bytes(view[part])

        releases = {"middle": at_middle, "end": at_end}
        releases.pop(first).release()
        if first == "end":
            until_true(lambda: onward.done, middle, listener_c)
        assert middle.receive(0) is None  # would tell the source
        middle.send(at_middle.peer, b"fence")
        assert message(source).header == b"fence"
        assert (handle.done, onward.done) == (False, first == "end")
        releases.popitem()[1].release()
        until_true(lambda: handle.done and onward.done, *chain)

    def test_a_writing_receiver_harms_only_itself(self, make: Make, endpoint: str) -> None:
        """Goal: whoever writes to received memory, past its being read-only, gets a copy."""
        listener, dialler, _child = pair(make, endpoint)
        view = dialler.reserve(8192)
        view[:] = bytes(8192)
        dialler.send("parent", b"h", [view])
        delivery = message(listener)
        ctypes.memset(address_of(delivery.buffers[0]), 7, 1)
        assert (delivery.buffers[0][0], view[0]) == (7, 0)

    @pytest.mark.parametrize("seed", range(4))
    def test_many_messages_and_releases_out_of_order(
        self, make: Make, endpoint: str, seed: int
    ) -> None:
        """T2, T4. Method: 400 messages from a small arena; a releaser thread gives them back in a
        shuffled order while the receiver goes on. Every one has its content, all is returned."""
        rng = random.Random(seed)
        listener, dialler, _child = pair(make, endpoint, arena_bytes=64 * 4096)
        held: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()

        def release_all() -> None:
            some: list[Delivery] = []
            while (delivery := held.get()) is not None:
                some.append(delivery)
                if len(some) > 10:
                    some.pop(rng.randrange(len(some))).release()
            for delivery in some:
                delivery.release()

        releaser = threading.Thread(target=release_all)
        releaser.start()
        handles = []
        heard_count = 0
        number = 0
        while heard_count < 400:
            if number < 400:
                try:
                    view = dialler.reserve(rng.choice([1, 4096, 20_000]))
                except CreditExceeded:
                    pass
                else:
                    view[0] = number % 251
                    handles.append(dialler.send("parent", b"%d" % number, [view]))
                    del view
                    number += 1
            assert dialler.receive(0) is None
            received = listener.receive(1_000_000)
            if received is not None:
                assert isinstance(received, Delivery), (seed, received)
                assert received.header == b"%d" % heard_count, seed
                assert received.buffers[0][0] == heard_count % 251, seed
                heard_count += 1
                held.put(received)
                del received
        held.put(None)
        releaser.join()
        until_true(lambda: all(handle.done for handle in handles), listener, dialler)
        assert dialler.credit("parent") == CREDIT_BYTES_DEFAULT
        assert dialler.reserve(64 * 4096).nbytes == 64 * 4096

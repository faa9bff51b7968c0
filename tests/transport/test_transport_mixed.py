"""Shared memory and sockets in one transport: the suite by either, and the way between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from luwu.transport.interface import Transport
from luwu.transport.opening import MixedTransport, io_threads_for, open_transport
from luwu.transport.shm import ShmTransport
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.transports import TCP, AtShm, AtTcp, maker
from tests.suites.transport_suite import TransportSuite
from tests.suites.transport_waits import MIB, Make, meet, message, until_true


def make_mixed(**options: object) -> Transport:
    """Both halves with the same credit; the wired one as `open_transport` makes it."""
    credit = {name: options[name] for name in ("credit_bytes", "timing") if name in options}
    shared = ShmTransport(arena_bytes=int(str(options.get("arena_bytes", 128 * MIB))), **credit)  # type: ignore[arg-type]
    return MixedTransport(shared, ZeroMqTransport(**credit))  # type: ignore[arg-type]


class OverMixed:
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with maker(make_mixed) as new:
            yield new


class TestMixedOverTcp(OverMixed, AtTcp, TransportSuite):
    pass


class TestMixedOverShm(OverMixed, AtShm, TransportSuite):
    pass


class TestBetween(OverMixed):
    """A leaf: two children by shared memory, and a parent over tcp."""

    def test_what_a_parent_sends_is_copied_once_for_all_children(self, make: Make) -> None:
        """Goal: weights that came over the socket reach every child from one piece of shared
        memory, which is free again when all have let go."""
        parent, leaf = make(), make(arena_bytes=4 * MIB)
        first, second = make(), make()
        at = leaf.listen("shm://auto")
        leaf.dial("parent", parent.listen(TCP))
        first.dial("leaf", at)
        second.dial("leaf", at)
        name, *others = meet(parent, leaf, leaf, leaf, first, second)
        children = [other for other in others[:3] if other != "parent"]
        assert len(set(children)) == 2
        sent = np.random.default_rng(0).integers(0, 256, MIB, dtype=np.uint8)
        for _ in range(8):  # twice what the arena holds
            parent.send(name, b"w", [memoryview(sent)])
            came = message(leaf)
            assert came.peer == "parent"
            handles = [leaf.send(child, b"w", came.buffers) for child in children]
            taken = [message(first), message(second)]
            for delivery in taken:
                assert delivery.is_shared
                np.testing.assert_array_equal(np.frombuffer(delivery.buffers[0], np.uint8), sent)
                delivery.release()
            came.release()
            until_true(lambda handles=handles: all(h.done for h in handles), leaf, first, second)

    def test_what_a_child_lends_goes_up_and_is_given_back(self, make: Make) -> None:
        """Goal: a gradient in a child's memory is sent over the socket from there, and the child
        gets it back when it has left."""
        parent, leaf, child = make(), make(), make()
        leaf.dial("parent", parent.listen(TCP))
        child.dial("leaf", leaf.listen("shm://auto"))
        meet(parent, leaf, leaf, child)
        memory = child.reserve(MIB)
        np.frombuffer(memory, np.uint8)[:] = 7
        lent = child.send("leaf", b"g", [memory])
        came = message(leaf)
        assert came.is_shared
        sent = leaf.send("parent", b"g", came.buffers)
        got = message(parent)
        assert bytes(got.buffers[0][:2]) == b"\x07\x07"
        until_true(lambda: sent.done, leaf)
        came.release()
        until_true(lambda: lent.done, leaf, child)

    def test_what_is_reserved_is_read_in_place_below_and_sent_above(self, make: Make) -> None:
        """Goal: weights that a switch caches lie where its children read them, though its parent
        is reached over a socket."""
        parent, leaf, child = make(), make(), make()
        leaf.dial("parent", parent.listen(TCP))
        child.dial("leaf", leaf.listen("shm://auto"))
        names = meet(parent, leaf, leaf, child)[1:3]
        (name,) = {*names} - {"parent"}
        memory = leaf.reserve(MIB)
        np.frombuffer(memory, np.uint8)[:] = 7
        handles = [leaf.send(name, b"w", [memory]), leaf.send("parent", b"s", [memory])]
        below, above = message(child), message(parent)
        assert below.is_shared
        assert below.buffers[0] == above.buffers[0] == memory
        below.release()
        until_true(lambda: all(each.done for each in handles), leaf, child)

    def test_a_blocked_receive_hears_either_side(self, make: Make) -> None:
        """T3. Goal: while nothing comes by one way, what comes by the other ends the wait."""
        parent, leaf, child = make(), make(), make()
        leaf.dial("parent", parent.listen(TCP))
        child.dial("leaf", leaf.listen("shm://auto"))
        name, _, _, _ = meet(parent, leaf, leaf, child)
        for index in range(20):
            (parent.send(name, b"down") if index % 2 else child.send("leaf", b"up"))
            assert message(leaf).header == (b"down" if index % 2 else b"up")


class TestOpening:
    def test_how_many_threads(self) -> None:
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

    def test_what_endpoints_open(self) -> None:
        for endpoints, kind in (
            ((TCP,), ZeroMqTransport),
            (("ipc://auto",), ZeroMqTransport),
            (("shm://auto",), ShmTransport),
            ((TCP, "shm://auto"), MixedTransport),
        ):
            with open_transport(*endpoints) as transport:
                assert type(transport) is kind

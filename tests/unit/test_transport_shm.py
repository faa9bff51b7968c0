"""The transport over shared memory: the suite, and what sharing adds to it."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import itertools
import os
import queue
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, RemoteProtocolError
from luwu.transport import (
    CREDIT_BYTES_DEFAULT,
    LISTENER,
    Counters,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    ShmTransport,
    Transport,
    ZeroMqTransport,
    check_arena,
    descriptors,
    notices,
)
from luwu.transport.free_list import FreeList
from tests.suites.transport_suite import (
    DEADLINE_NS,
    MIB,
    Make,
    TransportSuite,
    down,
    failed,
    meet,
    message,
    pair,
    until_true,
    up,
)
from tests.unit.transports import QUICK, check_nothing_is_left, listening_process, maker


@pytest.fixture
def make() -> Iterator[Make]:
    with maker(ShmTransport, arena_bytes=128 * MIB) as new:
        yield new


@pytest.fixture
def endpoint() -> str:
    return "shm://auto"


class TestShmTransport(TransportSuite):
    @pytest.fixture
    def make(self, make: Make) -> Make:
        return make  # that of the module

    @pytest.fixture
    def endpoint(self, endpoint: str) -> str:
        return endpoint

    @pytest.fixture
    def free_endpoint(self, tmp_path: Path) -> str:
        return f"shm://{tmp_path}/s"


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def refused(transport: Transport) -> PeerFailed:
    """The next thing, which must be a failure that may mend."""
    event = transport.receive(DEADLINE_NS)
    assert isinstance(event, PeerFailed), event
    assert not event.final
    return event


class TestByReference:
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
            found.add(address(delivery.buffers[0]))
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
        assert address(back.buffers[0]) == address(theirs) + 2

    def test_other_memory_travels_beside_it(self, make: Make, endpoint: str) -> None:
        """Goal: one buffer shared and one not; without an arena nothing is, and all arrives."""
        listener, dialler, child = pair(make, endpoint)
        dialler.send("parent", b"h", [bytes(100_000), dialler.reserve(5)])
        delivery = message(listener)
        assert delivery.is_shared
        assert [view.nbytes for view in delivery.buffers] == [100_000, 5]
        assert dialler.counters() == Counters(1, 100_005, 0, 0)
        assert listener.counters(child) == Counters(0, 0, 1, 100_005)

        bare = make(arena_bytes=0)
        bare.dial("parent", listener.listen(endpoint))
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
        source = make()
        source.dial("parent", middle.listen(endpoint))
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
        ctypes.memset(address(delivery.buffers[0]), 7, 1)
        assert (delivery.buffers[0][0], view[0]) == (7, 0)

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


class TestArena:
    def test_it_ends_and_recovers(self, make: Make, endpoint: str) -> None:
        """Goal: CreditExceeded when full; room when views are gone and the receiver released."""
        listener, dialler, _child = pair(make, endpoint, arena_bytes=4 * 4096)
        views = [dialler.reserve(4096) for _ in range(4)]
        with pytest.raises(CreditExceeded, match="no room for 1 bytes in an arena of 16384: 0 are"):
            dialler.reserve(1)
        handle = dialler.send("parent", b"h", [views[1]])
        part = views[2][5:6]
        views.clear()
        with pytest.raises(CreditExceeded):  # one is sent, one has a view: two pieces are free
            dialler.reserve(2 * 4096)
        message(listener).release()
        until_true(lambda: handle.done, listener, dialler)
        assert dialler.reserve(2 * 4096).nbytes == 2 * 4096
        del part
        assert dialler.reserve(4 * 4096).nbytes == 4 * 4096

    def test_arrays_keep_what_they_are_made_of(self, make: Make) -> None:
        """Goal: an array on reserved memory, or on a part of it, keeps it from being given out."""
        transport = make(arena_bytes=4096)
        array = np.frombuffer(transport.reserve(4096)[8:16], np.int64)
        with pytest.raises(CreditExceeded):
            transport.reserve(1)
        del array
        transport.reserve(1)

    @pytest.mark.parametrize("seed", range(10))
    def test_free_list_against_a_model(self, seed: int) -> None:
        """F1, F2. Method: 500 random takes and gives beside a plain list of taken bytes."""
        rng = random.Random(seed)
        free = FreeList(64)
        taken: list[tuple[int, int]] = []
        for _ in range(500):
            if taken and rng.random() < 0.5:
                free.give(*taken.pop(rng.randrange(len(taken))))
            else:
                nbytes = rng.randint(1, 16)
                start = free.take(nbytes)
                if start is None:
                    assert free.largest_bytes() < nbytes, seed
                else:
                    taken.append((start, nbytes))
            used = sorted([(start, start + nbytes) for start, nbytes in taken])
            stretches = free.stretches()
            every = sorted(used + stretches)
            assert [start for start, _ in every] == [0] + [end for _, end in every[:-1]], seed
            assert every[-1][1] == 64
            assert all(before[1] < after[0] for before, after in itertools.pairwise(stretches)), (
                seed
            )
            assert free.free_bytes == 64 - sum(nbytes for _, nbytes in taken)

    def test_limits_are_found_early(
        self, monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path
    ) -> None:
        """Goal: each limit is a ConfigError that names it, what was found, and what to do."""
        check_arena(0)
        check_arena(MIB)
        with pytest.raises(ConfigError, match="must be >= 0"):
            make(arena_bytes=-1)
        with pytest.raises(ConfigError, match=r"exceeds the memory of .* make the arena smaller"):
            make(arena_bytes=1 << 60)
        for name, text in (("RLIMIT_FSIZE", "ulimit -f"), ("RLIMIT_AS", "ulimit -v")):
            which = getattr(resource, name)
            real = resource.getrlimit
            monkeypatch.setattr(
                resource,
                "getrlimit",
                lambda asked, which=which, real=real: (
                    (4096, 4096) if asked == which else real(asked)
                ),
            )
            with pytest.raises(ConfigError, match=f"{name}.*{text}"):
                check_arena(8192)
            monkeypatch.undo()
        monkeypatch.delattr(os, "memfd_create")
        with pytest.raises(ConfigError, match="memfd_create"):
            check_arena(8192)


class TestEnds:
    def test_views_outlive_everything(self, make: Make, endpoint: str) -> None:
        """T6. Goal: what was received, reserved and not released stays readable after both
        transports are closed; then the mappings go with the views."""
        before = arenas_mapped()
        listener, dialler, _child = pair(make, endpoint)
        view = dialler.reserve(10)
        view[:] = b"0123456789"
        handle = dialler.send("parent", b"h", [view])
        delivery = message(listener)
        dialler.close()
        assert handle.done
        down(listener)
        listener.close()
        assert bytes(delivery.buffers[0]) == bytes(view) == b"0123456789"
        delivery.release()
        assert arenas_mapped() > before
        del delivery, view, handle
        gc.collect()
        assert arenas_mapped() == before

    def test_a_killed_sender_leaves_its_messages(self, make: Make, endpoint: str) -> None:
        """T2, T4. Method: SIGKILL a process that lent memory and borrowed some."""
        listener = make()
        with child_process(listener.listen(endpoint), b"lent memory"):
            child = up(listener)
            delivery = message(listener)
            view = listener.reserve(10)
            handle = listener.send(child, b"h", [view])
            assert message(listener).header == b"got it"
            assert not handle.done
        assert down(listener) == child
        assert handle.done
        assert bytes(delivery.buffers[0][:4]) == b"lent"
        delivery.release()
        assert listener.receive(0) is None

    @pytest.mark.parametrize("seed", range(3))
    def test_processes_killed_at_any_instant(self, make: Make, endpoint: str, seed: int) -> None:
        """Goal: nothing hangs, raises or leaks. Method: kill children after a random count of
        messages, while they send as fast as they can; every life is PeerUp ... PeerDown."""
        rng = random.Random(seed)
        listener = make()
        where = listener.listen(endpoint)
        before = open_files()
        for _ in range(3):
            with child_process(where, b"x" * 5000, forever=True):
                child = up(listener)
                for _ in range(rng.randrange(200)):
                    delivery = message(listener)
                    assert bytes(delivery.buffers[0]) == b"x" * 5000
                    delivery.release()
            until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
            while not isinstance(received := listener.receive(DEADLINE_NS), PeerDown):
                assert SYSTEM_CLOCK.now_ns() < until_ns
                if isinstance(received, Delivery):
                    received.release()
            assert received.peer == child
        until_true(lambda: open_files() == before, listener)  # libzmq closes its own a bit later

    def test_a_listener_that_comes_back(self, make: Make, tmp_path: Path) -> None:
        """Goal: a new connection passes descriptors anew; what the old one lent stays readable."""
        where = f"shm://{tmp_path}/s"
        dialler = make()
        dialler.dial("parent", where)
        view = dialler.reserve(3)
        view[:] = b"abc"
        old: list[Delivery] = []
        for _ in range(3):
            listener = make()
            listener.listen(where)
            child, _ = meet(listener, dialler)
            handle = dialler.send("parent", b"h", [view])
            old.append(message(listener))
            listener.send(child, b"h", [listener.reserve(2)])
            old.append(message(dialler))
            listener.close()
            down(dialler)
            assert handle.done
            assert sorted(tmp_path.iterdir()) == []
        assert [delivery.is_shared for delivery in old] == [True] * 6
        assert [bytes(delivery.buffers[0]) for delivery in old] == [b"abc", b"\0\0"] * 3
        for delivery in old:
            delivery.release()

    def test_the_sockets_of_a_killed_process_are_replaced(self, make: Make, tmp_path: Path) -> None:
        """T6. Goal: stale files are no obstacle, a live listener is, and close removes both."""
        where = f"shm://{tmp_path}/s"
        process, found = listening_process(ShmTransport, where, arena_bytes=0)
        with process:
            assert found == where
            with pytest.raises(ConfigError, match=f"{where} is in use"):
                make().listen(where)
            process.kill()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "s.fd"]

        listener, dialler = make(), make()
        dialler.dial("parent", listener.listen(where))
        meet(listener, dialler)
        listener.close()
        assert not list(tmp_path.iterdir())

    def test_paths_that_cannot_be_a_socket(self, make: Make, tmp_path: Path) -> None:
        """Goal: what is in the way, or too long with its suffix, is said, and nothing is left."""
        (tmp_path / "file").touch()
        (tmp_path / "s.fd").touch()
        long = "x" * (105 - len(f"{tmp_path}/"))
        for endpoint, text in (
            (f"shm://{tmp_path}/file", "is not a socket"),
            (f"shm://{tmp_path}/s", "is not a socket"),
            (f"shm://{tmp_path}/missing/s", "no directory"),
            (f"shm://{tmp_path}/{long}", "use a shorter one"),
        ):
            with pytest.raises(ConfigError, match=text):
                make().listen(endpoint)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "s.fd"]

    def test_an_arena_that_was_handed_on_is_forgotten(self, make: Make, endpoint: str) -> None:
        """Goal: a switch and its node keep no memory of workers that are gone, however long they
        live themselves. Method: count the mappings of this process after each of three workers."""
        node, switch, _ = pair(make, endpoint)
        where = switch.listen(endpoint)
        counts = []
        for _ in range(3):
            worker = make()
            worker.dial("parent", where)
            meet(worker, switch)
            worker.send("parent", b"h", [worker.reserve(10)])
            at_switch = message(switch)
            switch.send("parent", b"h", [at_switch.buffers[0]])
            at_node = message(node)
            at_node.release()
            at_switch.release()
            worker.close()
            down(switch)
            del at_node, at_switch, worker
            assert switch.receive(0) is None  # tells it
            switch.send("parent", b"after FORGOTTEN")
            assert message(node).header == b"after FORGOTTEN"
            counts.append(len(node._regions))
        assert counts == [1, 1, 1]

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        """T6, I8. Method: use everything in a process of its own and compare what it holds before
        and after: descriptors, threads, mappings and files."""
        script = """
import gc, os
from luwu.transport import PeerUp, ShmTransport
def held():
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sum("luwu-arena" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped
def use():
    a, b, c = (ShmTransport(arena_bytes=1 << 20) for _ in range(3))
    b.dial("x", a.listen("shm://auto"))
    b.dial("y", a.listen("shm://auto"))
    c.dial("nobody", "shm:///nowhere/s")
    c.receive(10**9)
    ups = []
    while len(ups) < 4:
        ups += [event for event in (a.receive(10**6), b.receive(10**6)) if event is not None]
    for name in ("x", "y"):
        b.send(name, b"h", [b.reserve(1 << 18), bytes(1 << 20)])
        delivery = a.receive(10**10)
        a.send(delivery.peer, b"h", [a.reserve(100), delivery.buffers[0]])
        del delivery
    for each in (a, b, c): each.close()
use()
before = held()
for _ in range(3): use()
assert held() == before, (before, held())
assert before[2] == 0
"""
        check_nothing_is_left(script, tmp_path)


class TestStrangers:
    """T5: nothing that arrives may raise, or disturb those who are let in."""

    @pytest.fixture
    def stranger(self, make: Make) -> Iterator[ZeroMqTransport]:
        """A ZeroMQ transport: it says what it likes to a transport over shared memory."""
        with ZeroMqTransport(timing=QUICK, header_bytes_max=5000) as transport:
            yield transport

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
        self, make: Make, endpoint: str, stranger: ZeroMqTransport, first: bytes
    ) -> None:
        """T1. Goal: reported once, as a stranger; and its end is no news."""
        listener = make()
        where = listener.listen(endpoint)
        stranger.dial("parent", where.replace("shm://", "ipc://"))
        up(stranger)
        stranger.send("parent", first)
        event = refused(listener)
        assert event.peer == LISTENER
        assert isinstance(event.error, RemoteProtocolError)
        stranger.send("parent", b"more")
        assert listener.receive(50_000_000) is None
        stranger.close()
        assert listener.receive(50_000_000) is None

    def test_a_greeting_is_for_one(
        self, make: Make, endpoint: str, stranger: ZeroMqTransport
    ) -> None:
        """Goal: a silent connection that ends is a stranger; a used token lets nobody else in."""
        listener = make()
        where = listener.listen(endpoint)
        _peer, channel = self.greeted(listener, where, stranger)
        with channel, ZeroMqTransport(timing=QUICK) as other:
            other.dial("parent", where.replace("shm://", "ipc://"))
            up(other)
            other.send("parent", notices.greeting(bytes(16)))
            assert refused(listener).peer == LISTENER
        with ZeroMqTransport(timing=QUICK) as silent:
            silent.dial("parent", where.replace("shm://", "ipc://"))
            up(silent)
        assert "ended without a greeting" in str(refused(listener).error)

    def test_a_listener_of_another_kind(self, make: Make, tmp_path: Path) -> None:
        """Goal: what listens without passing descriptors is told, and never up."""
        with ZeroMqTransport(timing=QUICK) as other:
            other.listen(f"ipc://{tmp_path}/s")
            dialler = make()
            dialler.dial("parent", f"shm://{tmp_path}/s")
            event = failed(dialler)
            assert event.peer == "parent"
            assert "takes no descriptors" in str(event.error)
            with pytest.raises(PeerGone):
                dialler.send("parent", b"h")
            up(other)
            dialler.close()
            down(other)

    def test_descriptors_that_are_no_arenas(
        self, make: Make, endpoint: str, stranger: ZeroMqTransport
    ) -> None:
        """Goal: a file, a memfd that can shrink, a wrong size, no descriptor, a closed channel:
        each is refused and closed, the message is dropped and its memory given back."""
        listener = make()
        where = listener.listen(endpoint)
        peer, channel = self.greeted(listener, where, stranger)
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
                event = refused(listener)
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
        self, make: Make, endpoint: str, stranger: ZeroMqTransport, seed: int
    ) -> None:
        """Goal: whatever a peer that was let in says, it is dropped and reported under its name,
        or it is a message within the arena that it passed; another peer is not disturbed.
        Method: 300 notices, half of them valid ones with bytes changed, cut or added; seeded."""
        rng = random.Random(seed)
        listener = make()
        where = listener.listen(endpoint)
        peer, channel = self.greeted(listener, where, stranger)
        good = sealed_memfd(8192)
        descriptors.pass_arena(channel, good, 8192)
        os.close(good)
        honest = make()
        honest.dial("parent", where)
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


def open_files() -> int:
    gc.collect()  # of what earlier tests left to it
    return len(os.listdir("/proc/self/fd"))


def arenas_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("luwu-arena")


@contextmanager
def child_process(
    where: str, text: bytes, *, forever: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lends memory with this content, and answers what it is lent; then killed."""
    script = f"""
import sys
from luwu.transport import CreditExceeded, Delivery, PeerUp, ShmTransport
t = ShmTransport(arena_bytes=1 << 20)
t.dial("parent", sys.argv[1])
while not isinstance(t.receive(None), PeerUp): pass
first = True
while first or {forever}:
    first = False
    try: view = t.reserve(5000)
    except CreditExceeded:
        t.receive(None)
        continue
    text = {text!r}
    view[:len(text)] = text
    t.send("parent", b"h", [view])
while not isinstance(got := t.receive(None), Delivery): pass
assert got.is_shared
t.send("parent", b"got it")
while True: t.receive(None)
"""
    process = subprocess.Popen([sys.executable, "-c", script, where])
    try:
        yield process
    finally:
        process.kill()
        process.wait()

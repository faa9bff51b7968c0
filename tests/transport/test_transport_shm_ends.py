"""What ends over shared memory: transports, processes and listeners, and what stays of them."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.transport.interface import Delivery, PeerDown
from luwu.transport.shm import ShmTransport
from tests.helpers.transports import OverShm, check_nothing_is_left, listening_process, open_files
from tests.suites.transport_waits import (
    DEADLINE_NS,
    Make,
    dialling,
    down,
    meet,
    message,
    pair,
    until_true,
    up,
)


def arenas_mapped() -> set[str]:
    """The mappings of arenas that this process has, by their addresses."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "luwu-arena" in line}


@contextmanager
def child_process(
    where: str, text: bytes, *, forever: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lends memory with this content, and answers what it is lent; then killed."""
    script = f"""
import sys
from luwu.transport.interface import CreditExceeded, Delivery, PeerUp
from luwu.transport.shm import ShmTransport
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


class TestEnds(OverShm):
    def test_views_outlive_everything(self, make: Make, endpoint: str) -> None:
        """T6. Goal: what was received, reserved and not released stays readable after both
        transports are closed; then the mappings go with the views."""
        gc.collect()  # of what earlier tests left to it
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
        left = arenas_mapped() - before
        assert left
        del delivery, view, handle
        gc.collect()
        assert not arenas_mapped() & left

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
        dialler = dialling(make, where)
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

        listener, _dialler, _child = pair(make, where)
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
            worker = dialling(make, where)
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
            counts.append(len(node._regions._sorted))
        assert counts == [1, 1, 1]

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        endpoints = ("shm://auto", "shm://auto")
        check_nothing_is_left(ShmTransport, endpoints, tmp_path, arena_bytes=1 << 20)

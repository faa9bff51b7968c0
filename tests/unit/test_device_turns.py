"""Two threads and one NIC: V1-V4 of `luwu/training/devices/turns.py`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from luwu.base.errors import LuwuError, StepAborted
from luwu.base.events import Recorder
from luwu.nic.cells import ExtentGradient
from luwu.nic.handles import NicCounters
from luwu.training.devices.turns import TurnNic
from tests.unit.fake_nic import WAIT_S_MAX, FakeCell, FakeCells
from tests.unit.waiting import do_once


class Written:
    """A gradient that is in its cell when the test says so."""

    def __init__(self, *, ready: bool = False, error: Exception | None = None) -> None:
        self.cell = FakeCell(8)
        self.ready = threading.Event()
        self.error = error
        self.asked = threading.Event()
        if ready:
            self.ready.set()

    def finish(self) -> None:
        self.asked.set()
        assert self.ready.wait(WAIT_S_MAX)
        if self.error is not None:
            raise self.error


class Handle:
    done = False
    shared = None


class FakeNic:
    """Writes down what it is told; an abort is told once, by the next call."""

    def __init__(self) -> None:
        self.cells = FakeCells()
        self.rank, self.world_size = 0, 1
        self.chunk_bytes, self.node_count, self.prefetch_units = 4096, 1, 2
        self.extent_chunks = 1
        self.reshard_after_forward: bool | None = None
        self.recorder = Recorder(role="worker", printed=None)
        self.counters = NicCounters()
        self.said: list[Any] = []
        self.threads: set[str] = set()
        self.abort: StepAborted | None = None
        self.broken: LuwuError | None = None
        self.pushed = threading.Event()

    def _say(self, what: Any) -> Handle:
        if self.broken is not None:
            raise self.broken
        abort, self.abort = self.abort, None
        if abort is not None:
            raise abort
        self.said.append(what)
        self.threads.add(threading.current_thread().name)
        return Handle()

    def push(
        self, step: int, part: int, unit: int, gradients: Any, dtype: str, *, last: bool,
        weight: float,
    ) -> Handle:  # fmt: skip
        try:
            return self._say(("push", unit, None if gradients is None else len(gradients)))
        finally:
            self.pushed.set()

    def pull(
        self, step: int, part: int, unit: int, memory: Any, *, in_place: bool = False
    ) -> Handle:
        return self._say(("pull", unit))

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool = False) -> Handle:
        return self._say("commit")

    def cancel(self, text: str) -> None:
        self._say("cancel")

    def wait(self, handle: Any) -> None:
        self._say("wait")


@pytest.fixture
def nic() -> FakeNic:
    return FakeNic()


@pytest.fixture
def turns(nic: FakeNic) -> Iterator[TurnNic]:
    made = TurnNic(nic)
    yield made
    made.stop()
    assert not made._thread.is_alive()


def test_bytes_are_counted_while_it_runs(nic: FakeNic, turns: TurnNic) -> None:
    """Goal: a GPU worker's report says what was pushed since it began."""
    nic.counters = NicCounters(push_bytes=5)
    assert turns.counters.push_bytes == 5


def push(turns: TurnNic, unit: int, *written: Written) -> Any:
    gradients = [ExtentGradient(index, each) for index, each in enumerate(written)] or None
    return turns.push(0, 0, unit, gradients, "float32", last=True)


def pull(turns: TurnNic, unit: int) -> Any:
    return turns.pull(0, 0, unit, lambda: memoryview(b""))


def wait_until_idle(turns: TurnNic) -> None:
    with turns._changed:
        assert turns._changed.wait_for(lambda: not turns._jobs, WAIT_S_MAX)


def test_pushes_go_in_order_when_they_are_complete(nic: FakeNic, turns: TurnNic) -> None:
    """Goal: a later push that is ready, or has nothing to copy, does not pass an earlier one; the
    training thread goes on, and may ask for weights meanwhile."""
    first, second = Written(), Written(ready=True)
    promise = push(turns, 2, first)
    push(turns, 1, second)
    push(turns, 0)
    pull(turns, 7)
    assert nic.said == [("pull", 7)]
    assert promise.handle is None
    assert not promise.done
    first.ready.set()
    turns.commit(0, 1, b"")
    assert nic.said == [("pull", 7), ("push", 2, 1), ("push", 1, 1), ("push", 0, None), "commit"]
    assert "luwu-copy" in nic.threads
    promise.handle.done = True
    assert promise.done


def test_an_abort_told_to_the_copying_thread_is_raised_once(nic: FakeNic, turns: TurnNic) -> None:
    """V2, V4. Goal: nothing the training thread asks for before it knows is said."""
    written = [Written(), Written()]
    nic.abort = StepAborted(3, "lost")
    for unit, each in enumerate(written):
        push(turns, unit, each)
    written[0].ready.set()
    assert nic.pushed.wait(WAIT_S_MAX)
    assert written[1].asked.wait(WAIT_S_MAX)
    with pytest.raises(StepAborted) as raised:
        pull(turns, 7)
    assert raised.value.step == 3
    assert nic.said == []
    written[1].ready.set()
    turns.drop()
    assert not written[1].cell.is_needed  # given back, and only after its copy
    pull(turns, 8)
    assert nic.said == [("pull", 8)]


def test_an_abort_told_to_the_training_thread_voids_every_push(
    nic: FakeNic, turns: TurnNic
) -> None:
    """V1, V2. Goal: a push whose copy ends after the abort was told is not said."""
    written = Written()
    push(turns, 0, written)
    assert written.asked.wait(WAIT_S_MAX)
    nic.abort = StepAborted(0, "lost")
    with pytest.raises(StepAborted):
        pull(turns, 1)
    ender = threading.Timer(0.02, written.ready.set)
    ender.start()
    turns.drop()
    assert written.ready.is_set()  # memory that a copy writes to is not given back
    assert not written.cell.is_needed
    assert nic.said == []


def test_a_push_after_an_unseen_abort_is_void_and_raises(nic: FakeNic, turns: TurnNic) -> None:
    nic.abort = StepAborted(0, "lost")
    push(turns, 0, Written(ready=True))
    assert nic.pushed.wait(WAIT_S_MAX)
    wait_until_idle(turns)
    late = Written(ready=True)
    with pytest.raises(StepAborted):
        push(turns, 1, late)
    turns.drop()
    assert not late.cell.is_needed
    assert nic.said == []


def test_a_wait_never_enters_the_nic_beside_a_push(nic: FakeNic, turns: TurnNic) -> None:
    """V3. Goal: the NIC's own wait begins when the last job is done."""
    written = Written()
    push(turns, 0, written)
    handle = Handle()
    threading.Timer(0.02, written.ready.set).start()
    turns.wait(handle)
    assert nic.said == [("push", 0, 1), "wait"]

    blocked = Written()
    push(turns, 1, blocked)
    handle.done = True
    turns.wait(handle)  # done: the job under way is not waited for
    assert nic.said == [("push", 0, 1), "wait"]
    blocked.ready.set()


def test_a_failed_copy_ends_the_training(nic: FakeNic, turns: TurnNic) -> None:
    """V4. Goal: an error that is no abort surfaces too, once, and a drop does not hide it."""
    failing = Written(error=RuntimeError("the device is lost"))
    push(turns, 0, failing)
    push(turns, 1, Written(ready=True))
    failing.ready.set()
    wait_until_idle(turns)
    turns.drop()
    with pytest.raises(RuntimeError, match="the device is lost"):
        turns.commit(0, 1, b"")
    assert nic.said == []


def test_cancel_says_nothing_that_was_not_said(nic: FakeNic, turns: TurnNic) -> None:
    written = Written()
    push(turns, 0, written)
    do_once(lambda: turns._jobs[0].is_void, written.ready.set)
    turns.cancel("no")
    assert nic.said == ["cancel"]


def test_stop_waits_for_the_copy_under_way(nic: FakeNic) -> None:
    """I8. Goal: no thread, and no copy into memory that is about to go."""
    turns = TurnNic(nic)
    written = Written()
    push(turns, 0, written)
    do_once(lambda: turns._stopping, written.ready.set)
    turns.stop()
    turns.stop()
    assert written.ready.is_set()
    assert not turns._thread.is_alive()
    assert nic.said == []

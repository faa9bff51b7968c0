"""Pushes whose gradients are still being copied: in order, handed over late, never written to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.base.errors import LuwuError, StepAborted
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import Layout, Parameter, Unit
from luwu.nic.memory import ExtentGradient
from luwu.nic.shell import Nic
from luwu.nic.threads import Copies
from luwu.wire.description import Description
from tests.helpers.waiting import is_soon

WAIT_S_MAX = 20.0


class Copy:
    """A copy that is complete when the test says so."""

    def __init__(self, *, done: bool = False, error: Exception | None = None) -> None:
        self.done, self.asked, self.error = threading.Event(), threading.Event(), error
        if done:
            self.done.set()

    def ready(self) -> None:
        self.asked.set()
        assert self.done.wait(WAIT_S_MAX)
        if self.error is not None:
            raise self.error


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def copies(failures: list[Exception]) -> Iterator[Copies]:
    made = Copies(failures.append)
    yield made
    made.close()
    assert not [each for each in threading.enumerate() if each.name == "luwu-copy"]


def test_handed_over_in_order_when_they_are_complete(copies: Copies) -> None:
    """Goal: a later push that is ready, or has nothing to copy, does not pass an earlier one; the
    training thread goes on, and is told when there is none left."""
    said: list[int] = []
    copies.add(None, lambda: said.append(0))
    assert said == [0]  # at once, and without a thread
    assert copies._thread is None
    first = Copy()
    copies.add(first.ready, lambda: said.append(1))
    copies.add(Copy(done=True).ready, lambda: said.append(2))
    copies.add(None, lambda: said.append(3))
    assert first.asked.wait(WAIT_S_MAX)
    assert said == [0]
    threading.Timer(0.02, first.done.set).start()
    copies.wait(lambda: 2 in said)
    assert said[:3] == [0, 1, 2]
    copies.wait()
    assert said == [0, 1, 2, 3]


def test_a_failed_copy_ends_the_nic(copies: Copies, failures: list[Exception]) -> None:
    """Goal: the error is told once, and nothing that comes after is handed over."""
    said: list[int] = []
    copies.add(Copy(done=True, error=RuntimeError("the device is lost")).ready, said.clear)
    last = Copy(done=True)
    copies.add(last.ready, lambda: said.append(1))
    copies.wait()
    assert last.asked.is_set()  # its memory may be let go of now
    assert [str(each) for each in failures] == ["the device is lost"]
    assert said == []


def test_close_waits_for_the_copy_under_way(copies: Copies) -> None:
    """I8. Goal: no thread, and no copy into memory that is about to go."""
    copy = Copy()
    copies.add(copy.ready, lambda: None)
    threading.Timer(0.02, copy.done.set).start()
    copies.close()
    copies.close()
    assert copy.done.is_set()
    late = Copy(done=True)
    copies.add(late.ready, lambda: None)
    assert late.asked.is_set()


def describe() -> Description:
    layout = Layout(
        parameters=(Parameter(name="p", shape=(64,)),), units=(Unit(name="u", parameters=(0,)),),
        chunk_bytes=16384, optimizer_nodes=1,
    )  # fmt: skip
    return Description(layout=layout, optimizer="sgd", update="at_step")


def in_a_job(directory: Path, work: Any) -> None:
    def join(nic: Nic) -> None:
        nic.join(describe())
        nic.load([(0, memoryview(np.zeros(64, np.float32)).cast("B"))])
        work(nic)

    with LocalCluster(
        world_size=1, state=None, memory_budget_bytes=16 * 2**20, chunk_bytes=16384,
        summary=directory / "summary.json",
    ) as cluster:  # fmt: skip
        cluster.run(join)


def push(nic: Nic, copy: Copy) -> Any:
    cell = nic.cells.take(64 * 4)
    gradients = [ExtentGradient(0, cell)]
    return cell, nic.push(0, 0, 0, gradients, "float32", last=False, ready=copy.ready)


def test_an_abort_voids_what_is_still_copied(tmp_path: Path) -> None:
    """I1. Goal: a push of a lost attempt is not sent under the next one, and its cell is given back
    when the copy to it is complete."""

    def work(nic: Nic) -> None:
        copy = Copy()
        cell, handle = push(nic, copy)
        assert copy.asked.wait(WAIT_S_MAX)
        nic._command(lambda now: nic._core.cancel(now, "as planned"))
        with pytest.raises(StepAborted):
            nic._mailbox.wait_until(lambda: False, "the abort", None)
        assert cell.is_needed
        copy.done.set()
        nic.wait_for_copies()
        assert is_soon(lambda: not cell.is_needed)
        assert not handle.done
        assert nic.counters.push_bytes == 0

    in_a_job(tmp_path, work)


def test_a_copy_that_fails_is_raised(tmp_path: Path) -> None:
    """I6. Goal: the next call names it, and the worker ends with it."""

    def work(nic: Nic) -> None:
        push(nic, Copy(done=True, error=RuntimeError("the device is lost")))
        nic.commit(0, 1, b"")
        raise AssertionError("a commit without the push")

    with pytest.raises(LuwuError, match=r"worker 0 cannot be copied: .*device is lost"):
        in_a_job(tmp_path, work)

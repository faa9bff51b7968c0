"""The thread that reads a decided step: alone with its source, which it keeps alive."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from luwu.base.errors import DeadlineError, LuwuError, StateError
from luwu.layout import Layout, Parameter, Unit
from luwu.nic.reader import FieldRead
from luwu.training.reading.reading_thread import ReadingThread
from luwu.wire.description import Description


class FakeSource:
    """Counts what is asked of it, and by whom."""

    def __init__(self, version: int = 1) -> None:
        parameters = (Parameter(name="a", shape=(64,)),)
        units = (Unit(name="root", parameters=(0,)),)
        layout = Layout(parameters=parameters, units=units, chunk_bytes=16384)
        self.version = version
        self.description = Description(layout=layout, optimizer="sgd")
        self.threads: set[int] = set()
        self.fields: list[str] = []
        self.error: LuwuError | None = None
        self.was_read = threading.Event()
        self.is_closed = False

    def read(self, reads: Iterable[FieldRead]) -> None:
        self.threads.add(threading.get_ident())
        self.fields += [each.field for each in reads]
        self.was_read.set()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.is_closed = True


def weights() -> list[FieldRead]:
    return [FieldRead(0, "weight", memoryview(bytearray(256)))]


def test_one_thread_reads_and_keeps_the_step_alive() -> None:
    """Goal: a source sees one thread from its first to its last moment, and is asked for a few
    bytes while nobody asks for more."""
    source = FakeSource()
    with ReadingThread(lambda: source, keep_s=0.01) as thread:
        assert source.was_read.wait(10)
        assert set(source.fields) == {"updates"}
        thread.fetch(weights()).result()
        assert "weight" in source.fields
    assert source.is_closed
    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads


def test_what_failed_stays_failed_until_another_source_is_there() -> None:
    """Goal: an error while nobody asked is raised by the next fetch, and nothing more is asked of
    that source; one that does not open leaves the old one; then a new one works."""
    lost = FakeSource()
    lost.error = StateError("the step is gone")
    sources: list[Any] = [FakeSource(2), None, lost]

    def next_source() -> Any:
        source = sources.pop()
        if source is None:
            raise DeadlineError("nobody is there")
        return source

    with ReadingThread(next_source, keep_s=0.01) as thread:
        assert lost.was_read.wait(10)
        with pytest.raises(StateError, match="the step is gone"):
            thread.fetch(weights()).result()
        assert lost.fields == ["updates"]
        with pytest.raises(DeadlineError):
            thread.reopen()
        assert (thread.source, lost.is_closed) == (lost, False)
        thread.reopen()
        assert lost.is_closed
        assert thread.source.version == 2
        thread.fetch(weights()).result()

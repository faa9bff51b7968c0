"""A thread that reads a decided step, so that one unit comes while another computes.

    fetch(fields)    read them; the future is done when they are there
    reopen()         another source in place of this one, such as a reader of the newest step

Nothing but this thread uses the source. A node forgets a reader that sends nothing for a minute
(`switch_emu/node/core/readers.py`), so the thread reads a few bytes now and then while nothing
is asked of it: a step stays readable for as long as it is held, however long a unit computes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from luwu.base.closing import Closing
from luwu.base.errors import LuwuError
from luwu.layout import COUNT_BYTES
from luwu.nic.reader import FieldRead, StateReader
from luwu.wire.description import Description

ResultT = TypeVar("ResultT")

KEEP_S: Final = 20.0
"""A third of what a node waits for a word of a reader."""


class WeightSource(Protocol):
    """A decided step that can be read; a `StateReader`, or what reads a state at rest."""

    @property
    def version(self) -> int:
        """Count of decided steps."""

    @property
    def description(self) -> Description:
        """The job's."""

    def read(self, reads: Iterable[FieldRead]) -> None:
        """Fill every `into`."""

    def close(self) -> None:
        """Let go of it."""


OpenSource = Callable[[], WeightSource]


class ReadingThread(Closing):
    """See the module. Its methods are called by one other thread."""

    def __init__(self, open_source: OpenSource, *, keep_s: float = KEEP_S) -> None:
        """Return when the source is open. Raises what opening raises."""
        self._open_source, self._keep_s = open_source, keep_s
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._tasks = queue.SimpleQueue()
        self._source: WeightSource | None = None
        self._error: LuwuError | None = None
        """Nothing can be read from this source any more."""
        self._thread = threading.Thread(target=self._serve, name="luwu-reading", daemon=True)
        self._thread.start()
        try:
            self.reopen()
        except BaseException:
            self.close()
            raise

    @property
    def source(self) -> WeightSource:
        """The source that is read; for its version and description alone."""
        assert self._source is not None
        return self._source

    @property
    def is_lost(self) -> bool:
        """True if reading has failed, so that only another source can go on."""
        return self._error is not None

    def fetch(self, reads: Iterable[FieldRead]) -> Future[None]:
        """Read these fields. The future raises what reading raises."""
        wanted = list(reads)
        return self._submit(lambda: self._read(wanted))

    def reopen(self) -> None:
        """Open a new source, then close the old one; if that fails, the old one stays."""
        self._submit(self._open).result()

    def close(self) -> None:
        """Close the source, after what is being read; may be repeated."""
        self._tasks.put(None)
        self._thread.join()

    def _submit(self, task: Callable[[], ResultT]) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        self._tasks.put((future, task))
        return future

    def _serve(self) -> None:
        try:
            while True:
                try:
                    item = self._tasks.get(timeout=self._keep_s)
                except queue.Empty:
                    self._keep()
                    continue
                if item is None:
                    return
                future, task = item
                try:
                    future.set_result(task())
                except BaseException as exc:
                    future.set_exception(exc)
        finally:
            if self._source is not None:
                self._source.close()

    def _open(self) -> None:
        opened = self._open_source()
        try:
            if isinstance(opened, StateReader) and not opened.is_open:
                opened.open()
        except BaseException:
            opened.close()
            raise
        before, self._source, self._error = self._source, opened, None
        if before is not None and before is not opened:
            before.close()

    def _read(self, reads: list[FieldRead]) -> None:
        if self._error is not None:
            raise self._error
        assert self._source is not None
        try:
            self._source.read(reads)
        except LuwuError as error:
            self._error = error
            raise

    def _keep(self) -> None:
        """Read a few bytes; an error is raised by the next fetch."""
        if self._source is None or self._error is not None:
            return
        layout = self._source.description.layout
        trainable = next(chunk.index for chunk in layout.chunks if chunk.trainable)
        counts = memoryview(bytearray(COUNT_BYTES * layout.segments_count(trainable)))
        try:
            self._read([FieldRead(trainable, "updates", counts)])
        except LuwuError:
            pass  # `_read` remembers it

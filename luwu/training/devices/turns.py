"""A NIC that two threads use in turn: the training thread, and one that hands over pushes.

A gradient may be sent when its copy to the host is complete. The training thread must not wait for
that, so `push` only puts a job into a queue; the thread `luwu-copy` waits for the copies of the
oldest job and then calls the NIC, in order.

An abort is raised once, by the next call of the NIC. That must not split the two threads: if one of
them has seen it, whatever the other still asks for belongs to the lost attempt. So

    V1  Calls are made under one lock, after a look at what the other thread has seen.
    V2  Once either thread has seen an abort, every job there is is void: its copies are waited
        for, its cells are given back, and nothing of it is sent.
    V3  A call that blocks inside the NIC is made only while there is no job; until then the caller
        waits here. (The GPU finishes copies whatever the network does, so this ends.)
    V4  An error of the copying thread is raised by the training thread's next call, once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from luwu.base.errors import StepAborted
from luwu.nic.cells import ExtentGradient
from luwu.nic.reader import StateReader
from luwu.training.base.interface import Handle, Joined, Nic, StepHandle
from luwu.wire.description import Description

POLL_S = 0.0005
"""How often a wait for the network looks up while jobs are under way."""


class Written(Protocol):
    """A gradient on its way into a cell."""

    cell: Any

    def finish(self) -> None:
        """Block until it is there."""
        ...


class Promise:
    """A push that is handed over later."""

    shared = None

    def __init__(self) -> None:
        self.handle: Handle | None = None

    @property
    def done(self) -> bool:
        """True if the push is received."""
        return self.handle is not None and self.handle.done


@dataclass(slots=True)
class _Job:
    written: Sequence[Written]
    send: Callable[[], Handle]
    promise: Promise
    is_void: bool = False


class TurnNic:
    """See the module: `luwu.training.base.interface.Nic` around another one."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self.rank, self.world_size = nic.rank, nic.world_size
        self.chunk_bytes, self.extent_chunks = nic.chunk_bytes, nic.extent_chunks
        self.node_count = nic.node_count
        self.prefetch_units = nic.prefetch_units
        self.reshard_after_forward = nic.reshard_after_forward
        self.recorder = nic.recorder
        self.cells = TurnCells(nic.cells, self)
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        """The first one is being done."""
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="luwu-copy", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------- training thread

    def join(self, description: Description) -> Joined:
        """As the NIC's; there are no jobs yet."""
        return self._nic.join(description)

    @property
    def counters(self) -> Any:
        """As the NIC's."""
        return self._nic.counters

    @property
    def is_loaded(self) -> bool:
        """As the NIC's."""
        return self._nic.is_loaded

    @property
    def counted(self) -> int:
        """As the NIC's."""
        return self._nic.counted

    def load(self, chunks: Iterable[tuple[int, memoryview]]) -> None:
        """As the NIC's; there are no jobs yet."""
        self._nic.load(chunks)

    def attach(self, step: int, data: bytes, part: int = 0) -> None:
        """As the NIC's."""
        self._nic.attach(step, data, part)

    def open_reader(self) -> StateReader:
        """As the NIC's; a reader has a connection of its own."""
        return self._nic.open_reader()

    def leave(self) -> None:
        """As the NIC's."""
        self._nic.leave()

    def close(self) -> None:
        """As the NIC's; after `stop`."""
        self._nic.close()

    @property
    def is_closed(self) -> bool:
        """As the NIC's."""
        return self._nic.is_closed

    def push(
        self, step: int, part: int, unit: int, gradients: Sequence[ExtentGradient] | None,
        dtype: str, *, last: bool, weight: float = 1.0,
    ) -> Promise:  # fmt: skip
        """Send gradients when it may be, or that there are none; a cell is a `Written` here."""
        written = [each.cell for each in gradients or () if each.cell is not None]
        cells = None
        if gradients is not None:
            cells = [
                each if each.cell is None else each._replace(cell=each.cell.cell)
                for each in gradients
            ]
        job = _Job(
            written,
            lambda: self._nic.push(step, part, unit, cells, dtype, last=last, weight=weight),
            Promise(),
        )
        with self._changed:
            job.is_void = self._error is not None  # its copies are under way, so it is not dropped
            self._jobs.append(job)
            self._changed.notify_all()
            self._raise_error()
        return job.promise

    def pull(
        self, step: int, part: int, unit: int, memory: Callable[[], memoryview], *,
        in_place: bool = False,
    ) -> Handle:  # fmt: skip
        """As the NIC's."""
        with self._turn():
            return self._nic.pull(step, part, unit, memory, in_place=in_place)

    def forget(self, handle: Any) -> None:
        """As the NIC's."""
        with self._turn():
            self._nic.forget(handle)

    def begin(self, step: int, hyper: bytes) -> None:
        """As the NIC's."""
        with self._turn():
            self._nic.begin(step, hyper)

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool = False) -> StepHandle:
        """As the NIC's, once every push is handed over."""
        self.drain()
        return TurnStep(self._nic.commit(step, parts, hyper, skip=skip), self)

    def cancel(self, text: str) -> None:
        """As the NIC's; what was not handed over is dropped."""
        with self._changed:
            self._void_all()
        self.drain()
        self._nic.cancel(text)

    def wait(self, handle: Any) -> None:
        """As the NIC's."""
        self.pause_until(lambda: handle.done)
        if not handle.done:
            self._nic.wait(handle.handle if isinstance(handle, Promise) else handle)

    def drain(self) -> None:
        """Return when no job is left. Raises what the copying thread met with."""
        self.pause_until(lambda: False)

    def pause_until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds or no job is left; never calls the NIC."""
        with self._changed:
            while self._jobs and self._error is None and not condition():
                self._changed.wait(timeout=POLL_S)
            self._raise_error()

    def drop(self) -> None:
        """The attempt is lost: return when nothing of it is under way, and forget its abort."""
        with self._changed:
            self._void_all()
            while self._jobs:
                self._changed.wait()
            if isinstance(self._error, StepAborted):
                self._error = None

    def stop(self) -> None:
        """Drop what is left and end the thread; may be repeated."""
        with self._changed:
            self._void_all()
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._changed:
            self._raise_error()
            try:
                yield
            except StepAborted:
                self._void_all()
                raise

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _void_all(self) -> None:
        for job in self._jobs:
            job.is_void = True

    # ---------------------------------------------------------------------- copying thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopping:
                    self._changed.wait()
                if not self._jobs:
                    return
                job = self._jobs[0]
            error: BaseException | None = None
            try:
                for written in job.written:
                    written.finish()
            except Exception as exc:
                error = exc
            with self._changed:
                self._end(job, error)
                self._jobs.popleft()
                self._changed.notify_all()

    def _end(self, job: _Job, error: BaseException | None) -> None:
        """Hand a job over, or give its cells back."""
        if error is None and not job.is_void:
            try:
                job.promise.handle = job.send()
                return
            except Exception as exc:  # the NIC has given the cells back
                error = exc
        else:
            for written in job.written:
                written.cell.is_needed = False
        if error is not None:
            self._error = self._error or error
            self._void_all()


class TurnCells:
    """The cells of a `TurnNic`."""

    def __init__(self, cells: Any, turns: TurnNic) -> None:
        self._cells, self._turns = cells, turns

    def take_now(self, nbytes: int) -> Any:
        """As the NIC's."""
        return self._cells.take_now(nbytes)

    def take(self, nbytes: int) -> Any:
        """As the NIC's: a cell may come free as long as there are jobs."""
        found: list[Any] = []

        def look() -> bool:
            cell = self._cells.take_now(nbytes)
            if cell is not None:
                found.append(cell)
            return cell is not None

        self._turns.pause_until(look)
        return found[0] if found else self._cells.take(nbytes)


class TurnStep:
    """A committed step, of which the next one's jobs may be under way."""

    def __init__(self, handle: StepHandle, turns: TurnNic) -> None:
        self._handle, self._turns = handle, turns

    def verdict(self) -> tuple[bool, tuple[float, ...]]:
        """As the NIC's."""
        self._turns.drain()
        return self._handle.verdict()

    def decision(self) -> Any:
        """As the NIC's."""
        self._turns.drain()
        return self._handle.decision()

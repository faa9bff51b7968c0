"""A store for what forward saved for backward, until then: in memory first, then on disk.

`put` takes the bytes of one storage as they lie, without a copy, and gives a `Hold`; `get` gives
the bytes of a hold back; they are forgotten with the last hold on them, which is a matter of
Python's reference count: a graph that ran backward, was dropped or was lost drops its holds.

    held     `put`       in memory and nowhere else
    away     `_write`    on disk and not in memory
    ahead    `_read`     on disk, and read back because it is wanted now or soon
    gone     `_reap`     nobody can ask for it any more

Backward wants last what was saved first. So while more is held than the budget, one thread writes
what was saved first, and when something is asked for, that thread reads what was saved before it,
as far as the budget goes. The thread lives while anything is saved and ends by itself.

Invariants; the tests cite them by number:

    A1  Bytes that are handed out are those that were put: they have a checksum from the start, and
        are held against it wherever they come from. Otherwise it raises.
    A2  In memory wait at most the budget, and beyond it two storages: in forward the latest one,
        which is being written, in backward the one in use and the one that comes next (and one that
        is being read in vain, where the order is not that of a stack). `put` waits.
    A3  With the last hold everything of it is given back: memory, its place on disk, the thread.
    A4  A failed write is raised by the next `put` or `get`, whichever comes first; what could not
        be written is still in memory.

Any thread may call, and the last hold may go at any moment, even while the lock is held: it is
noted then, and cleared up by whoever has the lock.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from luwu.activations.scratch_file import ScratchFile
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import DeadlineError, LuwuError, StateError
from luwu.base.quantities import format_bytes

WAIT_S_MAX = 600.0
"""How long the disk may take before a wait for it says so."""

LOOK_S = 1.0
"""A thread that waits looks for holds that went, in case one went just before it began to wait."""


Allocate = Callable[[int], memoryview]
"""Memory of so many bytes, kept by the view."""


@dataclass(slots=True)
class ActivationStats:
    """Counts of what a store did; bytes are counted once per storage, not per view of it."""

    saved_bytes: int = 0
    """All that was ever put."""
    written_bytes: int = 0
    """Bytes of these that were written to disk."""
    read_bytes: int = 0
    """From disk."""
    live_bytes: int = 0
    """Put and not forgotten yet."""
    live_bytes_peak: int = 0
    waiting_bytes: int = 0
    """Bytes of the live ones that are in memory."""
    waiting_bytes_peak: int = 0
    waits_count: int = 0
    """Times that the script had to wait for the disk."""
    waited_s: float = 0.0
    disk_bytes: int = 0
    """Length of the file."""


class Saved:
    """The bytes of one storage."""

    __slots__ = (
        "__weakref__", "allocate", "checksum", "coming", "fault", "holds_count", "is_busy",
        "is_handed", "memory", "nbytes", "number", "offset", "ready", "source", "wanted_count",
    )  # fmt: skip

    def __init__(self, memory: memoryview, allocate: Allocate) -> None:
        self.number, self.nbytes = -1, memory.nbytes
        self.memory: memoryview | None = memory
        self.allocate = allocate
        self.checksum: int | None = None
        """None while `ready` was not called."""
        self.ready: Callable[[], object] | None = None
        """Returns when the bytes are in the memory."""
        self.source: object = None
        """Whatever the caller wants to live as long."""
        self.offset: int | None = None
        """In the file."""
        self.fault: LuwuError | None = None
        """Why its bytes are not to be had; raised as a copy, which has a traceback of its own."""
        self.holds_count = 0
        self.wanted_count = 0
        """Threads that wait for it."""
        self.is_busy = False
        """Being written or read."""
        self.coming: memoryview | None = None
        """Where it is read to, from when that is asked for. (Memory of the thread that asks: malloc
        would keep what the reading thread took for that thread.)"""
        self.is_handed = False
        """Read back, and given out since."""


class Hold:
    """One saved tensor's claim on bytes; they stay until the last claim is gone."""

    __slots__ = ("_store", "saved")

    def __init__(self, store: ActivationStore, saved: Saved) -> None:
        self._store, self.saved = store, saved

    def __del__(self) -> None:
        self._store._drop(self.saved)


class ActivationStore:
    """See the module."""

    def __init__(self, *, memory_budget: int, directory: Path) -> None:
        self.memory_budget = memory_budget
        self._file = ScratchFile(
            directory,
            what="activations",
            remedy="name another directory=, or raise memory_budget=",
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._saved: dict[int, Saved] = {}
        """By number, which is the order of `put`."""
        self._held: dict[int, Saved] = {}
        """Those of them that are in memory only."""
        self._held_bytes = 0
        self._reads: deque[Saved] = deque()
        self._dropped: deque[Saved] = deque()
        """A hold on it went, and that was not seen to yet."""
        self._error: LuwuError | None = None
        self._thread: threading.Thread | None = None
        self._stats = ActivationStats()

    # ---------------------------------------------------------------------- what the script calls

    def put(
        self, memory: memoryview, *, allocate: Allocate, checksum: int | None = None,
        ready: Callable[[], object] | None = None, source: object = None,
    ) -> Hold:  # fmt: skip
        """Keep bytes, where they lie, until the hold goes; waits while more waits than may.

        Either their `checksum` is known, or `ready` returns once they are there, and nobody else
        has this memory. Raises: StoreFullError, StateError if something could not be written.
        """
        assert (checksum is None) != (ready is None)
        saved = Saved(memory, allocate)
        saved.checksum, saved.ready, saved.source = checksum, ready, source
        saved.holds_count = 1
        hold = Hold(self, saved)  # if a wait fails, it goes
        with self._locked():
            self._raise_error()
            saved.number = next(self._numbers)
            self._saved[saved.number] = saved
            self._held[saved.number] = saved
            self._held_bytes += saved.nbytes
            stats = self._stats
            stats.saved_bytes += saved.nbytes
            stats.live_bytes += saved.nbytes
            stats.live_bytes_peak = max(stats.live_bytes_peak, stats.live_bytes)
            self._forget_copies(self.memory_budget - saved.nbytes)
            self._wait_bytes(saved.nbytes)
            if self._stats.waiting_bytes > self.memory_budget:
                self._wake()
                self._wait(lambda: self._has_room_beside(saved), "room for activations")
                self._raise_error()
        return hold

    def hold(self, saved: Saved) -> Hold | None:
        """Another hold on the same bytes; None if they are being forgotten."""
        with self._locked():
            if saved.holds_count == 0:
                return None
            saved.holds_count += 1
        return Hold(self, saved)

    def get(self, hold: Hold) -> memoryview:
        """The bytes; not to be written to.

        Raises: LuwuError if they were changed where they lay; StateError if the disk changed them,
        or failed; StoreFullError if something else could not be written.
        """
        saved = hold.saved
        while True:
            with self._locked():
                self._raise_error()
                if saved.memory is None and saved.fault is None:
                    self._await(saved)
                if saved.fault is not None:
                    raise _copy_of(saved.fault)
                memory, ready, was_handed = saved.memory, saved.ready, saved.is_handed
                assert memory is not None
                was_read = saved.offset is not None
                saved.is_handed = was_read
                self._read_ahead(saved)
            if ready is not None:
                ready()
                return memory
            if was_read and not was_handed:  # looked at as it was read
                return memory
            if checksum_of(memory) == saved.checksum:
                return memory
            if not was_read:
                raise changed_error(saved)
            with self._locked():  # who had it before wrote to it: the file has the bytes
                self._forget_copy(saved)

    def stats(self) -> ActivationStats:
        """Counts of what happened so far."""
        with self._locked():
            return replace(self._stats, disk_bytes=self._file.disk_bytes)

    # ---------------------------------------------------------------------- with the lock held

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                self._reap()
                yield
        finally:
            self._reap_if_free()

    def _drop(self, saved: Saved) -> None:
        """A hold went; this may run anywhere, within any line of this thread."""
        self._dropped.append(saved)
        self._reap_if_free()

    def _reap_if_free(self) -> None:
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self._lock.release()

    def _reap(self) -> None:
        while self._dropped:
            saved = self._dropped.popleft()
            saved.holds_count -= 1
            if saved.holds_count == 0 and self._saved.pop(saved.number, None) is not None:
                self._stats.live_bytes -= saved.nbytes
                if not saved.is_busy:
                    self._forget(saved)
            self._changed.notify_all()

    def _forget(self, saved: Saved) -> None:
        if saved.memory is not None:
            saved.memory = None
            self._wait_bytes(-saved.nbytes)
        if saved.coming is not None:
            self._give_up_read(saved)
        if saved.offset is not None:
            self._file.free(saved.offset, saved.nbytes)
            saved.offset = None
        self._is_no_longer_held(saved)
        if not self._saved:
            self._error = None  # nobody needs what could not be written

    def _forget_copy(self, saved: Saved) -> None:
        """Drop the memory of one that is on disk too."""
        if saved.offset is not None and saved.memory is not None and not saved.is_busy:
            saved.memory, saved.is_handed = None, False
            self._wait_bytes(-saved.nbytes)

    def _give_up_read(self, saved: Saved) -> None:
        self._reads.remove(saved)
        saved.coming = None
        self._wait_bytes(-saved.nbytes)

    def _wait_bytes(self, count: int) -> None:
        stats = self._stats
        stats.waiting_bytes += count
        stats.waiting_bytes_peak = max(stats.waiting_bytes_peak, stats.waiting_bytes)

    def _is_no_longer_held(self, saved: Saved) -> None:
        if self._held.pop(saved.number, None) is not None:
            self._held_bytes -= saved.nbytes

    def _forget_copies(self, until_bytes: int) -> None:
        """Those of what is on disk, until no more than so much waits in memory."""
        for each in self._saved.values():
            if self._stats.waiting_bytes <= until_bytes:
                return
            if not each.wanted_count:
                self._forget_copy(each)

    def _has_room_beside(self, latest: Saved) -> bool:
        """True if all but the latest fits into the budget; copies go first."""
        most = self.memory_budget + (0 if latest.memory is None else latest.nbytes)
        self._forget_copies(most)
        return self._stats.waiting_bytes <= most

    def _await(self, saved: Saved) -> None:
        """Return when it is in memory, or has a fault."""
        saved.wanted_count += 1
        try:
            if saved in self._reads:
                self._reads.remove(saved)
                self._reads.appendleft(saved)
            if saved.coming is None:
                self._make_room(saved, saved)
                self._ask(saved, first=True)
            self._wait(lambda: saved.memory is not None or saved.fault is not None, "a read")
        finally:
            saved.wanted_count -= 1

    def _read_ahead(self, after: Saved) -> None:
        """Ask for what was saved before this, latest first, as far as there is room."""
        nearer_count = 0
        for number in reversed(self._saved):
            each = self._saved[number]
            if number >= after.number or each.fault is not None:
                continue
            if each.memory is not None or each.coming is not None:
                nearer_count += each.offset is not None and not each.is_handed
                continue
            if not self._make_room(each, after) and nearer_count:
                return
            nearer_count += 1
            self._ask(each)

    def _make_room(self, wanted: Saved, after: Saved) -> bool:
        """For a read: what was handed out, or is not between these two, need not stay."""
        room = self.memory_budget - wanted.nbytes
        for each in self._saved.values():
            if self._stats.waiting_bytes <= room:
                break
            is_next = wanted.number < each.number < after.number and not each.is_handed
            if each is not after and not is_next and not each.wanted_count:
                self._forget_copy(each)
                if each in self._reads:
                    self._give_up_read(each)
        return self._stats.waiting_bytes <= room

    def _ask(self, saved: Saved, *, first: bool = False) -> None:
        saved.coming = saved.allocate(saved.nbytes)
        self._wait_bytes(saved.nbytes)
        if first:
            self._reads.appendleft(saved)
        else:
            self._reads.append(saved)
        self._wake()

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        if is_done():
            return
        start_ns = SYSTEM_CLOCK.now_ns()
        end_ns = start_ns + int(WAIT_S_MAX * 1e9)
        self._stats.waits_count += 1
        try:
            while self._error is None and not is_done():
                left_s = (end_ns - SYSTEM_CLOCK.now_ns()) / 1e9
                if left_s <= 0:
                    raise DeadlineError(
                        f"{self._file}: waited {WAIT_S_MAX:.0f} s for {what}; check the disk"
                    )
                self._changed.wait(min(left_s, LOOK_S))
                self._reap()
        finally:
            self._stats.waited_s += (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._changed.notify_all()
            raise error

    # ---------------------------------------------------------------------- the thread

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="luwu-activations", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            work, saved = job
            try:
                work(saved)
            except Exception as error:
                with self._locked():
                    if saved.holds_count:
                        self._error = _copy_of(error)
            with self._locked():
                saved.is_busy = False
                if saved.holds_count == 0:
                    self._forget(saved)
                self._changed.notify_all()
            del job, saved  # what it holds must not live until the next job

    def _next(self) -> tuple[Callable[[Saved], None], Saved] | None:
        """Wait for a read or a write; None if nothing is saved any more."""
        with self._locked():
            while True:
                if self._reads:
                    saved = self._reads.popleft()
                    saved.is_busy = True
                    return self._read, saved
                if self._held_bytes > self.memory_budget and self._error is None:
                    oldest = next(iter(self._held.values()))
                    oldest.is_busy = True
                    return self._write, oldest
                if not self._saved:
                    self._thread = None
                    return None
                self._changed.wait(LOOK_S)
                self._reap()

    def _write(self, saved: Saved) -> None:
        memory = saved.memory
        assert memory is not None
        if saved.ready is not None:
            saved.ready()
            saved.checksum, saved.ready = checksum_of(memory), None
        offset = None
        try:
            offset = self._file.take(saved.nbytes)
            self._file.write(offset, memory)
        except Exception:
            if offset is not None:
                self._file.free(offset, saved.nbytes)
            raise
        fault = None if checksum_of(memory) == saved.checksum else changed_error(saved)
        with self._locked():
            saved.offset, saved.memory, saved.fault = offset, None, fault
            self._is_no_longer_held(saved)
            self._wait_bytes(-saved.nbytes)
            self._stats.written_bytes += saved.nbytes

    def _read(self, saved: Saved) -> None:
        memory = saved.coming
        assert saved.offset is not None
        assert memory is not None
        fault: LuwuError | None = None
        try:
            self._file.read(saved.offset, memory)
            found = checksum_of(memory)
            if found != saved.checksum:
                fault = StateError(
                    f"{self._file}: checksum {found:#034x} of {format_bytes(saved.nbytes)} at "
                    f"offset {saved.offset}, expected {saved.checksum:#034x}. The bytes changed "
                    "after they were written; check the disk or name another directory=, and "
                    "compute the step again"
                )
        except Exception as error:
            fault = _copy_of(error)
        with self._locked():
            saved.coming = None
            if fault is not None:
                saved.fault = fault
                self._wait_bytes(-saved.nbytes)
                return
            saved.memory = memory
            self._stats.read_bytes += saved.nbytes


def _copy_of(error: Exception) -> LuwuError:
    """The error without its traceback, whose frames would keep memory and holds alive."""
    if isinstance(error, LuwuError):
        return type(error)(str(error))
    return LuwuError(f"the thread that moves activations failed: {error!r}")


def checksum_of(memory: memoryview) -> int:
    """XXH3-128."""
    return xxhash.xxh3_128_intdigest(memory)


def changed_error(saved: Saved) -> LuwuError:
    """Somebody wrote where the bytes lay."""
    return LuwuError(
        f"a tensor of {format_bytes(saved.nbytes)} that was saved for backward was changed in "
        "place afterwards, so its gradient would be wrong; work on a clone() of it"
    )

"""The shared memory that a process owns: its limits, its free stretches, and the arena itself.

An arena is sparse, so a system that cannot hold it says nothing when it is made and kills the
process when it is filled. Each limit that would end it is looked up first (`check_arena`):

    memfd_create    missing outside Linux, or forbidden by a sandbox
    RLIMIT_FSIZE    `ulimit -f`: the largest file, and a memfd is one
    RLIMIT_AS       `ulimit -v`: all that a process may map; peers map our arena too
    memory          of the machine, or of the tightest control group around this process

Memory that others use now is not looked at: a plan of all processes decides about that.

Invariants of `FreeList`; the tests cite them by number:

    AF1  Free stretches are sorted, not empty, and no two of them touch.
    AF2  Free and taken stretches together are the whole, and none overlaps another.
"""

from __future__ import annotations

import fcntl
import os
import resource
from bisect import bisect_left
from collections import deque
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.process_memory import ARENA_NAME
from luwu.transport.interface import CreditExceeded, anonymous_memory
from luwu.transport.mapping import SEALS, Access, Region, advise_huge, part_of

PAGE_BYTES: Final = 4096

_GROUPS: Final = Path("/sys/fs/cgroup")


def check_arena(nbytes: int) -> None:
    """Refuse an arena that this process could not make and fill. Raises ConfigError."""
    if nbytes < 0:
        raise ConfigError(f"arena_bytes must be >= 0, got {nbytes!r}")
    if nbytes == 0:
        return
    _check_memfd()
    soft, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft not in (resource.RLIM_INFINITY, -1) and nbytes > soft:
        raise ConfigError(
            f"an arena of {nbytes} bytes exceeds RLIMIT_FSIZE, which is {soft}; raise it with "
            f"ulimit -f, or make the arena smaller"
        )
    soft, _hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE_BYTES
    if soft not in (resource.RLIM_INFINITY, -1) and mapped + nbytes > soft:
        raise ConfigError(
            f"an arena of {nbytes} bytes and the {mapped} bytes already mapped exceed RLIMIT_AS, "
            f"which is {soft}; raise it with ulimit -v, or make the arena smaller"
        )
    limit, whose = memory_limit()
    if nbytes > limit:
        raise ConfigError(
            f"an arena of {nbytes} bytes exceeds the memory of {whose}, which is {limit} bytes; "
            f"make the arena smaller, or give it more memory"
        )


def memory_limit() -> tuple[int, str]:
    """Bytes of memory this process can ever have, and whose limit that is."""
    found = [(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine")]
    for file in _group_files():
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():  # "max" is no limit
            found.append((int(text), f"the control group at {file.parent}"))
    return min(found)


def _check_memfd() -> None:
    try:
        os.close(os.memfd_create("luwu-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (AttributeError, OSError) as exc:
        raise ConfigError(
            f"memfd_create, which shared memory needs, does not work here ({exc}); it needs Linux, "
            f"free file descriptors and a sandbox that allows it. Use ipc:// instead."
        ) from exc


def _group_files() -> list[Path]:
    """Files with the limits of our control group and of those around it; versions 1 and 2."""
    files: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return files
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        files += [each / name for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return files


class FreeList:
    """The free bytes of [0, nbytes): first fit, neighbours joined."""

    __slots__ = ("free_bytes", "stretches")

    def __init__(self, nbytes: int) -> None:
        self.stretches = [(0, nbytes)] if nbytes else []
        """(start, end) of each free stretch, in order."""
        self.free_bytes = nbytes

    def take(self, nbytes: int) -> int | None:
        """The start of the first free stretch that is large enough; None if there is none."""
        for index, (start, end) in enumerate(self.stretches):
            if end - start >= nbytes:
                if end - start == nbytes:
                    del self.stretches[index]
                else:
                    self.stretches[index] = (start + nbytes, end)
                self.free_bytes -= nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Give back what `take` returned."""
        end = start + nbytes
        self.free_bytes += nbytes
        first = last = bisect_left(self.stretches, (start, end))
        if first > 0 and self.stretches[first - 1][1] == start:
            first -= 1
            start = self.stretches[first][0]
        if last < len(self.stretches) and self.stretches[last][0] == end:
            end = self.stretches[last][1]
            last += 1
        self.stretches[first:last] = [(start, end)]

    def largest_bytes(self) -> int:
        """The largest free stretch."""
        return max((end - start for start, end in self.stretches), default=0)


_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Arena:
    """The shared memory that we own; `region` is None for an arena of no bytes.

        free     -> reserved   `reserve`
        reserved -> free       the last view of it is gone, noticed by the next `reserve`

    A send that is not done holds its views, so memory that a peer may still read is never free. The
    end of a last view may come in any thread, even from the garbage collector in the middle of
    `reserve`; hence it takes no lock and touches no list: it leaves a note in a deque, which
    `reserve` reads. The file is sparse: memory is used when it is first written, and kept until the
    arena ends.
    """

    def __init__(self, nbytes: int) -> None:
        """Raises ConfigError where a limit forbids it."""
        check_arena(nbytes)
        self.nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        self.region = _new_region(self.nbytes) if nbytes else None
        self._view = self.region.view if self.region is not None else None
        self._free = FreeList(self.nbytes)
        self._ended: deque[tuple[int, int]] = deque()

    def reserve(self, nbytes: int) -> memoryview:
        """Page-aligned memory; see `Transport.reserve`. Without an arena it is ordinary memory."""
        if nbytes <= 0 or self.nbytes == 0:
            return anonymous_memory(nbytes)
        ended = self._ended
        while ended:
            self._free.give(*ended.popleft())
        taken_bytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        start = self._free.take(taken_bytes) if self._view is not None else None
        if start is None or self._view is None:
            raise CreditExceeded(
                f"no room for {nbytes} bytes in an arena of {self.nbytes}: {self._free.free_bytes} "
                f"are free, {self._free.largest_bytes()} in one piece. Wait until handles are done "
                f"and views are gone, or make the arena larger."
            )
        return part_of(self._view, start, nbytes, ended.append, (start, taken_bytes))

    def close(self) -> None:
        """Give no more; what is reserved stays until its last view is gone."""
        self.region = self._view = None


def _new_region(nbytes: int) -> Region:
    fd = os.memfd_create(f"{ARENA_NAME}{os.getpid()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        region = Region(fd, nbytes, access=Access.OWN)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)  # after our mapping: nobody writes but we
    except OSError as exc:
        os.close(fd)
        raise ConfigError(
            f"cannot make an arena of {nbytes} bytes of shared memory: {exc}. It needs Linux 5.1 "
            f"and the address space; make it smaller, or use ipc:// instead."
        ) from exc
    if _advised():
        advise_huge(region.view)
    return region


def _advised() -> bool:
    """True if this system gives huge pages to shared memory that asks for them."""
    try:
        return "[advise]" in _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False

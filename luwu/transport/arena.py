"""Shared memory: arenas of ours and of peers, each mapped once in this process (`Region`).

An arena is a memfd: it has no name, so nothing is left behind when its last user dies. The seals

    GROW, SHRINK     its size is for good: no process that maps it can be hit by SIGBUS
    FUTURE_WRITE     its owner, which has mapped it, is the only one that can write to it
    SEAL             and that stays so

are what makes a descriptor from a peer safe to map, and all of it that a receiver must check. Peers
map it private and writable: a process that writes to received weights by mistake gets pages of its
own and harms no other process; until then private pages show what the owner writes. Memory that a
GPU copies from is mapped shared and read-only instead: a private page becomes our own by being
pinned, and from then on it does not show what the owner writes.

A mapping ends when its region is dropped and the last view of it is gone, whichever comes last.
The calls are libc's, because an `mmap.mmap` keeps a descriptor open as long as it is mapped.

How a buffer is found again: `Regions.at` looks its address up among the regions. The address of a
view costs (measured, CPython 3.11) 0.25 us where it may be written and 1.2 us where it may not, as
of those that are handed on.

An arena of ours is sparse, so a system that cannot hold it says nothing when it is made and kills
the process when it is filled. Each limit that would end it is looked up first (`check_arena`):

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

import ctypes
import fcntl
import mmap
import os
import resource
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from enum import Enum
from pathlib import Path
from typing import Any, Final

from luwu.base.address import address_of
from luwu.base.errors import ConfigError, ConnectionFailed, RemoteProtocolError
from luwu.base.libc import MAP_NORESERVE, advise_pages, map_pages, unmap_pages
from luwu.base.machine_memory import memory_limit
from luwu.base.process_memory import ARENA_NAME
from luwu.transport.interface import CreditExceeded, anonymous_memory

SEALS: Final = (
    fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | 0x10  # F_SEAL_FUTURE_WRITE
)
_SEALS_NEEDED: Final = fcntl.F_SEAL_SHRINK


class Access(Enum):
    """How an arena is mapped."""

    OWN = "shared and writable"
    PRIVATE = "writes make pages of one's own"
    READ_ONLY = "shared, and never written: a device may be given it"


class Region:
    """One arena mapped here, our own or a peer's."""

    __slots__ = ("base", "end", "fd", "key", "nbytes", "shown", "users_count", "view")

    def __init__(self, fd: int, nbytes: int, *, access: Access) -> None:
        """Map the whole of `fd`, which the region then owns. Raises OSError."""
        self.view = map_memory(fd, nbytes, access)
        """What `reserve` gives is cut from it, and what is received from `shown`."""
        self.shown = self.view.toreadonly()
        self.base = address_of(self.view)
        self.end = self.base + nbytes
        self.nbytes = nbytes
        self.fd = fd
        self.key = key_of(fd)
        self.users_count = 1


class Regions:
    """The regions of one transport, by the file they are and by the addresses they have."""

    def __init__(self, peers: Access = Access.PRIVATE) -> None:
        """`peers`: how the arenas of peers are mapped."""
        self._peers = peers
        self._bases: list[int] = []
        self._sorted: list[Region] = []
        self._by_key: dict[tuple[int, int], Region] = {}

    def add(self, region: Region) -> None:
        """From now on found by `at` and `adopt`."""
        index = bisect_right(self._bases, region.base)
        self._bases.insert(index, region.base)
        self._sorted.insert(index, region)
        self._by_key[region.key] = region

    def adopt(self, fd: int, nbytes: int) -> Region:
        """The region of a descriptor that a peer passed: a new one, or one more use of it.

        Takes the descriptor over. Raises RemoteProtocolError for what is not a sealed memfd of this
        size, ConnectionFailed if it cannot be mapped here.
        """
        try:
            _check_descriptor(fd, nbytes)
            region = self._by_key.get(key_of(fd))
            if region is not None:
                region.users_count += 1
                os.close(fd)
                return region
            try:
                region = Region(fd, nbytes, access=self._peers)
            except (OSError, OverflowError, ValueError) as exc:
                raise ConnectionFailed(
                    f"cannot map an arena of {nbytes} bytes: {exc}. Allow this process more "
                    f"address space (ulimit -v), or make the arena smaller."
                ) from exc
        except BaseException:
            os.close(fd)
            raise
        self.add(region)
        return region

    def drop(self, region: Region) -> bool:
        """End one use of a region; True if it was the last: then it is no longer found."""
        region.users_count -= 1
        if region.users_count:
            return False
        index = self._sorted.index(region)
        del self._bases[index], self._sorted[index], self._by_key[region.key]
        os.close(region.fd)
        return True

    def at(self, view: memoryview) -> tuple[Region, int] | None:
        """The region in which all of a view (not empty) lies, and its offset there."""
        if not self._bases:
            return None
        address = address_of(view)
        index = bisect_right(self._bases, address) - 1
        if index < 0:
            return None
        region = self._sorted[index]
        if address + view.nbytes > region.end:
            return None
        return region, address - region.base


def map_memory(fd: int, nbytes: int, access: Access) -> memoryview:
    """A view of a whole file; unmapped with the last view. Raises OSError."""
    # Without NORESERVE the kernel refuses a private mapping larger than its memory, though nobody
    # means to write there.
    flags = mmap.MAP_PRIVATE | MAP_NORESERVE if access is Access.PRIVATE else mmap.MAP_SHARED
    protection = mmap.PROT_READ
    if access is not Access.READ_ONLY:
        protection |= mmap.PROT_WRITE
    try:
        address = map_pages(None, nbytes, protection, flags, fd)
    except OSError:
        if access is not Access.PRIVATE:
            raise
        # Private memory that could be written counts against RLIMIT_DATA; what can only be read
        # does not. Then a write by mistake ends the process.
        address = map_pages(None, nbytes, mmap.PROT_READ, flags, fd)
    owner = (ctypes.c_ubyte * nbytes).from_address(address)
    return _owning_view(owner, unmap_pages, address, nbytes)


def part_of(view: memoryview, start: int, nbytes: int, at_end: Any, *values: Any) -> memoryview:
    """A part of writable memory; `at_end(*values)` is called when the last view of it is gone."""
    return _owning_view((ctypes.c_ubyte * nbytes).from_buffer(view, start), at_end, *values)


def key_of(fd: int) -> tuple[int, int]:
    """The identity of the file behind a descriptor, which cannot be forged."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _owning_view(owner: Any, at_end: Any, *values: Any) -> memoryview:
    weakref.finalize(owner, at_end, *values).atexit = False
    return memoryview(owner).cast("B")


def _check_descriptor(fd: int, nbytes: int) -> None:
    found_bytes = os.fstat(fd).st_size
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS_NEEDED != _SEALS_NEEDED or found_bytes != nbytes or nbytes <= 0:
        raise RemoteProtocolError(
            f"a descriptor announced as an arena of {nbytes} bytes has {found_bytes} bytes and the "
            f"seals {seals:#x}; a memfd that cannot shrink (seal {_SEALS_NEEDED:#x}) was expected. "
            f"It was closed; does the peer have the same version?"
        )


PAGE_BYTES: Final = 4096


def check_arena(nbytes: int) -> None:
    """Refuse an arena that this process could not make and fill. Raises ConfigError."""
    if nbytes == 0:
        return
    _check_memfd()
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE_BYTES
    for name, option, needed, text in (
        ("RLIMIT_FSIZE", "-f", nbytes, "exceeds"),
        ("RLIMIT_AS", "-v", mapped + nbytes, f"and the {mapped} bytes already mapped exceed"),
    ):
        soft, _hard = resource.getrlimit(getattr(resource, name))
        if soft not in (resource.RLIM_INFINITY, -1) and needed > soft:
            raise ConfigError(
                f"an arena of {nbytes} bytes {text} {name}, which is {soft}; raise it with "
                f"ulimit {option}, or make the arena smaller"
            )
    limit, whose = memory_limit()
    if nbytes > limit:
        raise ConfigError(
            f"an arena of {nbytes} bytes exceeds the memory of {whose}, which is {limit} bytes; "
            f"make the arena smaller, or give it more memory"
        )


def _check_memfd() -> None:
    try:
        os.close(os.memfd_create("luwu-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (AttributeError, OSError) as exc:
        raise ConfigError(
            f"memfd_create, which shared memory needs, does not work here ({exc}); it needs Linux, "
            f"free file descriptors and a sandbox that allows it. Use ipc:// instead."
        ) from exc


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
        if nbytes == 0 or self.nbytes == 0:
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
    if _advised():  # a wish, so failing is no error
        advise_pages(region.base, nbytes, mmap.MADV_HUGEPAGE)
    return region


def _advised() -> bool:
    """True if this system gives huge pages to shared memory that asks for them."""
    try:
        return "[advise]" in _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False

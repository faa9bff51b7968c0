"""Shared memory as this process sees it: regions, each one arena mapped once.

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
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from bisect import bisect_right
from enum import Enum
from typing import Any, Final

from luwu.base.address import address_of
from luwu.base.errors import ConnectionFailed, RemoteProtocolError
from luwu.base.libc import MAP_NORESERVE, advise_pages, map_pages, unmap_pages

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


def advise_huge(view: memoryview) -> None:
    """Ask for huge pages; a wish, so failing is no error."""
    advise_pages(address_of(view), view.nbytes, mmap.MADV_HUGEPAGE)


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

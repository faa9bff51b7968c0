"""Addresses that stay ours while the memory behind them comes and goes.

    reserved nothing was there yet: reading or writing ends with SIGSEGV
    empty    its memory is elsewhere by now: whatever floating-point type is read there, it is NaN;
             to write ends the process with SIGSEGV
    filled   `Memory.fill`   memory of our own, with anything in it
    spare    `Memory.spare`  filled and not needed: the memory of the next range that is filled

A tensor made once at these addresses sees what lies there by now, and so does whatever was computed
from it and looks at it again.

Empty addresses can be read because debuggers, loggers and reports of failed tests print what they
find in the frames of an exception, also parameters whose weights have gone: NaN says so, and a
crash would hide what went wrong.

Memory is moved from range to range, not given back and taken again: the kernel clears what it
gives, which costs as much as to fill it, and more on a virtual machine, whose host takes back what
is free. (A billion parameters, two workers: 16 GB were cleared in each step; 20.6 s became 14.5.)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import threading
import weakref
from typing import Final

from luwu.base.libc import (
    MAP_NORESERVE,
    advise_pages,
    map_pages,
    move_pages,
    protect_pages,
    repeat_pages,
    unmap_pages,
)

PAGE_BYTES: Final = mmap.PAGESIZE
_HUGE_BYTES: Final = 2 * 1024 * 1024
_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_RESERVED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
_OWN: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
_SHARED: Final = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
_NAN_PIECES_MAX: Final = 64
"""Mappings that an empty range is made of: the kernel allows a process 65,530."""
_NAN_PIECE_BYTES_MIN: Final = 64 * 1024


class AddressRange:
    """`nbytes` addresses, from a multiple of 2 MiB on; given back with the last view of them."""

    def __init__(self, nbytes: int) -> None:
        """Raises OSError where so many addresses are not to be had."""
        self.nbytes = nbytes
        self.length = max(PAGE_BYTES, -(-nbytes // PAGE_BYTES) * PAGE_BYTES)
        """Its length, in whole pages."""
        reserved = self.length + _HUGE_BYTES
        start = map_pages(None, reserved, _PROT_NONE, _RESERVED)
        self.address = -(-start // _HUGE_BYTES) * _HUGE_BYTES
        self._owner = (ctypes.c_ubyte * nbytes).from_address(self.address)
        weakref.finalize(self._owner, unmap_pages, start, reserved).atexit = False

    def view(self) -> memoryview:
        """The addresses as bytes; only to be read or written while they are filled."""
        return memoryview(self._owner).cast("B")

    def fill(self) -> None:
        """Put new memory behind it; it is taken as it is first written."""
        map_pages(self.address, self.length, mmap.PROT_READ | mmap.PROT_WRITE, _OWN)
        if self.length >= _HUGE_BYTES:
            advise_pages(self.address, self.length, mmap.MADV_HUGEPAGE)

    def fill_from(self, spare: AddressRange) -> bool:
        """Move the memory of another range of this length here; False where that cannot be done,
        and nothing was changed."""
        try:
            move_pages(spare.address, self.address, self.length)
        except OSError:
            return False
        spare.empty()
        return True

    def empty(self) -> None:
        """Give back what is behind it; the addresses stay ours."""
        map_pages(self.address, self.length, _PROT_NONE, _RESERVED | _MAP_FIXED)
        piece = _NAN_PIECE_BYTES_MIN
        while piece * _NAN_PIECES_MAX < self.length:
            piece *= 2
        with contextlib.suppress(OSError):  # a kernel that cannot: as before it was first filled
            for start in range(0, self.length, piece):
                nbytes = min(piece, self.length - start)
                repeat_pages(_nan_pages(piece), self.address + start, nbytes)


class Memory:
    """The memory of several ranges: no more than was ever in use at once. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spares: list[AddressRange] = []

    def fill(self, into: AddressRange) -> None:
        """Put memory behind a range: its own, that of a spare one as long, or new."""
        with self._lock:
            if into in self._spares:
                self._spares.remove(into)
                return
            latest_first = reversed(self._spares)  # may be in the cache
            found = next((each for each in latest_first if each.length == into.length), None)
            if found is not None and into.fill_from(found):
                self._spares.remove(found)
                return
            self._give_back(into.length)
            into.fill()

    def spare(self, filled: AddressRange) -> None:
        """A range is not needed for now; what lies there may be read by mistake until it moves."""
        with self._lock:
            self._spares.append(filled)

    def _give_back(self, nbytes: int) -> None:
        """Spares of so many bytes, or all."""
        while self._spares and nbytes > 0:
            oldest = self._spares.pop(0)
            oldest.empty()
            nbytes -= oldest.length


@functools.cache
def _nan_pages(nbytes: int) -> int:
    """The address of memory that can be read and mapped again, NaN whatever float it is read as."""
    address = map_pages(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED)
    ctypes.memset(address, 0xFF, nbytes)
    protect_pages(address, nbytes, mmap.PROT_READ)
    return address

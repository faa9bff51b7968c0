"""Calls of libc that Python does not offer: `mmap.mmap` cannot reserve addresses, map at a given
one, nor let go of its descriptor while it is mapped; and nothing tells `malloc` what to keep."""

from __future__ import annotations

import ctypes
import os
from typing import Final

MAP_NORESERVE: Final = 0x4000
"""A flag for `map_pages`; the `mmap` of Python 3.11 has no name for it."""
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_M_ARENA_MAX: Final = -8
"""<malloc.h>"""
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.mmap.restype = _libc.mremap.restype = _ADDRESS
_libc.mmap.argtypes = [_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_int64]
_libc.mremap.argtypes = [_ADDRESS, _SIZE, _SIZE, _INT, _ADDRESS]
_libc.munmap.argtypes = [_ADDRESS, _SIZE]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [_ADDRESS, _SIZE, _INT]


def map_pages(address: int | None, nbytes: int, protection: int, flags: int, fd: int = -1) -> int:
    """The address of a new mapping. Raises OSError."""
    return _checked(_libc.mmap(address, nbytes, protection, flags, fd, 0))


def move_pages(address: int, to: int, nbytes: int) -> None:
    """Move what lies behind addresses to others, and leave the first mapped. Raises OSError.

    Needs Linux 5.7; nothing was changed if it fails.
    """
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    _checked(_libc.mremap(address, nbytes, nbytes, flags, to))


def repeat_pages(address: int, to: int, nbytes: int) -> None:
    """Map the beginning of a shared mapping a second time. Raises OSError."""
    _checked(_libc.mremap(address, 0, nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, to))


def protect_pages(address: int, nbytes: int, protection: int) -> None:
    """Change what may be done with a mapping. Raises OSError."""
    if _libc.mprotect(address, nbytes, protection):
        raise _error()


def unmap_pages(address: int, nbytes: int) -> None:
    """End a mapping."""
    _libc.munmap(address, nbytes)


def advise_pages(address: int, nbytes: int, advice: int) -> None:
    """Say how pages will be used; a wish, so failing is no error."""
    _libc.madvise(address, nbytes, advice)


def keep_one_arena() -> None:
    """All threads of this process share one arena of `malloc`; to be called before there are any.

    By default each thread has its own and keeps there what was freed: the most that thread ever
    held at once, instead of the most that all did. Other C libraries than glibc have no arenas.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _checked(found: int | None) -> int:
    if found is None or found == _MAP_FAILED:
        raise _error()
    return found


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))

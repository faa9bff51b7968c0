"""The arena of one transport: shared memory from which `reserve` gives, and peers read in place.

    free     -> reserved   `Arena.reserve`
    reserved -> free       the last view of it is gone, noticed by the next `reserve`

A send that is not done holds its views, so memory that a peer may still read is never free. The end
of a last view may come in any thread, even from the garbage collector in the middle of `reserve`;
hence it takes no lock and touches no list: it leaves a note in a deque, which `reserve` reads.

The file is sparse: memory is used when it is first written, and kept until the arena ends.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.process_memory import ARENA_NAME
from luwu.transport.arena_limits import PAGE_BYTES, check_arena
from luwu.transport.credits import anonymous_memory
from luwu.transport.free_list import FreeList
from luwu.transport.interface import CreditExceeded
from luwu.transport.mapping import SEALS, Access, Region, advise_huge, part_of

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Arena:
    """The shared memory that we own; `region` is None for an arena of no bytes."""

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

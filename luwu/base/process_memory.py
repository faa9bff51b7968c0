"""Memory of processes as the kernel counts it, each page once.

A page of shared memory is in RssShmem of every process that maps it, so the sum over a job counts
gradients two or three times. Here an arena (`luwu/transport/shm.py`) is that of the process that
made it, whose number its name has. So the sum over all processes is what they take, and that of the
kernel's Pss without pages of files, which costs a walk over all pages: 23 ms a GiB.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ARENA_NAME: Final = "luwu-arena-"
"""First part of the name of an arena's memfd; the number of its process follows."""
_BLOCK_BYTES: Final = 512
_COUNTS: Final = ("RssAnon", "RssShmem")
_SHARED: Final = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
"""RssShmem counts the pages of mappings whose paths begin so."""


def private_bytes(pid: int) -> int | None:
    """Memory of a process that is no file's and in no arena of another; None if it is gone.

    RssAnon, its own arenas, and what is left of RssShmem, as far as other memory is shared.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        own_bytes, others_bytes = _arenas_bytes(pid)
        fields = dict(line.split(":", 1) for line in text.splitlines())
        if "RssAnon" not in fields:  # it has ended, and is not collected
            return 0
        anonymous, shared = (int(fields[each].split()[0]) * 1024 for each in _COUNTS)
        # It may map less of an arena than there is; and RssShmem may have an arena of a connection
        # that has ended, whose descriptor is closed, while it is in use, and while the kernel
        # unmaps it.
        left = shared - own_bytes - others_bytes
        if left > 0:  # seldom: of these files the list of mappings is by far the dearest to read
            left = min(left, _shared_beside_arenas_bytes(pid))
    except OSError:
        return None
    return anonymous + own_bytes + max(0, left)


def _arenas_bytes(pid: int) -> tuple[int, int]:
    """What the arenas take whose descriptors a process has: its own, and those of others."""
    own: dict[int, int] = {}
    others: dict[int, int] = {}
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            try:
                name = os.readlink(entry.path)
                _, is_arena, made_by = name.partition(f"memfd:{ARENA_NAME}")
                if is_arena:
                    found = os.stat(entry.path)
                    arenas = own if made_by.split()[0] == str(pid) else others
                    arenas[found.st_ino] = found.st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # closed meanwhile
    return sum(own.values()), sum(others.values())


def _shared_beside_arenas_bytes(pid: int) -> int:
    """The most that a process's shared memory may take which is no arena: of torch's workers, say.

    What is mapped several times counts once.
    """
    sizes: dict[str, int] = {}
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        if path and path[0].startswith(_SHARED) and ARENA_NAME not in path[0]:
            start, end = (int(each, 16) for each in span.split("-"))
            sizes[inode] = max(sizes.get(inode, 0), end - start)
    return sum(sizes.values())

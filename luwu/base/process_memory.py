"""Memory of processes as the kernel counts it, each page once.

A page of shared memory is in RssShmem of every process that maps it, so the sum over a job counts
gradients two or three times. Here an arena (`luwu/transport/arena.py`) is that of the process that
made it, whose number its name has. So the sum over all processes is what they take, and that of the
kernel's Pss without pages of files, which costs a walk over all pages: 23 ms a GiB.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ARENA_NAME: Final = "luwu-arena-"
"""Of an arena's memfd, before the number of the process that made it."""
_BLOCK_BYTES: Final = 512


def private_bytes(pid: int) -> int | None:
    """Memory of a process that is no file's and in no arena of another; None if it is gone.

    RssAnon and RssShmem, less what it maps of other processes' arenas.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        own, others = _arenas_bytes(pid)
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines())
    if "RssAnon" not in fields:  # it has ended, and is not collected
        return 0
    anonymous, shared = (int(fields[each].split()[0]) * 1024 for each in ("RssAnon", "RssShmem"))
    # It may map less of an arena than there is, so what is left of RssShmem may be too little.
    return anonymous + max(own, shared - others)


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

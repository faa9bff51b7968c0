"""Limits of the machine on shared memory, read before anything is mapped.

An arena is sparse, so a system that cannot hold it says nothing when it is made and kills the
process when it is filled. Each limit that would end it is looked up here instead:

    memfd_create    missing outside Linux, or forbidden by a sandbox
    RLIMIT_FSIZE    `ulimit -f`: the largest file, and a memfd is one
    RLIMIT_AS       `ulimit -v`: all that a process may map; peers map our arena too
    memory          of the machine, or of the tightest control group around this process

Memory that others use now is not looked at: a plan of all processes decides about that.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError

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

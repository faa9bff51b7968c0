"""Memory of this machine: what this process can ever have, and what is free now.

A control group around us may allow less than the machine has: limits of versions 1 and 2 count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError

_GROUPS: Final = Path("/sys/fs/cgroup")
_USED: Final = {
    "memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"
}  # fmt: skip
"""Files of a group: its limit, and what it takes now."""


def memory_limit() -> tuple[int, str]:
    """Bytes of memory this process can ever have, and whose limit that is."""
    found = [(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine")]
    for file in _group_files():
        limit = _number(file)
        if limit is not None:
            found.append((limit, f"the control group at {file.parent}"))
    return min(found)


def free_memory_bytes() -> int:
    """Memory that could be allocated now: the machine's, or our control group's if less."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    if kib is None:
        raise ConfigError("/proc/meminfo does not show the free memory; give --memory-budget")
    free = int(kib) * 1024
    for file in _group_files():
        limit, used = _number(file), _number(file.with_name(_USED[file.name]))
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free


def _number(file: Path) -> int | None:
    """The number in a file of a group; None where it has none: `max` is no limit."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _group_files() -> list[Path]:
    """Files with the limits of our control group and of those around it; versions 1 and 2."""
    files: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return files
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        files += [each / name for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return files

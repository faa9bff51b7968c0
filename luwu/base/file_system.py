"""The kind of file system that a directory is on: a disk, or memory that a reboot empties."""

from __future__ import annotations

import os
from pathlib import Path


def memory_kind(directory: Path) -> str | None:
    """tmpfs or ramfs where a directory is, or will be made, in memory; else None."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    device = place.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == number:
            return kind if (kind := rest.split()[0]) in ("tmpfs", "ramfs") else None
    return None

"""What the kernel counts as this process's memory."""

from __future__ import annotations

from pathlib import Path


def memory_bytes(name: str) -> int:
    """VmData, VmRSS, or its peak VmHWM (`ru_maxrss` begins with that of the parent process); 0 if
    this kernel does not tell it."""
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0

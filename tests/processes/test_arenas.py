"""Threads of a process share what they freed: none keeps its own worst (`allocator.py`)."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster
from tests.processes.jobs import Outside

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="no other libc has arenas"
)
THREADS = 6
SCRIPT = f"""
import ctypes, sys, threading
from luwu.base.libc import keep_one_arena

if sys.argv[1] == "one":
    keep_one_arena()
libc = ctypes.CDLL(None)
all_here = threading.Barrier({THREADS})

def hold():
    libc.malloc(65536)
    all_here.wait()  # an arena of a thread that has ended serves the next

threads = [threading.Thread(target=hold) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(open("/proc/self/maps").read(), end="")
"""


def threads_with_arena(maps: str) -> int:
    """An arena is 64 MiB of anonymous memory, from a multiple of 64 MiB on; what it does not use
    yet cannot be touched."""
    found, used = 0, ("", "")
    for line in maps.splitlines():
        start, end, access, name = re.fullmatch(
            r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)", line
        ).groups()
        is_rest = not name and access == "---p" and start == used[1]
        if is_rest and int(end, 16) - int(used[0], 16) >= 64 << 20:
            found += 1
        is_first = not name and access == "rw-p" and int(start, 16) % (64 << 20) == 0
        used = (start, end) if is_first else ("", "")
    return found


@needs_glibc
def test_threads_have_one_arena_if_asked() -> None:
    """Goal: a process that was not started by us, the launcher, can do it too."""
    for asked, arenas in (("many", THREADS), ("one", 0)):
        command = [sys.executable, "-c", SCRIPT, asked]
        maps = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert threads_with_arena(maps) == arenas


@needs_glibc
def test_processes_of_a_run_have_one_arena(tmp_path: Path) -> None:
    """Goal: none keeps the worst of each thread."""
    flags = ("--workers", "2", "--transport", "tcp", "--state", str(tmp_path / "state"))
    environ = Outside(tmp_path / "tmp").environ
    script = ("-m", "tests.light_job", "--steps", "1000000")
    with Cluster.run(tmp_path, *script, flags=flags, environ=environ) as cluster:
        cluster.wait_for_steps(3, limit_s=120)
        pids = {each.role: each.pid for each in cluster.processes()}
        pids["launcher"] = cluster.pid
        found = {
            role: threads_with_arena(Path(f"/proc/{pid}/maps").read_text())
            for role, pid in pids.items()
        }
    assert found == {"node": 0, "switch": 0, "worker": 0, "launcher": 0}

"""Threads of a process share what they freed: none keeps its own worst (`allocator.py`)."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster
from tests.processes.jobs import SMALL, Outside, text_file

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="no other libc has arenas"
)
THREADS = 6
HELD_BYTES = 16 << 20

SCRIPT = f"""
import ctypes, os, sys, threading
from luwu.base.libc import keep_one_arena
from luwu.base.process_memory import private_bytes

if sys.argv[1] == "one":
    keep_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
turn, all_here = threading.Lock(), threading.Barrier({THREADS})

def hold():
    all_here.wait()  # an arena of a thread that has ended serves the next
    with turn:
        held = [libc.malloc(65536) for _ in range({HELD_BYTES} // 65536)]
        for address in held:
            ctypes.memset(address, 1, 65536)
        for address in held[:-1]:  # the last stays, above them: they cannot go to the system
            libc.free(address)

before = private_bytes(os.getpid())
threads = [threading.Thread(target=hold) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(private_bytes(os.getpid()) - before)
print(open("/proc/self/maps").read(), end="")
"""


def kept_and_arenas(asked: str) -> tuple[int, int]:
    """Bytes that a process keeps, and how many of its threads have an arena."""
    command = [sys.executable, "-c", SCRIPT, asked]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kept_bytes, _, maps = said.partition("\n")
    return int(kept_bytes), threads_with_arena(maps)


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
def test_threads_of_one_arena_keep_what_they_held_once() -> None:
    kept_bytes, arenas = kept_and_arenas("many")
    assert kept_bytes > 0.9 * THREADS * HELD_BYTES
    assert arenas == THREADS
    kept_bytes, arenas = kept_and_arenas("one")
    assert kept_bytes < 2 * HELD_BYTES
    assert arenas == 0


@needs_glibc
def test_processes_of_a_run_have_one_arena(tmp_path: Path) -> None:
    """Goal: none keeps the worst of each thread."""
    outside = Outside(tmp_path / "tmp")
    flags = ("--workers", "2", "--transport", "tcp", "--state", str(tmp_path / "state"))
    script = (
        "-m", "workers.train", "--arm", "luwu", "--steps", "100000",
        "--data", str(text_file(tmp_path)), *SMALL,
    )  # fmt: skip
    with Cluster.run(tmp_path, *script, flags=flags, environ=outside.environ) as cluster:
        cluster.wait_for_steps(3, limit_s=120)
        pids = {each.role: each.pid for each in cluster.processes()}
        pids["launcher"] = cluster.pid
        found = {
            role: threads_with_arena(Path(f"/proc/{pid}/maps").read_text())
            for role, pid in pids.items()
        }
    assert found == {"node": 0, "switch": 0, "worker": 0, "launcher": 0}

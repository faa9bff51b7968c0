"""Memory of processes: each page is counted once, in the process that made the arena it is in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base.process_memory import private_bytes
from luwu.transport.shm import Arena

MIB = 1024**2
ARENA_BYTES = 64 * MIB
READER = """
import os, sys
from luwu.transport.arena import Access, map_memory
descriptor, nbytes, keeps = map(int, sys.argv[1:])
arena = map_memory(descriptor, nbytes, Access.PRIVATE)
if not keeps:
    os.close(descriptor)
for start in range(0, nbytes, 4096):
    arena[start]
print("read", flush=True)
sys.stdin.read()
"""


def pss_bytes(pid: int) -> int:
    """The kernel's own count: a page that n processes map is an n-th of it in each."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    found = (line.split() for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return sum(int(count) * 1024 for _, count, _ in found)


@pytest.mark.parametrize("keeps_descriptor", [True, False])
def test_a_shared_page_is_counted_once(keeps_descriptor: bool) -> None:
    """Goal: an arena counts in the process that made it and in no other, and the sum over all is
    that of the kernel's Pss. Method: a process that maps and reads all of our arena; also when its
    connection has ended, and with it the descriptor, but something of it is still in use."""
    before = private_bytes(os.getpid())
    arena = Arena(ARENA_BYTES)
    memory = arena.reserve(ARENA_BYTES)
    memory[:] = bytes(ARENA_BYTES)
    assert arena.region is not None
    descriptor = arena.region.fd
    arguments = [str(each) for each in (descriptor, ARENA_BYTES, int(keeps_descriptor))]
    command = [sys.executable, "-c", READER, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[descriptor]
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"read\n"
        own, other = private_bytes(os.getpid()), private_bytes(reader.pid)
        both = pss_bytes(os.getpid()) + pss_bytes(reader.pid)
        assert reader.stdin is not None
        reader.stdin.close()
    arena.close()
    os.close(descriptor)
    assert before is not None
    assert own is not None
    assert other is not None
    assert abs(own - before - ARENA_BYTES) < 4 * MIB
    assert other < ARENA_BYTES / 2
    assert abs(own + other - both) < 4 * MIB


def test_a_process_that_is_gone_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert private_bytes(child.pid) is None

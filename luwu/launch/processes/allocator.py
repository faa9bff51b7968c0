"""Settings of malloc and memcpy in started processes: GLIBC_TUNABLES; other systems ignore them.

What is freed stays with the process, up to 256 MiB, for whichever thread asks next, and in huge
pages where the system gives them; else it is given back to the kernel, and cleared page by page
when it comes again. So a process keeps what it once needed, and never more than that.

Workers free gradients and activations (weights are no part of the heap: `base/address_range.py`).
A step of 25 M parameters in RAM, 4 workers of 32 tokens, 2 cores, twice in turn: 315 and 298 ms
with the copies' setting alone, 315 and 297 with the thresholds, 294 and 279 with one arena too, 295
and 280 with huge pages too.

Switch and node free messages: libzmq's I/O thread has taken the memory, our loop gives it back.
Exchange of 25 M parameters in bfloat16 over ipc, 4 workers, three times in turn: 268, 278 and 251
ms without any setting at the switch, 251, 258 and 244 with the thresholds, 248, 232 and 242 with
one arena too. At the node, three times in turn: 240, 262 and 213 ms without any setting, 216, 249
and 194 with all, in which the node computes for 102, 107 and 96 ms, and 85, 101 and 74; without a
switch 183 and 159, and 176 and 159. What it keeps it once held, which is what its budget counts.

The launcher, which measures the disk with buffers of a page for each of many threads, kept 300 MiB
of them; it is not started by us and asks for one arena itself (`libc.keep_one_arena`).
"""

from __future__ import annotations

from typing import Final

_KEEPING = (
    "glibc.malloc.hugetlb=1",
    "glibc.malloc.mmap_threshold=33554432",
    "glibc.malloc.trim_threshold=268435456",
    "glibc.malloc.arena_max=1",
)

ROLE_TUNABLES: Final = ":".join(_KEEPING)

WORKER_TUNABLES: Final = ":".join(("glibc.cpu.x86_non_temporal_threshold=0x80000", *_KEEPING))
"""Setting of all workers of all arms. A copy from 512 KiB on bypasses the cache: its destination is
not read first (measured, two threads: 26 GB/s without, 35 to 45 with). glibc decides by the size of
the cache, which on virtual machines may be that of a whole host."""

"""Imported by every Python of a soak before anything else: says now and then what is allocated.

What is resident also tells of pages of a heap that are written for the first time; what `malloc`
has given and not got back, with all of Python's objects among it (PYTHONMALLOC=malloc), does not.
What CPython keeps of what was freed, 2,000 tuples of each length, goes with a full collection. Its
cache of attributes of types goes too: it holds 4,096 names, and takes as another what `match` or C
looks up by a new string. What `malloc` keeps of what a thread freed, 240 KiB for each, it counts as
given; it keeps nothing when it is told so as the process begins, so each process begins again.
"""

import ctypes
import gc
import os
import sys
import threading

SAMPLE_S = 5.0
KEEP_NOTHING = "glibc.malloc.tcache_count=0"
FIELDS = [
    "arena", "ordblks", "smblks", "hblks", "hblkhd",
    "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
]  # fmt: skip


class _Info(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>, glibc 2.33."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def _say(path: str) -> None:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Info
    clear_cache = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    never = threading.Event()
    while not never.wait(SAMPLE_S):
        gc.collect()
        clear_cache()
        info = mallinfo()
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{info.uordblks + info.hblkhd}\n")
        except OSError:
            return  # the soak is over


def _begin_again() -> None:
    """Once, with a `malloc` that keeps nothing; what this process starts is not told so by it."""
    *others, last = os.environ.get("GLIBC_TUNABLES", "").split(":")
    if last != KEEP_NOTHING:
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [*others, last, KEEP_NOTHING]))
        os.execv(sys.executable, sys.orig_argv)
    if others:
        os.environ["GLIBC_TUNABLES"] = ":".join(others)
    else:
        del os.environ["GLIBC_TUNABLES"]


if "SOAK_MEMORY" in os.environ:
    _begin_again()
    _path = os.path.join(os.environ["SOAK_MEMORY"], str(os.getpid()))
    threading.Thread(target=_say, args=(_path,), name="memory", daemon=True).start()

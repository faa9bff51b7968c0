"""Imported by every Python of a soak before anything else: says now and then what is allocated.

What is resident also tells of pages of a heap that are written for the first time; what `malloc`
has given and not got back, with all of Python's objects among it (PYTHONMALLOC=malloc), does not.
What CPython keeps of what was freed, 2,000 tuples of each length, goes with a full collection. Its
cache of attributes of types goes too: it holds 4,096 names, and takes as another what `match` or C
looks up by a new string.
"""

import ctypes
import gc
import os
import sys
import threading
import time

SAMPLE_S = 5.0
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
    while True:
        time.sleep(SAMPLE_S)
        gc.collect()
        clear_cache()
        info = mallinfo()
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{info.uordblks + info.hblkhd}\n")
        except OSError:
            return  # the soak is over


if "SOAK_MEMORY" in os.environ:
    _path = os.path.join(os.environ["SOAK_MEMORY"], str(os.getpid()))
    threading.Thread(target=_say, args=(_path,), name="memory", daemon=True).start()

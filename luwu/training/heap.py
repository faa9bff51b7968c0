"""Memory that goes back to the system as soon as it is freed.

glibc serves a block from the heap once a block as large has been freed: its threshold for blocks of
their own grows with them, up to 32 MiB. A unit's weights would then lie among activations; when
they are freed, small activations settle in the hole, the next unit does not fit in it, and the heap
grows by nearly the whole model. (Measured with 76 units of 1.8 MB: 120 MB more than the window.)

So the weights get mappings of their own, and everything else stays as it is after glibc has learnt
from large blocks: a mapping for each activation would cost a page fault for each of its pages.
Where there is no `mallopt`, or MALLOC_MMAP_THRESHOLD_ is set, nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_OWN_MAPPING_BYTES: Final = 64 * 1024
_HEAP_BYTES_MAX: Final = 32 * 1024 * 1024
"""Where glibc's own threshold stops growing; it trims the heap at twice of that."""


def _find_mallopt() -> Callable[[int, int], Any] | None:
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return None
    try:
        found: Callable[[int, int], Any] = ctypes.PyDLL(None).mallopt
    except (AttributeError, OSError):
        return None
    found(_M_TRIM_THRESHOLD, 2 * _HEAP_BYTES_MAX)  # setting one threshold stops both from growing
    found(_M_MMAP_THRESHOLD, _HEAP_BYTES_MAX)
    return found


_mallopt = _find_mallopt()


@contextmanager
def own_mapping() -> Iterator[None]:
    """What is allocated within it does not come from the heap."""
    if _mallopt is None:
        yield
        return
    _mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
    try:
        yield
    finally:
        _mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES_MAX)

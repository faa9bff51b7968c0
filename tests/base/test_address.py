"""Addresses of views and arrays: right, and found without leaving anything behind."""

from __future__ import annotations

import ctypes
import tracemalloc

import numpy as np
import pytest

from luwu.base.address import address_of

ARRAY = np.arange(64, dtype=np.uint8)
READ_ONLY = memoryview(ARRAY.tobytes())
ASKED = 50_000


@pytest.mark.parametrize("view", [memoryview(bytearray(ARRAY)), READ_ONLY], ids=["own", "read"])
def test_what_lies_at_the_address_is_what_the_view_shows(view: memoryview) -> None:
    assert ctypes.string_at(address_of(view), view.nbytes) == view
    assert address_of(view[3:]) == address_of(view) + 3


@pytest.mark.parametrize("view", [memoryview(bytearray()), memoryview(b"")], ids=["own", "read"])
def test_an_empty_view_has_an_address(view: memoryview) -> None:
    address_of(view)


def test_asking_often_takes_no_memory() -> None:
    """`__array_interface__` fills CPython's table of interned strings: hundreds of KiB at once."""
    address_of(READ_ONLY)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(ASKED):
            address_of(READ_ONLY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 128 * 1024, "other threads of this process may take a little"

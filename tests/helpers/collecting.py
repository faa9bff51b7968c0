"""Calls in the middle of another function, from where another thread could run.

Python collects garbage when it makes an object. What it then destroys may run code, during which
threads may change. So a loop in C, such as `list(d.items())`, can be interrupted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_each_collection(do: Callable[[], object]) -> Iterator[None]:
    """Call `do` each time that garbage is collected inside the `with` block, which is often.

    Python 3.11 collects as it makes objects, later versions between instructions. Raises
    AssertionError if `do` was never called.
    """
    done = 0

    def let_in(phase: str, _: dict[str, int]) -> None:
        nonlocal done
        if phase == "start":
            done += 1
            do()

    pairs = [(k, k) for k in range(4000)]  # else CPython would use freed ones again
    before = gc.get_threshold()
    gc.callbacks.append(let_in)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_in)
        del pairs
    assert done, "the collector never ran"

"""What other threads do while one makes objects: there the collector lets them in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_each_collection(do: Callable[[], object]) -> Iterator[None]:
    """Do this at almost each object that Python 3.11 makes (later ones: each few lines) within.

    Raises AssertionError where it was never done.
    """
    done = 0

    def let_in(phase: str, _: dict[str, int]) -> None:
        nonlocal done
        if phase == "start":
            done += 1
            do()

    pairs = [(k, k) for k in range(4000)]  # Python has none in store: it makes the next ones
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

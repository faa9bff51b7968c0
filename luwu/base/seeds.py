"""One seed a run; every other random number is derived from it by name."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that is a pure function of the run's seed and a path of names.

    `derive(7, "batch", 3)` and `derive(7, "dropout", 3)` are unrelated streams.
    """
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

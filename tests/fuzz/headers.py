"""Fuzzed headers through `luwu.wire.codec.decode`: a message, or RemoteProtocolError, soon.

What is decoded must also be what it says: encoded again and decoded again, it is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from luwu.base.errors import RemoteProtocolError
from luwu.wire.codec import decode, encode
from tests.fuzz.mutate import Cases

HANG_NS: Final = 1_000_000_000


def fuzz_headers(
    seed: int, first: int, count: int, *, hang_ns: int = HANG_NS,
    look: Callable[[int], None] = lambda index: None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with cases `first` to `first + count`, each with its index.

    `look` is called before each, for who watches from outside.
    """
    cases = Cases(seed)
    for index in range(first, first + count):
        look(index)
        header, payload_count = cases.case(index)
        start_ns = time.thread_time_ns()  # `decode` waits for nothing; a busy machine is no hang
        said = _wrong(header, payload_count)
        took_ns = time.thread_time_ns() - start_ns
        if said is None and took_ns > hang_ns:
            said = f"took {took_ns / 1e9:.1f} s"
        if said is not None:
            yield f"header {index}: {said}; {payload_count} frames behind {header[:80].hex()}"


def _wrong(header: bytes, payload_count: int) -> str | None:
    try:
        message = decode(header, payload_count)
    except RemoteProtocolError:
        return None
    except BaseException as exc:
        return f"{type(exc).__name__}: {exc!s:.200}"
    try:
        again = encode(message)
        if encode(decode(again, payload_count)) != again:
            return f"{message!r:.200} is not itself when it is encoded and decoded again"
    except BaseException as exc:
        return f"{message!r:.200} cannot be encoded again: {type(exc).__name__}: {exc!s:.200}"
    return None

"""Waits until a dialled endpoint answers."""

from __future__ import annotations

from collections.abc import Callable

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConnectionFailed
from luwu.transport.interface import PeerFailed, PeerUp, Transport

_LOOK_NS = 100_000_000


def await_answer(
    transport: Transport, endpoint: str, *, timeout_s: float, advice: str,
    look: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Return when the one dialled peer is up. Raises ConnectionFailed, and what `look` raises."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(timeout_s * 1e9)
    trouble = ""
    while SYSTEM_CLOCK.now_ns() < end_ns:
        look()
        item = transport.receive(_LOOK_NS)
        if isinstance(item, PeerUp):
            return
        if isinstance(item, PeerFailed):
            trouble = f" ({item.error})"
            if item.final:
                break
    raise ConnectionFailed(f"{endpoint} did not answer within {timeout_s:.0f} s{trouble}; {advice}")

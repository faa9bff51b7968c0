"""Gates at which a worker of a test waits: files that the test makes."""

from __future__ import annotations

from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK, sleep

POLL_S = 0.01
LIMIT_S = 90.0


def wait_for(gate: Path) -> None:
    """Wait until somebody has opened it."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
    while not gate.exists():
        assert SYSTEM_CLOCK.now_ns() < end_ns, f"nobody opened {gate}"
        sleep(POLL_S)

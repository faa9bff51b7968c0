"""Named places where a test may make a process fail; off unless the environment says so.

`LUWU_FAILPOINTS="store.before_flush=kill@3;node.after_prepare=raise"` makes the third pass of the
first place kill the process and every pass of the second raise. The names stand in the code as
`failpoint("store.before_flush")`; an unset variable costs one dictionary look-up.

Actions: `kill` (SIGKILL to this process), `raise` (FailpointError), each with an optional `@N`:
the N-th pass only, counted from 1.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from luwu.base.errors import ConfigError, LuwuError


class FailpointError(LuwuError):
    """Raised by a failpoint that a test switched on."""

    code = "E104"


@dataclass(slots=True)
class _Armed:
    action: str
    pass_number: int | None
    passes_count: int = 0


def parse_failpoints(text: str) -> dict[str, _Armed]:
    """`{place: what to do}` of the variable's text. Raises ConfigError."""
    armed: dict[str, _Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        place, _, what = item.partition("=")
        action, _, number = what.partition("@")
        is_numbered = number.isdecimal() and int(number) > 0
        if not place or action not in ("kill", "raise") or not (is_numbered or "@" not in what):
            raise ConfigError(
                f"LUWU_FAILPOINTS: {item!r} is not PLACE=kill|raise[@N], N from 1; "
                "fix it or unset it"
            )
        if place in armed:
            raise ConfigError(f"LUWU_FAILPOINTS: {place!r} stands there twice; name it once")
        armed[place] = _Armed(action, int(number) if number else None)
    return armed


_armed = parse_failpoints(os.environ.get("LUWU_FAILPOINTS", ""))


def failpoint(place: str) -> None:
    """Fail here if a test asked for it."""
    armed = _armed.get(place)
    if armed is None:
        return
    armed.passes_count += 1
    if armed.pass_number not in (None, armed.passes_count):
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FailpointError(f"failpoint {place}, pass {armed.passes_count}")

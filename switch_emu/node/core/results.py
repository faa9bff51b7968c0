"""Results of parts on which the core itself must act. Pure.

None                    nothing more to do
True                    something new is known: see what has become possible
AbortRequest            the attempt is to be given up
Judgement               the open step comes out like this
wire.Adopt              at one of several nodes: take over the attempt that the switch announced
"""

from __future__ import annotations

from typing import NamedTuple

from luwu.wire import messages as wire


class AbortRequest(NamedTuple):
    """The attempt is to be given up as soon as that is allowed."""

    text: str
    is_lost: bool = False
    """True if contributions to the open step are lost: it cannot be decided first."""


class Judgement(NamedTuple):
    """The open step is applied, or it is skipped."""

    applied: bool
    norms: tuple[float, ...]
    attempt: int
    """The attempt that a skipped step opens."""


class Joined(NamedTuple):
    """A child that has joined."""

    peer: str
    hello: wire.Hello
    is_restarted: bool
    """It replaces an earlier start of itself."""
    lost_text: str = ""
    """Not empty: it knows a later attempt or step than the state does; the attempt that counts must
    go beyond it."""


Result = AbortRequest | Judgement | wire.Adopt | bool | None

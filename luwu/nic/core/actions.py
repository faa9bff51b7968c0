"""What the worker's core tells its shell beside `Send`, `Drop` and `Note`, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.wire.messages import Push


@dataclass(frozen=True, slots=True)
class Joined:
    """We are a member. `loaded`: the state has weights; else rank 0 must load them."""

    step: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class Fill:
    """These weights have come for a place in the unit; the payload is the shell's from now on."""

    handle: int
    chunk: int
    payload: Payload
    in_place: bool
    """They may be held where they are, if that is memory shared with us."""


@dataclass(frozen=True, slots=True)
class Done:
    """The push, pull or load of this handle is complete."""

    handle: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a step."""

    step: int
    applied: bool
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Settled:
    """The step is decided."""

    step: int
    applied: bool
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Aborted:
    """All open handles are void; go back to `step`."""

    step: int
    text: str
    loaded: bool
    counts: bool = True
    """False: the job goes on without this rank, which waits to be let in again."""
    is_older: bool = False
    """Steps from `step` on that were announced as decided are lost, and are made again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The parent will never have us."""

    text: str
    is_older: bool = False
    """Because the state lacks steps that were announced as decided."""


@dataclass(frozen=True, slots=True)
class Left:
    """The parent knows that we are done."""


@dataclass(frozen=True, slots=True)
class Measure:
    """State what all must know of this gradient before it is encoded; `NicCore.measured`.

    Here and in `Encode` the payload is the core's, and may be dropped by any later action.
    """

    push: Push
    payload: Payload


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode this gradient as the job's aggregator does; `NicCore.encoded`."""

    push: Push
    payload: Payload
    agreed: bytes


Action = (
    Send | Drop | Note | Joined | Fill | Done | Judged | Settled | Aborted | Refused | Left
    | Measure | Encode
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One chunk to push."""

    chunk: int
    payload: Payload | None
    """None: this rank has no gradient for it."""
    payload_bytes: int
    dtype: str
    absent: int = 0
    """Bitmap of the chunk's segments without a gradient, which hold zeros; 0 without a payload."""

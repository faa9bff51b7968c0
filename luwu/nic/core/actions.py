"""Actions of the worker's core beside `Send`, `Drop` and `Note`, and the gradients it is given."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.wire.messages import Push


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker is a member. `loaded`: the state has weights; else rank 0 must load them."""

    step: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class Fill:
    """Weights of an extent were received for a pull; the payload is the shell's from now on."""

    handle: Hashable
    extent: int
    payload: Payload
    in_place: int
    """Places of the extent, if the weights may be used where they are, in memory shared with the
    sender; 0: they may not."""


@dataclass(frozen=True, slots=True)
class Done:
    """The push, pull or load of this handle is complete."""

    handle: Hashable


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a step."""

    step: int
    applied: bool
    norms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepDecided:
    """The step is durable as a whole."""

    step: int
    applied: bool
    norms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """All open handles are void; go back to `step`."""

    step: int
    text: str
    loaded: bool
    counts: bool = True
    """False: the job goes on without this rank, which waits to be admitted again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The parent refuses this worker for good."""

    text: str
    is_older: bool = False
    """The reason: the state lacks steps that were announced as decided."""


@dataclass(frozen=True, slots=True)
class Left:
    """The parent has received that this worker leaves."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Compute what all ranks must know of a gradient before it is encoded; `NicCore.measured`.

    The payload here and in `Encode` belongs to the core, and may be dropped by any later action.
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
    Send | Drop | Note | Joined | Fill | Done | Judged | StepDecided | Aborted | Refused | Left
    | Measure | Encode
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One extent to push, or chunk to load."""

    index: int
    payload: Payload | None
    """The gradient; None if this rank has none."""
    payload_bytes: int
    dtype: str
    absent: int = 0
    """Bitmap of the extent's segments without a gradient, which hold zeros; 0 without a payload."""

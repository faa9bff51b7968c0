"""Actions that every core may ask of its shell; each core adds its own.

A payload is opaque to a core: a buffer, a place in a spill file, a number in a simulation. A core
holds each data payload it was given until it says `Drop`, exactly once; `Send` and the other
actions only borrow it. Payloads of control messages are plain bytes and are never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.wire.messages import Message

PARENT = "parent"
"""The name by which a child knows its parent."""

Payload = object


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message to each of `peers`; they share the payload."""

    peers: tuple[str, ...]
    message: Message
    payload: Payload | bytes | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The core needs this payload no more."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class Expel:
    """Hear no more of this connection: what came by it broke the protocol."""

    peer: str


@dataclass(frozen=True, slots=True)
class End:
    """The job cannot go on, for good: end with this text and error code, once the children have
    been informed."""

    text: str
    code: str = "E207"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person may want to read in the log, with its fields."""

    name: str
    fields: tuple[tuple[str, object], ...] = ()
    level: str = "INFO"

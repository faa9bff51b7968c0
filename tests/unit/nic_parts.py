"""The parts of a worker's core alone: a parent's messages, and actions in short.

A test is a table of (event, result, actions): the call of a part's method, what it returns, and the
actions that the part leaves in the outbox, each as one line:

    Push 0.1.4 g4         a data message: its step, part and index; the payload, if it has one
    Commit 0 b'hyper'     another message: its step; the payload, if it has one
    Pull 0.1.4 @2         of another attempt than 1
    Drop g4               another action: its class and what it carries
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.nic.core.actions import Gradient
from luwu.protocol.actions import PARENT, Send
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb

RANK = 1
CONTRIBUTORS = 1 << RANK
WINDOW_BYTES = 100

_BLANK: dict[str, Any] = {
    "int": 0, "bool": False, "float": 0.0, "str": "", "tuple[float, ...]": (0.0,),
}  # fmt: skip
_STAMP: dict[str, Any] = {
    "job": 7, "epoch": 0, "attempt": 1, "generation": 1, "role": Role.NODE, "rank": 0,
    "incarnation": 9,
}  # fmt: skip

Event = tuple[Callable[..., Any], Sequence[Any]] | Callable[[], Any]
Triple = tuple[Event, Any, list[str]]


def make_ends() -> tuple[Outbox, Uplink]:
    """What a part is handed: the outbox of a member of attempt 1, and an uplink with a window."""
    outbox = Outbox(job=7, role=Role.WORKER, rank=RANK, incarnation=5)
    outbox.attempt = outbox.generation = 1
    uplink = Uplink(outbox.actions, RetryPolicy())
    uplink.window_bytes = WINDOW_BYTES
    return outbox, uplink


def from_parent(kind: type[Any], step: int = 0, **values: Any) -> Any:
    """A message of the parent, under attempt 1 unless said otherwise."""
    blank = {each.name: _BLANK.get(str(each.type)) for each in fields(kind)}
    return kind(**{**blank, **_STAMP, "step": step, **values})


def receipt(verb: Verb, step: int = 0, part: int = 0, index: int = 0, **values: Any) -> Any:
    """A `Received` of the parent."""
    return from_parent(wire.Received, step, part=part, index=index, verb=verb, **values)


def gradient(index: int, payload: Any = "", payload_bytes: int = 60) -> Gradient:
    """A gradient with a payload that is called after its index; two do not fit the window."""
    payload = f"g{index}" if payload == "" else payload
    nbytes = 0 if payload is None else payload_bytes
    return Gradient(index=index, payload=payload, payload_bytes=nbytes, dtype="float32")


def check(outbox: Outbox, triples: Sequence[Triple]) -> None:
    """Call each event; compare what it returns and the actions that it leaves."""
    for number, (event, result, actions) in enumerate(triples):
        found = event[0](*event[1]) if isinstance(event, tuple) else event()
        left = [short(each) for each in outbox.take()]
        assert (found, left) == (result, actions), f"event {number}: {found!r}, {left}"


def short(action: Any) -> str:
    """An action in one line."""
    if not isinstance(action, Send):
        values = [getattr(action, each.name) for each in fields(action)]
        return " ".join([type(action).__name__, *map(_value, values)])
    assert action.peers == (PARENT,)
    m = action.message
    place = f"{m.step}.{m.part}.{m.index}" if isinstance(m, wire.DataMessage) else str(m.step)
    if getattr(m, "count", 1) > 1:
        place += f" x{m.count}"
    payload = "" if action.payload is None else f" {action.payload}"
    attempt = "" if m.attempt == 1 else f" @{m.attempt}"
    return f"{type(m).__name__} {place}{payload}{attempt}"


def _value(value: Any) -> str:
    return short_message(value) if isinstance(value, wire.Message) else str(value)


def short_message(m: Any) -> str:
    """A message within another action."""
    return f"({type(m).__name__} {m.step}.{m.part}.{m.index})"
